//! Handlers for those who look: decode, read, encode.
//!
//! What is stored is read from the store by a connection of its own, so looking never waits for the
//! driver's turns, and never holds them up; what lives in memory is one question to the driver.

use std::path::PathBuf;

use orchestrator_proto::{
    Blocking, CONTROL_TIMEOUT, PROTOCOL_MIN, PROTOCOL_VERSION, Refusal, RefusalCode,
    v1::{self, inspector_server::Inspector},
};
use orchestrator_types::RunId;
use serde::Serialize;
use tonic::{Request, Response, Status};

use crate::{
    driver::{self, DriverHandle},
    grpc::name,
    store::{Reader, StoreError},
    view::{RunLine, RunStatus, Snapshot},
};

/// Events in one answer: some hundred kilobytes.
const PAGE: u32 = 1_000;

/// What the handlers reach.
#[derive(Clone)]
pub(crate) struct Looks {
    pub driver: DriverHandle,
    pub state: PathBuf,
    pub build: String,
    pub blocking: Blocking,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Inspector for Looks {
    async fn version(&self, request: Request<v1::VersionRequest>) -> Answer<v1::VersionReply> {
        let v1::VersionRequest { protocol_version, build } = request.into_inner();
        if !(PROTOCOL_MIN..=PROTOCOL_VERSION).contains(&protocol_version) {
            let message = format!(
                "client {build} speaks protocol version {protocol_version}, and coordinator {} \
                 speaks {PROTOCOL_MIN} to {PROTOCOL_VERSION}; install the same release on both",
                self.build
            );
            return Err(Refusal::new(RefusalCode::Stale, message).into());
        }
        let (min_version, max_version) = (PROTOCOL_MIN, PROTOCOL_VERSION);
        let build = self.build.clone();
        Ok(Response::new(v1::VersionReply { min_version, max_version, build }))
    }

    async fn runs(&self, _: Request<v1::RunsRequest>) -> Answer<v1::RunsReply> {
        let snapshot = self.snapshot().await?;
        let runs = self.read(move |reader| reader.runs()).await?;
        let line = |run: crate::RunSummary| {
            let working = snapshot.runs.contains_key(&run.id);
            RunLine::new(run, working)
        };
        let runs: Vec<RunLine> = runs.into_iter().map(line).collect();
        Ok(Response::new(v1::RunsReply { runs: json(&runs)? }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusReply> {
        let run: RunId = name(&request.into_inner().run)?;
        let now = self.snapshot().await?.runs.remove(&run);
        let (asked, working) = (run.clone(), now.is_some());
        let status = self.read(move |reader| RunStatus::read(&reader, &asked, working)).await?;
        let mut status = status.ok_or_else(|| driver::unknown(&run))?;
        if let Some(now) = now {
            (status.attempts, status.waits) = (now.attempts, now.waits);
        }
        Ok(Response::new(v1::StatusReply { status: json(&status)? }))
    }

    async fn nodes(&self, _: Request<v1::NodesRequest>) -> Answer<v1::NodesReply> {
        let snapshot = self.snapshot().await?;
        Ok(Response::new(v1::NodesReply { nodes: json(&snapshot.cluster)? }))
    }

    async fn events(&self, request: Request<v1::EventsRequest>) -> Answer<v1::EventsReply> {
        let v1::EventsRequest { run, after } = request.into_inner();
        let run: RunId = name(&run)?;
        let asked = run.clone();
        let read = move |reader: Reader| {
            let known = reader.run(&asked)?.is_some();
            Ok((known, reader.events(&asked, after, PAGE)?))
        };
        let (known, events) = self.read(read).await?;
        if !known {
            return Err(driver::unknown(&run).into());
        }
        let line = |event: &crate::Recorded| {
            serde_json::to_string(event).map_err(|error| unwritable(&error))
        };
        let events = events.iter().map(line).collect::<Result<_, _>>()?;
        Ok(Response::new(v1::EventsReply { events }))
    }
}

impl Looks {
    async fn snapshot(&self) -> Result<Snapshot, Refusal> {
        self.driver.ask(CONTROL_TIMEOUT, driver::Request::Snapshot).await
    }

    /// Reads from the store, off the runtime.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let state = self.state.clone();
        Ok(self.blocking.run(move || read(Reader::open(&state)?)).await??)
    }
}

fn json<T: Serialize>(document: &T) -> Result<Vec<u8>, Refusal> {
    serde_json::to_vec(document).map_err(|error| unwritable(&error))
}

fn unwritable(error: &serde_json::Error) -> Refusal {
    Refusal::new(RefusalCode::Internal, format!("the answer cannot be written: {error}"))
}
