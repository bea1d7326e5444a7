//! Following a run: what is stored, then what happens, without a gap and without a double.
//!
//! Subscribing comes before reading, so nothing falls between the two; sequences tell what was
//! sent already; a watcher that is too slow for the live channel reads the store again.

use std::{path::PathBuf, sync::Arc, time::Duration};

use orchestrator_proto::{Blocking, Refusal, RefusalCode, v1};
use orchestrator_tls::{CONNECTION_AGE, CONNECTION_LIFE};
use orchestrator_types::RunId;
use tokio::{
    sync::{broadcast, mpsc},
    time::timeout,
};
use tonic::Status;

use crate::{
    event::{Live, Recorded, progress_to_wire, recorded_to_wire},
    life::Life,
    store::{Reader, StoreError},
};

/// Events read from the store at once.
const PAGE: u32 = 1_000;
/// Events that a watcher may be behind the network: one page of a log.
pub(crate) const EVENTS_AHEAD: usize = 256;

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let code = match error {
            StoreError::Missing { .. } => RefusalCode::NotFound,
            _ if error.unwritable().is_some() => RefusalCode::Unavailable,
            _ => RefusalCode::Internal,
        };
        crate::refusal(code, &error)
    }
}

type Sender = mpsc::Sender<Result<v1::RunEvent, Status>>;

/// One watcher of one run.
pub(crate) struct Watcher {
    pub state: PathBuf,
    pub run: RunId,
    /// Last sequence that the watcher has.
    pub after: u64,
    pub live: broadcast::Receiver<Arc<Live>>,
    pub sender: Sender,
    pub blocking: Blocking,
}

/// A watcher asks again after this. A stream that begins in the last moment in which its connection takes
/// one must be over before the connection is.
const TURN: Duration = Duration::from_mins(4);
const _: () = assert!(TURN.as_secs() < CONNECTION_LIFE.as_secs() - CONNECTION_AGE.as_secs());

/// The watcher has gone away, or everything was told.
struct Done;

impl Watcher {
    /// Tells everything until the run has ended, the watcher goes away, its turn is over, or the
    /// coordinator ends; if that is a failure, it is told too.
    pub(crate) async fn work_until(self, life: Life) {
        let sender = self.sender.clone();
        let turn = timeout(TURN, self.work());
        let told = life.stop().run_until_cancelled(turn).await;
        if let (None, Some(refusal)) = (told, life.refusal()) {
            // A watcher that has gone away needs no reason.
            drop(sender.send(Err(refusal.into())).await);
        }
    }

    async fn work(mut self) {
        if self.catch_up().await.is_err() {
            return;
        }
        loop {
            let told = match self.live.recv().await {
                Ok(live) if *live.run() == self.run => self.tell(&live).await,
                Ok(_) => Ok(()),
                Err(broadcast::error::RecvError::Lagged(_)) => self.catch_up().await,
                Err(broadcast::error::RecvError::Closed) => return,
            };
            if told.is_err() {
                return;
            }
        }
    }

    async fn tell(&mut self, live: &Live) -> Result<(), Done> {
        match live {
            Live::Progress(_, at, progress) => self.send(progress_to_wire(*at, *progress)).await,
            Live::Recorded(_, recorded) if recorded.sequence <= self.after => Ok(()),
            Live::Recorded(_, recorded) if recorded.sequence == self.after + 1 => {
                let end = recorded.event.is_end();
                self.tell_recorded(recorded.clone()).await?;
                if end { Err(Done) } else { Ok(()) }
            }
            Live::Recorded(..) => self.catch_up().await,
        }
    }

    /// Sends what is stored; `Err` after the event that ended the run.
    async fn catch_up(&mut self) -> Result<(), Done> {
        loop {
            let page = match self.page().await {
                Ok(page) => page,
                Err(refusal) => {
                    // A watcher that has gone away needs no reason.
                    drop(self.sender.send(Err(refusal.into())).await);
                    return Err(Done);
                }
            };
            let Page { events, ended } = page;
            let more = events.len() == PAGE as usize;
            for event in events {
                self.tell_recorded(event).await?;
            }
            if ended.is_some_and(|ended| ended <= self.after) {
                return Err(Done);
            }
            if !more {
                return Ok(());
            }
        }
    }

    async fn page(&self) -> Result<Page, Refusal> {
        let (state, run, after) = (self.state.clone(), self.run.clone(), self.after);
        let read = move || {
            let reader = Reader::open(&state)?;
            // First where the run ends, then its events: an end that is known is in them.
            let summary = reader.run(&run)?.ok_or_else(|| crate::driver::unknown(&run))?;
            let events = reader.events(&run, after, PAGE)?;
            Ok(Page { events, ended: summary.ended_sequence })
        };
        self.blocking.run(read).await?
    }

    async fn tell_recorded(&mut self, recorded: Recorded) -> Result<(), Done> {
        self.after = recorded.sequence;
        self.send(recorded_to_wire(recorded)).await
    }

    async fn send(&self, event: v1::RunEvent) -> Result<(), Done> {
        self.sender.send(Ok(event)).await.map_err(|_| Done)
    }
}

struct Page {
    events: Vec<Recorded>,
    /// The event that ended the run.
    ended: Option<u64>,
}

#[cfg(test)]
mod tests {
    use orchestrator_plan::Inventory;

    use super::*;
    use crate::{fixtures, store::Store};

    /// It ends in order, so that whoever follows asks again and is told nothing of a fault.
    #[tokio::test(start_paused = true)]
    async fn a_watchers_turn_ends_without_an_error() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let inventory = Inventory { slices: vec![fixtures::offer("n", 0)] };
        let submission = fixtures::submitted("r", &inventory).submission;
        store.insert_run(&submission, 1).unwrap();
        let (_told, live) = broadcast::channel(1);
        let (sender, mut heard) = mpsc::channel(1);
        let watcher = Watcher {
            state: state.path().to_owned(),
            run: submission.id,
            after: 0,
            live,
            sender,
            blocking: Blocking::Inline,
        };
        let begun = tokio::time::Instant::now();
        watcher.work_until(Life::default()).await;
        assert_eq!(begun.elapsed(), TURN);
        assert!(heard.recv().await.is_none());
    }
}
