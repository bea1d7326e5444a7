//! What leaves at the end of a turn, and only then: replies and events.

use std::sync::Arc;

use orchestrator_proto::Refusal;
use tokio::sync::broadcast;

use super::Reply;
use crate::{event::Live, metrics::Metrics};

/// See the module's documentation.
pub(super) struct Outbox {
    replies: Vec<Box<dyn FnOnce() + Send>>,
    events: Vec<Live>,
    live: broadcast::Sender<Arc<Live>>,
    metrics: Metrics,
}

impl Outbox {
    pub(super) fn new(live: broadcast::Sender<Arc<Live>>) -> Self {
        Self { replies: Vec::new(), events: Vec::new(), live, metrics: Metrics::default() }
    }

    pub(super) fn measured(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    pub(super) fn reply<T: Send + 'static>(&mut self, to: Reply<T>, answer: Result<T, Refusal>) {
        // A caller that has gone away asks again with the same id.
        self.replies.push(Box::new(move || drop(to.send(answer))));
    }

    pub(super) fn tell(&mut self, event: Live) {
        self.events.push(event);
    }

    /// Events first: who gets a reply finds its event told.
    pub(super) fn deliver(&mut self) {
        for event in self.events.drain(..) {
            if let Live::Recorded(run, recorded) = &event {
                self.metrics.happened(&recorded.event);
                recorded.event.log(run);
            }
            // Nobody watching is no error.
            drop(self.live.send(Arc::new(event)));
        }
        for reply in self.replies.drain(..) {
            reply();
        }
    }

    pub(super) fn clear(&mut self) {
        self.replies.clear();
        self.events.clear();
    }
}
