//! The client: submits, follows the run to its end whatever happens, and fetches the report. What it
//! is told on the way is checked: events have no gap and no double, tokens grow, a unit is committed
//! once, and after the end nothing but late results is told.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use orchestrator_proto::{
    MESSAGE_LIMIT_BYTES, connect_by,
    v1::{self, coordinator_client::CoordinatorClient, run_event::Kind},
};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use crate::{job, network};

/// Longest that a call may take in a network that cuts.
const CALL: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(200);

/// What the client has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Story>>);

/// See [`Seen`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Story {
    /// Events by number, as text.
    pub(crate) events: BTreeMap<u64, String>,
    /// Units that were told to be committed: from then on they stay.
    pub(crate) committed: BTreeSet<u32>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    last_token: u64,
    ended: Option<i32>,
    pub(crate) report: Option<String>,
}

impl Seen {
    pub(crate) fn story(&self) -> MutexGuard<'_, Story> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Story {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn take(&mut self, event: v1::RunEvent) {
        let v1::RunEvent { sequence, kind, at_unix_ms, .. } = event;
        let kind = kind.expect("an event says something");
        if sequence == 0 {
            return;
        }
        let next = self.events.last_key_value().map_or(1, |(last, _)| last + 1);
        assert_eq!(sequence, next, "events are told once, without a gap");
        let open = self.ended.is_none();
        match &kind {
            Kind::UnitLeased(leased) => {
                assert!(open, "nothing is granted after the end");
                assert!(leased.token > self.last_token, "I3: tokens grow");
                self.last_token = leased.token;
                self.count("leased");
            }
            Kind::UnitCommitted(committed) => {
                assert!(open, "nothing is committed after the end");
                assert!(self.committed.insert(committed.unit), "I1: committed twice");
                self.count("committed");
            }
            Kind::UnitFailed(_) => self.count("failed"),
            Kind::WorkerLost(_) => self.count("lost"),
            Kind::LateResult(_) => self.count("fenced"),
            Kind::Divergence(_) => self.count("diverged"),
            Kind::SampleQuarantined(_) => self.count("quarantined"),
            Kind::StateChanged(changed) => {
                let running = changed.state == i32::from(v1::RunState::Running);
                assert!(open, "I6: an ended run stays ended");
                self.ended = (!running).then_some(changed.state);
            }
            Kind::Progress(_) => {}
        }
        self.events.insert(sequence, format!("{at_unix_ms} {kind:?}"));
    }
}

/// Returns when the run has ended and its report is here.
pub(crate) async fn evaluate(seen: Seen) {
    patiently(async |client| client.submit(job::submission()).await.map(drop)).await;
    while seen.story().ended.is_none() {
        let seen = &seen;
        patiently(async |client| follow(client, seen).await).await;
    }
    let report = patiently(async |client| fetch(client).await).await;
    seen.story().report = Some(report);
}

/// Calls until it is answered, with a connection of its own each time.
async fn patiently<T>(
    call: impl AsyncFn(&mut CoordinatorClient<Channel>) -> Result<T, tonic::Status>,
) -> T {
    loop {
        let connected = timeout(CALL, connect_by(&network::dial(), network::ADDRESS)).await;
        if let Ok(Ok(channel)) = connected {
            let mut client = CoordinatorClient::new(channel)
                .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
                .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
            if let Ok(Ok(answer)) = timeout(CALL, call(&mut client)).await {
                return answer;
            }
        }
        sleep(PAUSE).await;
    }
}

/// Follows until the connection breaks, or for a while.
async fn follow(client: &mut CoordinatorClient<Channel>, seen: &Seen) -> Result<(), tonic::Status> {
    let after = seen.story().events.last_key_value().map_or(0, |(last, _)| *last);
    let request = v1::WatchRequest { run: job::RUN.to_owned(), after };
    let mut events = client.watch(request).await?.into_inner();
    // A broken connection may look like silence.
    while let Ok(Ok(Some(event))) = timeout(CALL / 2, events.message()).await {
        seen.story().take(event);
    }
    Ok(())
}

async fn fetch(client: &mut CoordinatorClient<Channel>) -> Result<String, tonic::Status> {
    let files = vec!["report.json".to_owned()];
    let request = v1::ResultsRequest { run: job::RUN.to_owned(), files };
    let mut chunks = client.results(request).await?.into_inner();
    let mut text = Vec::new();
    while let Some(chunk) = chunks.message().await? {
        text.extend(chunk.data);
    }
    String::from_utf8(text).map_err(|error| tonic::Status::data_loss(error.to_string()))
}
