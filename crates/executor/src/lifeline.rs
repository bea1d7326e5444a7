//! When to end: the agent closes our standard input, a signal arrives, or the agent is gone.
//!
//! Invariant: an executor does not outlive its agent. The pipe closes however the agent dies, and an
//! executor that can still act on it leaves in order. One that cannot is killed by the kernel: the
//! agent starts us from a thread that lives as long as it does, so that the death of our parent's
//! thread, which is what the kernel looks at, is the agent's.

use std::{io, path::Path, thread};

use nix::{
    sys::{prctl, signal::Signal},
    unistd::{Pid, getppid},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};
use tracing::info;

/// The process cannot be tied to its agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    /// It died before the kernel could tie us to it.
    #[error("the agent, process {0}, is gone")]
    NoAgent(i32),
    /// The kernel refuses.
    #[error("the kernel does not tie the process to its parent")]
    Refused(#[from] nix::Error),
}

/// Ties the process to the life of its parent, where that is `agent`. To be called first of all:
/// until then nothing but standard input ties it.
pub(crate) fn follow(agent: i32) -> Result<(), FollowError> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // Had the agent died before that call, no signal would come. Another parent may also be a
    // program in between, a profiler for example: then the agent lives, and standard input ties us.
    let alive = || Path::new("/proc").join(agent.to_string()).exists();
    if getppid() == Pid::from_raw(agent) || alive() {
        Ok(())
    } else {
        Err(FollowError::NoAgent(agent))
    }
}

/// Everything that can end the process in order.
pub(crate) struct Lifeline {
    closed: oneshot::Receiver<()>,
}

impl Lifeline {
    /// Watches standard input.
    pub(crate) fn new() -> io::Result<Self> {
        let (close, closed) = oneshot::channel();
        thread::Builder::new().name("stdin".to_owned()).spawn(move || {
            // Nothing is expected on it but its end.
            drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
            drop(close);
        })?;
        Ok(Self { closed })
    }

    /// Waits for the end. Runs inside a tokio runtime.
    pub(crate) async fn ended(mut self) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let reason = loop {
            tokio::select! {
                _ = terminate.recv() => break "terminated",
                _ = interrupt.recv() => break "interrupted",
                // An error: the sender is dropped, never used.
                _ = &mut self.closed => break "standard input is closed",
                // A terminal that closes: there the agent decides.
                _ = hang_up.recv() => {}
            }
        };
        info!(reason, "stopping");
        Ok(())
    }
}
