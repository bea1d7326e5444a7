//! The file that a run's folder keeps.

use orchestrator_spec::{Override, as_run};

const TEXT: &str = "\u{feff}# mine\r\nversion: 1\r\nname: a # b\r\nsweep: {batch: [1, 2]}\r\n";

#[test]
fn a_file_without_overrides_stays_as_it_is() {
    assert_eq!(as_run("eval.yaml", TEXT, &[], "/data").unwrap(), TEXT);
}

#[test]
fn overrides_are_in_the_file_and_above_it() {
    let set = |flag: &str| flag.parse::<Override>().unwrap();
    let overrides = [set("sweep.batch=[7]"), set("name=a\nb: c")];
    let refused = as_run("eval.yaml", TEXT, &overrides, "/data").unwrap_err();
    assert_eq!(refused.iter().count(), 1, "{refused}");
    let overrides = [set("sweep.batch=[7]"), set("name=\"a\\nb\"")];
    assert_eq!(
        as_run("eval.yaml", TEXT, &overrides, "/data\nfake: 1").unwrap(),
        "# as run with: --set sweep.batch=[7] --set name=\"a\\nb\"\n\
         # relative paths start at \"/data\\nfake: 1\"\n\
         version: 1\nname: |-\n  a\n  b\nsweep:\n  batch:\n  - 7\n"
    );
}
