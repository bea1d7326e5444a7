//! When to end: the agent closes our standard input, a signal arrives, or the agent is gone.
//!
//! Invariant: an executor does not outlive its agent. The pipe closes however the agent dies; the
//! kernel's signal to orphans is a second line, should the pipe have leaked to another process.

use std::{io, thread};

use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal},
    },
    unistd::{Pid, getppid},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};
use tracing::info;

/// Everything that can end the process.
pub(crate) struct Lifeline {
    parent: Pid,
    closed: oneshot::Receiver<()>,
}

impl Lifeline {
    /// Ties the process to its parent and to standard input.
    pub(crate) fn new() -> io::Result<Self> {
        let parent = getppid();
        // It waits until somebody looks: before that it would end the process unasked.
        hang_ups().thread_block()?;
        prctl::set_pdeathsig(Signal::SIGHUP)?;
        let (close, closed) = oneshot::channel();
        thread::Builder::new().name("stdin".to_owned()).spawn(move || {
            // Nothing is expected on it but its end.
            drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
            drop(close);
        })?;
        Ok(Self { parent, closed })
    }

    /// Waits for the end. Runs inside a tokio runtime.
    pub(crate) async fn ended(mut self) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        hang_ups().thread_unblock()?;
        let reason = loop {
            tokio::select! {
                _ = terminate.recv() => break "terminated",
                _ = interrupt.recv() => break "interrupted",
                // An error: the sender is dropped, never used.
                _ = &mut self.closed => break "standard input is closed",
                // The kernel sends it when the thread that started us ends, which the agent may
                // survive; terminals send it too, and there the agent decides.
                _ = hang_up.recv() => {
                    if getppid() != self.parent {
                        break "the agent is gone";
                    }
                }
            }
        };
        info!(reason, "stopping");
        Ok(())
    }
}

fn hang_ups() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGHUP);
    set
}
