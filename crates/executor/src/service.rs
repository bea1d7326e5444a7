//! The gRPC side: messages in, jobs out, updates back.

use std::pin::Pin;

use orchestrator_engine::libtorch_version;
use orchestrator_proto::{
    PROTOCOL_VERSION, Refusal, RefusalCode,
    domain::Assignment,
    v1::{self, executor_server::Executor},
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use crate::{attempt::Update, execute::Job};

/// Updates on their way to a listener: a second of progress.
const WAITING_UPDATES: usize = 10;

/// The service.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) build: String,
    pub(crate) jobs: mpsc::Sender<Job>,
}

#[tonic::async_trait]
impl Executor for Service {
    async fn describe(
        &self,
        _: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeReply>, Status> {
        Ok(Response::new(v1::DescribeReply {
            protocol_version: PROTOCOL_VERSION,
            build: self.build.clone(),
            libtorch: libtorch_version().to_owned(),
            pid: std::process::id(),
        }))
    }

    type ExecuteStream = Pin<Box<dyn Stream<Item = Result<v1::ExecuteEvent, Status>> + Send>>;

    async fn execute(
        &self,
        request: Request<v1::ExecuteRequest>,
    ) -> Result<Response<Self::ExecuteStream>, Status> {
        let v1::ExecuteRequest { assignment } = request.into_inner();
        let missing =
            || Refusal::new(RefusalCode::Invalid, "invalid message: assignment is missing");
        let assignment = Assignment::try_from(assignment.ok_or_else(missing)?)?;
        let (updates, events) = mpsc::channel(WAITING_UPDATES);
        let stopping = |_| Refusal::new(RefusalCode::Unavailable, "the executor is stopping");
        self.jobs.send(Job { assignment, updates }).await.map_err(stopping)?;
        Ok(Response::new(Box::pin(ReceiverStream::new(events).map(|update| Ok(event(update))))))
    }
}

fn event(update: Update) -> v1::ExecuteEvent {
    use v1::execute_event::Event;
    let event = match update {
        Update::Progress { done, total } => Event::Progress(v1::Progress { done, total }),
        Update::Result(result) => Event::Result((*result).into()),
        Update::Failure { class, message } => {
            Event::Failure(v1::Failure { class: v1::FailureClass::from(class).into(), message })
        }
    };
    v1::ExecuteEvent { event: Some(event) }
}
