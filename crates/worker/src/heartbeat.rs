//! Telling the coordinator that we live and how far we are; hearing what is to stop; saying hello
//! again when it does not know us, because it was restarted or has given us up.

use std::time::Duration;

use orchestrator_proto::{Refusal, RefusalCode, v1};
use tokio::time::{Instant, sleep_until};

use crate::{RegisterError, client::Client, registration::Registration, session::Session};

/// Beats without an answer after which we do not count as connected.
const SILENT: u32 = 2;

/// Beats until the session is over.
///
/// # Errors
/// When no beat was answered for `patience`, or the coordinator does not take us in again. A single
/// beat that is not answered changes nothing: the coordinator decides by its own clock who is lost.
pub(crate) async fn beat(
    client: &Client,
    registration: &Registration,
    session: &Session,
    patience: Duration,
) -> Result<(), RegisterError> {
    let mut pulse = Pulse { answered: Instant::now(), missed: 0 };
    let mut next = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = session.over() => return Ok(()),
            () = session.is_stale() => hello(registration, session, patience).await?,
            () = sleep_until(next) => {
                next = Instant::now() + session.beat();
                match once(client, session).await {
                    Ok(()) => {
                        session.is_known(true);
                        pulse = Pulse { answered: Instant::now(), missed: 0 };
                    }
                    Err(refusal) if is_over(&refusal) => {
                        tracing::warn!(%refusal, "the coordinator does not know this session");
                        session.is_known(false);
                        hello(registration, session, patience).await?;
                        pulse = Pulse { answered: Instant::now(), missed: 0 };
                    }
                    Err(refusal) => {
                        pulse.miss(registration, refusal, patience)?;
                        session.is_known(pulse.missed < SILENT);
                    }
                }
            }
        }
    }
}

async fn once(client: &Client, session: &Session) -> Result<(), Refusal> {
    let attempts = session.progress();
    let request = v1::HeartbeatRequest { session: session.id(), attempts };
    tokio::select! {
        biased;
        () = session.over() => Ok(()),
        answer = client.heartbeat(request) => {
            session.revoke(&answer?.revoked);
            Ok(())
        }
    }
}

async fn hello(
    registration: &Registration,
    session: &Session,
    patience: Duration,
) -> Result<(), RegisterError> {
    tokio::select! {
        biased;
        () = session.over() => Ok(()),
        outcome = registration.hello(session, patience) => outcome,
    }
}

/// When a beat was answered last, and how many were not since then.
struct Pulse {
    answered: Instant,
    missed: u32,
}

impl Pulse {
    fn miss(
        &mut self,
        registration: &Registration,
        refusal: Refusal,
        patience: Duration,
    ) -> Result<(), RegisterError> {
        self.missed += 1;
        if self.missed == 1 {
            tracing::warn!(%refusal, "no answer to a heartbeat; going on");
        }
        if self.answered.elapsed() < patience {
            return Ok(());
        }
        let address = registration.address.clone();
        Err(RegisterError::Unreachable { address, waited: patience, source: refusal.into() })
    }
}

/// A restarted coordinator may know the session's name no more, or know that it is over.
fn is_over(refusal: &Refusal) -> bool {
    matches!(refusal.code, RefusalCode::Stale | RefusalCode::NotFound)
}
