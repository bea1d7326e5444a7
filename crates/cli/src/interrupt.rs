//! Ctrl-C and SIGTERM.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// From the moment that this exists, neither signal ends the process by itself.
pub(crate) struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupt {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Resolves with the next one.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
