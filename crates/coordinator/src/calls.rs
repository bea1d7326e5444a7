//! How many calls are in work at once. Beyond that callers are told to come again, before their
//! messages are read.
//!
//! Invariant: what keeps workers alive (hello, heartbeats, goodbye) never waits behind what others
//! ask for; only the driver's own queue bounds it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use orchestrator_proto::{Refusal, RefusalCode};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tonic::{Request, Status, body::Body, codegen::http};
use tower::{Layer, Service};

use crate::metrics::Metrics;

/// How long a call waits for its place: longer than a burst, shorter than a caller's patience.
const QUEUED: Duration = Duration::from_secs(1);

/// How many calls are in work at once, by what they cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Calls that only talk: each may bring a message of 8 MiB, and most bring a few kilobytes. A
    /// thousand workers commit at once, and one transaction takes them all.
    pub talks: usize,
    /// Blobs and files on their way: each holds up to 4 MiB.
    pub transfers: usize,
    /// Calls that wait for work, and watchers: each holds next to nothing, and takes long.
    pub waits: usize,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self { talks: 1_024, transfers: 64, waits: 4_096 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Talk,
    Transfer,
    Wait,
}

/// What a call costs; `None`: it keeps a worker alive.
fn kind(path: &str) -> Option<Kind> {
    match path.strip_prefix("/orchestrator.v1.Coordinator/") {
        Some("Register" | "Heartbeat" | "Goodbye") => None,
        Some("Stage" | "Fetch" | "Results") => Some(Kind::Transfer),
        Some("Lease" | "Watch") => Some(Kind::Wait),
        _ => Some(Kind::Talk),
    }
}

/// A call's place among those in work; whoever answers in the background keeps it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Place {
    /// The place of this call.
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }
}

/// The layer around every service. Its copies count together.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    talks: Gate,
    transfers: Gate,
    waits: Gate,
    metrics: Metrics,
}

#[derive(Clone, Debug)]
struct Gate {
    limit: usize,
    places: Arc<Semaphore>,
}

impl Gate {
    fn new(limit: usize) -> Self {
        Self { limit, places: Arc::new(Semaphore::new(limit)) }
    }
}

impl Admission {
    pub(crate) fn new(limits: CallLimits, metrics: Metrics) -> Self {
        let CallLimits { talks, transfers, waits } = limits;
        let (talks, transfers, waits) = (Gate::new(talks), Gate::new(transfers), Gate::new(waits));
        Self { talks, transfers, waits, metrics }
    }

    /// A place for a call, as soon as there is one.
    async fn admit(&self, path: &str) -> Result<Place, Refusal> {
        let gate = match kind(path) {
            None => return Ok(Place::default()),
            Some(Kind::Talk) => &self.talks,
            Some(Kind::Transfer) => &self.transfers,
            Some(Kind::Wait) => &self.waits,
        };
        let place = timeout(QUEUED, Arc::clone(&gate.places).acquire_owned()).await;
        if let Ok(Ok(permit)) = place {
            return Ok(Place { _permit: Some(Arc::new(permit)) });
        }
        self.metrics.call_shed();
        let message = format!(
            "the coordinator has {} calls of this kind in work, as many as it takes; try again",
            gate.limit
        );
        Err(Refusal::new(RefusalCode::Overloaded, message))
    }
}

impl<S> Layer<S> for Admission {
    type Service = Admitted<S>;

    fn layer(&self, service: S) -> Admitted<S> {
        Admitted { admission: self.clone(), service }
    }
}

/// A service whose calls need a place.
#[derive(Clone, Debug)]
pub(crate) struct Admitted<S> {
    admission: Admission,
    service: S,
}

type Answering<E> = Pin<Box<dyn Future<Output = Result<http::Response<Body>, E>> + Send>>;

impl<S> Service<http::Request<Body>> for Admitted<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let admission = self.admission.clone();
        // The one that is ready is used up.
        let fresh = self.service.clone();
        let mut service = std::mem::replace(&mut self.service, fresh);
        Box::pin(async move {
            let place = match admission.admit(request.uri().path()).await {
                Ok(place) => place,
                Err(refusal) => return Ok(Status::from(refusal).into_http()),
            };
            request.extensions_mut().insert(place.clone());
            let answer = service.call(request).await;
            drop(place);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/orchestrator.v1.Coordinator";

    #[tokio::test(start_paused = true)]
    async fn a_place_is_waited_for_and_then_refused_and_what_keeps_workers_alive_needs_none() {
        let limits = CallLimits { talks: 1, transfers: 1, waits: 1 };
        let admission = Admission::new(limits, Metrics::default());
        let held = admission.admit(&format!("{PREFIX}/Stage")).await.unwrap();
        for path in ["Fetch", "Results"] {
            let refusal = admission.admit(&format!("{PREFIX}/{path}")).await.unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Overloaded);
            assert!(refusal.message.contains("has 1 calls of this kind"), "{refusal}");
        }
        let _watch = admission.admit(&format!("{PREFIX}/Watch")).await.unwrap();
        let _question = admission.admit("/orchestrator.v1.Inspector/Nodes").await.unwrap();
        for path in ["Register", "Heartbeat", "Goodbye"] {
            admission.admit(&format!("{PREFIX}/{path}")).await.unwrap();
        }
        let path = format!("{PREFIX}/Fetch");
        let waiting = admission.admit(&path);
        let later = async {
            tokio::time::sleep(QUEUED / 2).await;
            drop(held);
        };
        tokio::join!(async { waiting.await.unwrap() }, later);
        assert!(admission.metrics.text().contains("orchestrator_calls_shed_total 2"));
    }
}
