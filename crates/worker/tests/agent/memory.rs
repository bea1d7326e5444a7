//! An executor that the kernel kills for want of memory. It takes a cgroup with a limit, which not
//! every user may make: where not, the test is reported as ignored.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use libtest_mimic::Trial;
use orchestrator_proto::v1::FailureClass;

use crate::{
    executor::EATS,
    trial,
    workplace::{Workplace, until},
};

/// Enough for an agent and a stand-in, and soon eaten.
const LIMIT: &str = "268435456";

pub(crate) fn trials() -> Vec<Trial> {
    let name = concat!(module_path!(), "::an_executor_killed_for_want_of_memory_says_so");
    let possible = Group::new().is_ok();
    vec![trial(name, an_executor_killed_for_want_of_memory_says_so).with_ignored_flag(!possible)]
}

/// A cgroup below ours with a limit. It must be empty when it is dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> io::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let named = |prefix| own.lines().find_map(|line| line.split_once(prefix));
        let (root, limit, path) = named(":memory:")
            .map(|(_, path)| ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path))
            .or_else(|| named("0::").map(|(_, path)| ("/sys/fs/cgroup", "memory.max", path)))
            .ok_or(io::ErrorKind::NotFound)?;
        let parent = Path::new(root).join(path.trim_start_matches('/'));
        let group = Self(parent.join(format!("orchestrator-test-{}", std::process::id())));
        fs::create_dir(&group.0)?;
        fs::write(group.0.join(limit), LIMIT)?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.0));
    }
}

async fn an_executor_killed_for_want_of_memory_says_so() {
    let group = Group::new().unwrap();
    let workplace = Workplace::new().await;
    let mut agent = Command::new("sh")
        .args(["-c", r#"echo $$ > "$1/cgroup.procs" && shift && exec "$@""#, "sh"])
        .arg(&group.0)
        .arg(std::env::current_exe().unwrap())
        .args(["--agent", &workplace.coordinator.address()])
        .arg(workplace.folder())
        .spawn()
        .unwrap();
    workplace.hand_out(EATS);
    let (class, message) = workplace.failed(EATS).await;
    assert_eq!(
        (class, message.as_str()),
        (
            FailureClass::Resource,
            "the executor was ended by signal 9 (SIGKILL) by the kernel's out-of-memory killer: \
             give the slice more memory or a smaller batch"
        )
    );
    workplace.hand_out(1);
    workplace.committed(1).await;
    agent.kill().unwrap();
    agent.wait().unwrap();
    until("the executors' end", || workplace.executors().is_empty()).await;
    let processes = || fs::read_to_string(group.0.join("cgroup.procs")).unwrap();
    until("an empty cgroup", || processes().is_empty()).await;
}
