//! What the end-to-end suites share: the real binaries, a user's empty home, the reference.
//!
//! Invariant: every test has folders of its own and leaves no process; nothing here knows how the
//! product works inside.

#![expect(clippy::missing_panics_doc, reason = "a harness fails its test by panicking")]
#![expect(clippy::unwrap_used, reason = "a harness fails its test by panicking")]

pub mod cluster;
mod disk;
mod evaluation;
mod history;
mod home;
pub mod hosts;
mod metrics;
pub mod models;
pub mod proxy;

pub use disk::SmallDisk;
pub use evaluation::{captions, small_evaluation};
pub use history::{History, Lease};
pub use home::{Home, Outcome, child_processes};
pub use metrics::{metric, reference, task_metrics};

use std::{
    env,
    path::{Path, PathBuf},
};

/// `tests/data`.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data")
}

/// A binary of the product: where the variable says, else beside the running test.
fn binary(variable: &str, name: &str) -> PathBuf {
    let beside = || {
        let test = env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join(name)
    };
    let path = env::var_os(variable).map_or_else(beside, PathBuf::from);
    assert!(
        path.is_file(),
        "{} is not built; run `cargo build --workspace` first, or `cargo xtask test`",
        path.display()
    );
    path
}
