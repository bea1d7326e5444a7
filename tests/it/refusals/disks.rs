//! Volumes that are read-only or full.

use std::path::Path;

use orchestrator_tests::{
    Home, SmallDisk,
    cluster::{Cluster, Setup},
    small_evaluation,
};

use super::{Rows, Seen, run};

pub(super) fn attack(rows: &mut Rows) {
    // Kept, because a coordinator must be there for workers to find.
    let cluster = Cluster::start(Setup::default());
    let url = cluster.url();
    let commands: [(&str, &[&str]); 3] = [
        (
            "--state",
            &["coordinator", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--state", "v"],
        ),
        ("--scratch", &["worker", "--device", "cpu", "--coordinator", &url, "--scratch", "v"]),
        ("--output", &["submit", "eval.yaml", "--output", "v"]),
    ];
    for (flag, arguments) in commands {
        for (volume, mount) in [("read-only", read_only as Mount), ("full", full)] {
            let home = Home::default();
            small_evaluation(&home, 12, "[auto]");
            let attack = format!("{volume} volume for {flag}");
            let disk = match mount(&home.path().join("v")) {
                Ok(disk) => disk,
                Err(reason) => {
                    rows.skip(&attack, &reason);
                    continue;
                }
            };
            let outcome = run(&home, arguments);
            rows.add(&attack, "a tmpfs of 1 MiB", &Seen::of(&home, &outcome));
            drop(disk);
        }
    }
    drop(cluster);
}

type Mount = fn(&Path) -> Result<SmallDisk, String>;

fn read_only(root: &Path) -> Result<SmallDisk, String> {
    SmallDisk::mount_read_only(root)
}

fn full(root: &Path) -> Result<SmallDisk, String> {
    SmallDisk::mount(root, 1).inspect(SmallDisk::fill)
}
