//! Keeps one slice's executor alive: notices its end, says why, starts another one, ever slower
//! while it does not stay, and not for ever while it does not even start.

use std::{sync::Arc, time::Duration};

use orchestrator_proto::v1::executor_client::ExecutorClient;
use orchestrator_types::FailureClass;
use tokio::time::sleep;
use tonic::transport::Channel;

use crate::{
    ExecutorError,
    backoff::doubled,
    death,
    executor::{Executor, remove_socket},
    failure::{Failure, chain},
    launch::{Launch, Recipe},
};

/// How long a process may take to be gone after its connection broke.
const DIE: Duration = Duration::from_secs(2);

/// Starts in a row that may fail; with the waits between them they take six seconds.
const MOST_FAILED_STARTS: u32 = 5;

/// One slice's executor, or the way to the next one.
#[derive(Debug)]
pub(crate) struct Supervisor {
    launch: Arc<dyn Launch>,
    recipe: Recipe,
    current: Option<Executor>,
    /// Ends and failed starts since the last unit that was computed.
    failures: u32,
    /// Failed starts since the last one that went well.
    failed_starts: u32,
}

impl Supervisor {
    /// Starts the first executor. It is worth no second try: the user is watching.
    pub(crate) async fn start(
        launch: Arc<dyn Launch>,
        recipe: Recipe,
    ) -> Result<Self, ExecutorError> {
        let current = Some(Executor::start(launch.as_ref(), &recipe).await?);
        Ok(Self { launch, recipe, current, failures: 0, failed_starts: 0 })
    }

    /// Version of libtorch in the executor, or nothing while there is none.
    pub(crate) fn libtorch(&self) -> &str {
        self.current.as_ref().map_or("", |executor| &executor.libtorch)
    }

    /// Returns when an executor is up. Drop the future to stop waiting.
    ///
    /// # Errors
    /// The last failed start, when there were too many in a row.
    pub(crate) async fn up(&mut self) -> Result<(), ExecutorError> {
        while let Err(error) = self.client().await {
            let slice = &self.recipe.slice;
            tracing::error!(%slice, tries = self.failed_starts, "no executor: {}", chain(&error));
            if self.failed_starts >= MOST_FAILED_STARTS {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The executor, or one new start of it after a wait that doubles with every failure.
    pub(crate) async fn client(&mut self) -> Result<ExecutorClient<Channel>, ExecutorError> {
        self.notice_end().await;
        if self.current.is_none() {
            if self.failures > 0 {
                sleep(doubled(self.failures)).await;
            }
            let started = Executor::start(self.launch.as_ref(), &self.recipe).await;
            self.failures += u32::from(started.is_err());
            self.failed_starts = if started.is_err() { self.failed_starts + 1 } else { 0 };
            self.current = Some(started?);
        }
        Ok(self.current.as_ref().expect("it was started above").client.clone())
    }

    /// Ends the executor, so that the next unit gets one that has computed nothing else.
    pub(crate) async fn renew(&mut self) {
        if let Some(executor) = self.current.take() {
            executor.process.end().await;
        }
    }

    /// A unit was computed: the next failure is the first one again.
    pub(crate) const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The connection broke in the middle of a unit: finds out why, and makes sure that the
    /// executor is gone.
    pub(crate) async fn post_mortem(&mut self, symptom: &str) -> Failure {
        let Some(mut executor) = self.current.take() else {
            return Failure::new(FailureClass::Crash, format!("the executor was gone: {symptom}"));
        };
        self.failures += 1;
        let status = executor.process.end_within(DIE).await;
        if status.is_none() {
            executor.process.kill().await;
        }
        let last_words = executor.process.last_words().await;
        let (class, told) = if let Some(status) = status {
            let (class, advice) = death::class(status);
            (class, format!("the executor {}{advice}{last_words}", death::how(status)))
        } else {
            let told = format!("the executor was killed: {symptom}{last_words}");
            (FailureClass::Crash, told)
        };
        tracing::warn!(slice = %self.recipe.slice, "{told}");
        Failure::new(class, told)
    }

    /// Ends the executor and removes its socket.
    pub(crate) async fn stop(mut self) {
        if let Some(executor) = self.current.take() {
            executor.process.end().await;
        }
        remove_socket(&self.recipe.socket);
    }

    async fn notice_end(&mut self) {
        let ended = self.current.as_mut().and_then(|executor| executor.process.ended());
        if ended.is_some() {
            self.post_mortem("it ended while it had nothing to do").await;
        }
    }
}
