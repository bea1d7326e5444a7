//! One child process in a group of its own.
//!
//! Invariant: whoever has a [`Process`] can end it for good: [`Process::end`] and
//! [`Process::kill`] return when it is reaped, and dropping it kills the group and leaves the
//! reaping to the runtime. The child's standard input stays open for as long as we live, so that a
//! child whose agent is gone finds its end and leaves too.

use std::{io, process::ExitStatus, process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use orchestrator_types::SliceId;
use tokio::{
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use crate::last_words::LastWords;

/// How long a child may take to leave when its standard input ends.
const LEAVE: Duration = Duration::from_secs(2);
/// How long the kernel may take to end a killed process, which it cannot in the middle of some I/O.
const REAP: Duration = Duration::from_secs(10);
/// In doubt the kernel's out-of-memory killer shall take an executor, not agent or coordinator.
const OOM_SCORE: &str = "500";

/// A child that has not been reaped, as far as we know.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    last_words: LastWords,
}

impl Process {
    pub(crate) fn spawn(mut command: Command, slice: SliceId) -> io::Result<Self> {
        command
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let stderr = child.stderr.take().expect("standard error is a pipe");
        let process = Self { stdin, last_words: LastWords::of(slice, stderr), child };
        process.volunteer();
        Ok(process)
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot wait for an executor");
            None
        })
    }

    /// Waits for its end; `None` if it is still there after `limit`.
    pub(crate) async fn end_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        timeout(limit, self.child.wait()).await.ok()?.ok()
    }

    /// What it wrote last; see [`LastWords::told`].
    pub(crate) async fn last_words(&mut self) -> String {
        self.last_words.told().await
    }

    /// Asks it to leave, and kills it if it does not.
    pub(crate) async fn end(mut self) {
        drop(self.stdin.take());
        if self.end_within(LEAVE).await.is_none() {
            tracing::warn!("an executor did not leave within {} s and is killed", LEAVE.as_secs());
            self.kill().await;
        }
    }

    /// Kills its group and reaps it.
    pub(crate) async fn kill(&mut self) {
        self.kill_group();
        if self.end_within(REAP).await.is_none() {
            tracing::error!(pid = ?self.child.id(), "a killed executor does not end");
        }
    }

    fn kill_group(&self) {
        // Without an id it has been reaped, and its number may belong to somebody else.
        let Some(group) = self.child.id().and_then(|id| i32::try_from(id).ok()) else { return };
        if let Err(error) = killpg(Pid::from_raw(group), Signal::SIGKILL) {
            tracing::debug!(group, %error, "cannot kill an executor's group");
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
        self.kill_group();
    }
}
