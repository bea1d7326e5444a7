//! [`Life`]: whether the coordinator still works, known to everybody who waits for it.
//!
//! Invariant: half a coordinator helps nobody. The first part that fails says why and stops the
//! rest, so that no caller waits for an answer that cannot come.

use std::sync::{Arc, OnceLock};

use orchestrator_proto::{Refusal, RefusalCode};
use tokio_util::sync::CancellationToken;

/// Why a coordinator ended by itself. What was acknowledged is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndError {
    /// Its thread panicked.
    #[error(
        "the coordinator ended by a defect of its own; what was committed is kept, so start it \
         again and resume the run, and report the panic in its log"
    )]
    Defect,
    /// Its server failed.
    #[error("the coordinator's server failed; see its log, then start it again")]
    Server,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    stop: CancellationToken,
    failure: Arc<OnceLock<EndError>>,
}

impl Life {
    /// Ends when somebody wants the coordinator to stop, or it failed.
    pub(crate) const fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Stops everything because of `failure`; the first one is told.
    pub(crate) fn fail(&self, failure: EndError) {
        self.failure.get_or_init(|| failure);
        self.stop.cancel();
    }

    pub(crate) fn failure(&self) -> Option<EndError> {
        self.failure.get().copied()
    }

    /// What callers are told after a failure.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.failure().map(|failure| Refusal::new(RefusalCode::Internal, failure.to_string()))
    }

    /// Resolves when the coordinator stops, for whatever reason.
    pub(crate) async fn ended(&self) -> Result<(), EndError> {
        self.stop.cancelled().await;
        self.failure().map_or(Ok(()), Err)
    }

    /// Held by a thread whose panic is the end.
    pub(crate) fn guard(&self) -> PanicGuard {
        PanicGuard(self.clone())
    }
}

/// Tells of the panic that drops it.
pub(crate) struct PanicGuard(Life);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(EndError::Defect);
        }
    }
}
