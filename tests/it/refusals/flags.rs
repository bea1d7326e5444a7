//! Flags that contradict each other or mean nothing.

use orchestrator_tests::{Home, small_evaluation};

use super::{Rows, Seen, run};

pub(super) fn attack(rows: &mut Rows) {
    let home = Home::default();
    small_evaluation(&home, 12, "[auto]");
    let cases: [(&str, &[&str]); 11] = [
        (
            "a GPU and slices of the processor",
            &["submit", "eval.yaml", "--device", "GPU-1", "--local-slices", "2"],
        ),
        ("a device by its number", &["submit", "eval.yaml", "--device", "cuda:0"]),
        (
            "an inventory and a device",
            &["plan", "eval.yaml", "--inventory", "i.json", "--device", "cpu"],
        ),
        ("a key that is not there", &["check", "eval.yaml", "--set", "memory.quotta=1 GiB"]),
        ("a quota without unit", &["check", "eval.yaml", "--set", "memory.quota=5"]),
        ("a quota that nothing fits", &["submit", "eval.yaml", "--set", "memory.quota=1 MiB"]),
        (
            "a heartbeat longer than the lease",
            &["coordinator", "--lease", "1 s", "--heartbeat", "5 s", "--state", "s"],
        ),
        ("a time without unit", &["coordinator", "--lease", "30", "--state", "s"]),
        (
            "a blob store of no known kind",
            &[
                "coordinator",
                "--blobs",
                "ftp://host/x",
                "--listen",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--state",
                "s",
            ],
        ),
        (
            "two data roots of one name",
            &["check", "eval.yaml", "--data-root", "a=/tmp", "--data-root", "a=/usr"],
        ),
        (
            "a data root without a folder",
            &["check", "eval.yaml", "--data-root", "a=/nowhere/at/all"],
        ),
    ];
    for (attack, arguments) in cases {
        let made = format!("`{}`", arguments.join(" "));
        rows.add(attack, &made, &Seen::of(&home, &run(&home, arguments)));
    }
}
