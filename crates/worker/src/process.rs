//! One child process in a group of its own.
//!
//! Invariant: whoever has a [`Process`] can end it and all that it started in its group:
//! [`Process::end`] and [`Process::kill`] do not come back before it is reaped, or the kernel has had
//! its time and could not end it; dropping it kills the group and leaves the reaping to the runtime.
//! The child's standard input stays open for as long as we live, so that a child whose agent is gone
//! finds its end and leaves too.

use std::{io, process::ExitStatus, process::Stdio, time::Duration};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use orchestrator_types::SliceId;
use tokio::{
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use crate::{last_words::LastWords, starter};

/// How long a child may take to leave when its standard input ends.
const LEAVE: Duration = Duration::from_secs(2);
/// How long somebody waits for the kernel to end a killed process, which it cannot in the middle of
/// some I/O.
const REAP: Duration = Duration::from_secs(10);
/// In doubt the kernel's out-of-memory killer shall take an executor, not agent or coordinator.
const OOM_SCORE: &str = "500";

/// Makes this process the parent of grandchildren whose own parents have died, so that it can reap
/// them. For a program that does nothing but run an [`Agent`](crate::Agent).
///
/// # Errors
/// When the kernel refuses.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// A child that has not been reaped, as far as we know.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Its group has the number that the child had.
    group: Option<Pid>,
    stdin: Option<ChildStdin>,
    last_words: LastWords,
}

impl Process {
    pub(crate) async fn spawn(mut command: Command, slice: SliceId) -> io::Result<Self> {
        command
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = starter::start(command).await?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let stdin = child.stdin.take();
        let stderr = child.stderr.take().expect("standard error is a pipe");
        let process = Self {
            group,
            stdin,
            last_words: LastWords::of("executor", Some(slice), stderr),
            child,
        };
        process.volunteer();
        Ok(process)
    }

    /// Its pid, also when it is reaped and its group is not gone.
    pub(crate) fn number(&self) -> Option<u32> {
        self.group.and_then(|group| u32::try_from(group.as_raw()).ok())
    }

    /// How it ended, if it has. What it started is then killed.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot wait for an executor");
            None
        });
        if status.is_some() {
            self.kill_group();
        }
        status
    }

    /// Waits for its end; `None` if it is still there after `limit`. What it started is killed with
    /// its end.
    pub(crate) async fn end_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let status = timeout(limit, self.child.wait()).await.ok()?.ok()?;
        self.kill_group();
        Some(status)
    }

    /// What it wrote last; see [`LastWords::told`].
    pub(crate) async fn last_words(&mut self) -> String {
        self.last_words.told().await
    }

    /// Asks it to leave, and kills it if it does not.
    pub(crate) async fn end(&mut self) {
        drop(self.stdin.take());
        if self.end_within(LEAVE).await.is_none() {
            tracing::warn!("an executor did not leave within {} s and is killed", LEAVE.as_secs());
            self.kill().await;
        }
    }

    /// Kills its group and reaps it, or says that the kernel cannot.
    pub(crate) async fn kill(&mut self) {
        self.kill_group();
        if self.end_within(REAP).await.is_none() {
            tracing::error!(pid = ?self.child.id(), "a killed executor does not end");
        }
    }

    /// Whether nothing is left of it and of its group: all of it has ended and is reaped.
    pub(crate) fn is_gone(&mut self) -> bool {
        if self.ended().is_none() {
            return false;
        }
        let Some(group) = self.group else { return true };
        reap(group);
        if killpg(group, None) == Err(Errno::ESRCH) {
            self.group = None;
        }
        self.group.is_none()
    }

    /// The group's number cannot belong to somebody else while one of its members is there, nor in
    /// the moment after: numbers are handed out in turn.
    fn kill_group(&self) {
        let Some(group) = self.group else { return };
        match killpg(group, Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => tracing::debug!(%group, %error, "cannot kill an executor's group"),
        }
    }

    fn volunteer(&self) {
        let Some(id) = self.child.id() else { return };
        if let Err(error) = std::fs::write(format!("/proc/{id}/oom_score_adj"), OOM_SCORE) {
            tracing::debug!(%error, "the executor's out-of-memory score stays as it is");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After the end of a reaped child's group there is nothing to kill.
        if self.child.id().is_some() {
            self.kill_group();
        }
    }
}

/// Reaps members of the group that became our children; see [`adopt_orphans`]. The child itself is
/// the runtime's to reap, and is reaped already.
fn reap(group: Pid) {
    let members = Pid::from_raw(-group.as_raw());
    while let Ok(status) = waitpid(members, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::time::sleep;

    use super::*;

    async fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::spawn(command, "n.0".parse().unwrap()).await.unwrap()
    }

    /// The pid that a script wrote.
    async fn pid_in(file: &Path) -> Pid {
        loop {
            if let Ok(text) = std::fs::read_to_string(file)
                && let Ok(pid) = text.trim().parse()
            {
                return Pid::from_raw(pid);
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_gone(process: &mut Process) {
        let gone = async {
            while !process.is_gone() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), gone).await.expect("it ends");
    }

    fn is_gone(pid: Pid) -> bool {
        !Path::new("/proc").join(pid.to_string()).exists()
    }

    #[tokio::test]
    async fn what_a_dead_child_leaves_in_its_group_is_killed_and_reaped() {
        adopt_orphans().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let mut process = shell(&script).await;
        let (child, grandchild) = (process.number().unwrap(), pid_in(&file).await);
        assert!(!process.is_gone() && !is_gone(grandchild));
        nix::sys::signal::kill(Pid::from_raw(child.try_into().unwrap()), Signal::SIGKILL).unwrap();
        until_gone(&mut process).await;
        assert!(is_gone(grandchild), "killed, and no zombie");
    }

    #[tokio::test]
    async fn an_end_in_order_ends_the_group_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; cat", file.display());
        let mut process = shell(&script).await;
        let grandchild = pid_in(&file).await;
        process.end().await;
        until_gone(&mut process).await;
        assert!(is_gone(grandchild));
    }
}
