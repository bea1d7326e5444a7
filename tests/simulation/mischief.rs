//! Somebody who sends again what was sent before, or too early: commits of units that are long done
//! or whose blob is not here yet, with lies in some, failures and heartbeats of somebody else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use orchestrator_proto::{
    connect_by,
    v1::{self, coordinator_client::CoordinatorClient},
};
use tokio::time::{sleep, timeout};

use crate::{
    executor::{Computed, Executors},
    network,
    random::Random,
};

const CALL: Duration = Duration::from_secs(3);

/// Sends as many messages as are asked for, for ever.
pub(crate) async fn mischief(
    replays: Arc<AtomicI64>,
    executors: Executors,
    seed: u64,
) -> turmoil::Result {
    let mut random = Random::new(seed ^ 0x0B5E);
    loop {
        sleep(Duration::from_millis(50)).await;
        if replays.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let connected = timeout(CALL, connect_by(&network::dial(), network::ADDRESS)).await;
        let Ok(Ok(channel)) = connected else { continue };
        let mut client = CoordinatorClient::new(channel);
        let Some(computed) = executors.some_result(&mut random) else { continue };
        let session = executors.some_session(&mut random).unwrap_or_default();
        replays.fetch_sub(1, Ordering::Relaxed);
        // What is answered does not matter: what it does is checked by everything else.
        drop(timeout(CALL, send(&mut client, computed, session, &mut random)).await);
    }
}

async fn send(
    client: &mut CoordinatorClient<tonic::transport::Channel>,
    computed: Computed,
    session: String,
    random: &mut Random,
) -> Result<(), tonic::Status> {
    let Computed { session: own, finished } = computed;
    let (run, unit, token) = (finished.run.clone(), finished.unit, finished.token);
    match random.within(0..7) {
        // Whoever computed it, twice, and perhaps before its blob is here.
        0 | 1 => {
            let finished = vec![finished.clone(), finished];
            client.commit(v1::CommitRequest { session: own, finished }).await.map(drop)
        }
        2 => client.commit(v1::CommitRequest { session, finished: vec![finished] }).await.map(drop),
        3 => {
            let mut lie = finished;
            if let Some(result) = &mut lie.result {
                result.rows += 1;
            }
            let session = "nobody".to_owned();
            client.commit(v1::CommitRequest { session, finished: vec![lie] }).await.map(drop)
        }
        4 => {
            let class = v1::FailureClass::Crash.into();
            let failure = Some(v1::Failure { class, message: "replayed".to_owned() });
            let session = "nobody".to_owned();
            client.fail(v1::FailRequest { session, run, unit, token, failure }).await.map(drop)
        }
        5 => {
            let attempts = vec![v1::AttemptProgress { token, done: 1, total: 4 }];
            let session = "nobody".to_owned();
            client.heartbeat(v1::HeartbeatRequest { session, attempts }).await.map(drop)
        }
        _ => {
            // Another unit's token: it must not pass for this one's.
            let other = v1::Finished { unit: unit + 1, ..finished };
            client.commit(v1::CommitRequest { session, finished: vec![other] }).await.map(drop)
        }
    }
}
