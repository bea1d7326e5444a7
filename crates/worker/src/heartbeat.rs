//! Telling the coordinator that we live and how far we are; hearing what is to stop.

use std::time::Duration;

use orchestrator_proto::{Refusal, RefusalCode, v1};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{client::Client, session::Session};

/// Beats until the session is over, and ends it when the coordinator no longer knows it, or when no
/// beat was answered for `patience`. A single one that is not answered changes nothing: the
/// coordinator decides by its own clock who is lost.
pub(crate) async fn beat(client: &Client, session: &Session, patience: Duration) {
    let mut ticks = interval(session.beat());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut answered, mut missed) = (Instant::now(), 0_u32);
    loop {
        let answer = tokio::select! {
            biased;
            () = session.over() => return,
            answer = async {
                ticks.tick().await;
                let attempts = session.progress();
                client.heartbeat(v1::HeartbeatRequest { session: session.id(), attempts }).await
            } => answer,
        };
        match answer {
            Ok(v1::HeartbeatReply { revoked }) => {
                (answered, missed) = (Instant::now(), 0);
                session.revoke(&revoked);
            }
            Err(refusal) if is_over(&refusal) => {
                tracing::warn!(%refusal, "the coordinator no longer knows this session");
                session.end();
            }
            Err(refusal) if answered.elapsed() >= patience => {
                tracing::warn!(%refusal, ?patience, missed, "no heartbeat is answered: the session is over");
                session.end();
            }
            Err(refusal) => {
                missed += 1;
                if missed == 1 {
                    tracing::warn!(%refusal, "no answer to a heartbeat; going on");
                }
            }
        }
    }
}

/// A restarted coordinator may know the session's name no more, or know that it is over.
fn is_over(refusal: &Refusal) -> bool {
    matches!(refusal.code, RefusalCode::Stale | RefusalCode::NotFound)
}
