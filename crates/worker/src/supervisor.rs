//! Keeps one slice's executor alive: notices its end, says why, starts another one when nothing of
//! the dead one is left, ever slower while it does not stay, and not for ever while it does not even
//! start.

use std::{sync::Arc, time::Duration};

use orchestrator_host::{driver_pid, oom_kills};
use orchestrator_proto::v1::executor_client::ExecutorClient;
use orchestrator_types::{
    FailureClass,
    planted::{Bug, is_planted},
};
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use crate::{
    ExecutorError,
    backoff::doubled,
    death::{self, OomKill},
    executor::{Executor, remove_socket},
    failure::{Failure, chain},
    health::{Alarm, Watched},
    launch::{Child, Launch, Recipe},
    vacancy::{Before, Left, Verdict, judge},
};

/// How long a process may take to be gone after its connection broke.
const DIE: Duration = Duration::from_secs(2);

/// Starts in a row that may fail; with the waits between them they take six seconds.
const MOST_FAILED_STARTS: u32 = 5;

/// Time between two looks at what a dead executor leaves behind, and between two at a fenced slice.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One slice's executor, or the way to the next one.
#[derive(Debug)]
pub(crate) struct Supervisor {
    launch: Arc<dyn Launch>,
    recipe: Recipe,
    watched: Watched,
    current: Option<Executor>,
    started: Instant,
    /// What the last executor leaves behind, as long as the slice is not known to be free of it.
    remains: Option<Remains>,
    before: Before,
    /// Kills for want of memory that were counted before the unit at hand.
    oom_kills: Option<u64>,
    /// Ends and failed starts since the last unit that was computed.
    failures: u32,
    /// Failed starts since the last one that went well.
    failed_starts: u32,
}

/// A dead executor, or one that should be.
#[derive(Debug)]
struct Remains {
    process: Box<dyn Child>,
    killed: Instant,
    /// When nothing was left of the process.
    gone: Option<Instant>,
}

impl Supervisor {
    /// Starts the first executor. It is worth no second try: the user is watching.
    pub(crate) async fn start(
        launch: Arc<dyn Launch>,
        recipe: Recipe,
        watched: Watched,
    ) -> Result<Self, ExecutorError> {
        let mut supervisor = Self {
            launch,
            recipe,
            watched,
            current: None,
            started: Instant::now(),
            remains: None,
            before: Before::default(),
            oom_kills: oom_kills(),
            failures: 0,
            failed_starts: 0,
        };
        supervisor.launch().await?;
        Ok(supervisor)
    }

    /// Version of libtorch in the executor, or nothing while there is none.
    pub(crate) fn libtorch(&self) -> &str {
        self.current.as_ref().map_or("", |executor| &executor.libtorch)
    }

    /// Returns when an executor is up. Drop the future to stop waiting.
    ///
    /// # Errors
    /// The last failed start, when there were too many in a row; [`ExecutorError::Fenced`] when none
    /// may be started.
    pub(crate) async fn up(&mut self) -> Result<(), ExecutorError> {
        while let Err(error) = self.client().await {
            if matches!(error, ExecutorError::Fenced { .. }) {
                return Err(error);
            }
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
        if let Some(why) = self.watched.fault() {
            self.retire().await;
            return Err(ExecutorError::Fenced { why });
        }
        if self.current.is_none() {
            self.vacate().await?;
            if self.failures > 0 {
                sleep(doubled(self.failures)).await;
            }
            self.launch().await?;
        }
        self.oom_kills = oom_kills();
        Ok(self.current.as_ref().expect("it was started above").client.clone())
    }

    /// Ends the executor, so that the next unit gets one that has computed nothing else.
    pub(crate) async fn renew(&mut self) {
        if let Some(mut executor) = self.current.take() {
            executor.process.end().await;
            self.bury(executor.process);
        }
    }

    /// A unit was computed: the next failure is the first one again.
    pub(crate) const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Waits until the executor at hand must not go on; else for ever.
    pub(crate) fn alarm(&self) -> impl Future<Output = Alarm> + use<> {
        self.watched.alarm(self.started)
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
        let oom_kill = OomKill::between(self.oom_kills, oom_kills());
        let last_words = executor.process.last_words().await;
        self.bury(executor.process);
        let (class, told) = if let Some(status) = status {
            let (class, advice) = death::class(status, oom_kill);
            (class, format!("the executor {}{advice}{last_words}", death::how(status)))
        } else {
            let told = format!("the executor was killed: {symptom}{last_words}");
            (FailureClass::Crash, told)
        };
        tracing::warn!(slice = %self.recipe.slice, "{told}");
        self.excuse(Failure::new(class, told)).await
    }

    /// Kills the executor because of the alarm.
    pub(crate) async fn condemn(&mut self, alarm: Alarm) -> Failure {
        if let Some(mut executor) = self.current.take() {
            executor.process.kill().await;
            self.bury(executor.process);
            self.failures += 1;
        }
        let (class, why) = match alarm {
            Alarm::Application(why) => (FailureClass::Crash, why),
            Alarm::Fault(why) => (FailureClass::Infrastructure, why),
        };
        let (device, slice) = (&self.recipe.device, &self.recipe.slice);
        tracing::warn!(%slice, %device, "the executor was killed: {why}");
        Failure::new(class, format!("the executor was killed because of {device}: {why}"))
    }

    /// The failure of a unit, and no longer the unit's if its GPU is found to be at fault.
    pub(crate) async fn excuse(&self, failure: Failure) -> Failure {
        let Failure { class, message } = failure;
        if !matches!(class, FailureClass::Crash | FailureClass::Internal) {
            return Failure { class, message };
        }
        match self.watched.explanation().await {
            Some(why) => {
                let message = format!("{message}; {} is at fault: {why}", self.recipe.device);
                Failure::new(FailureClass::Infrastructure, message)
            }
            None => Failure { class, message },
        }
    }

    /// Ends the executor and removes its socket. Another one may be started later.
    pub(crate) async fn retire(&mut self) {
        if let Some(mut executor) = self.current.take() {
            executor.process.end().await;
            self.bury(executor.process);
        }
        remove_socket(&self.recipe.socket);
    }

    /// Returns when a fenced slice may be used again, which may be never.
    pub(crate) async fn regained(&mut self) {
        while self.watched.fault().is_some() || self.look() != Verdict::Free {
            self.watched.request();
            sleep(LOOK_AGAIN).await;
        }
        self.forget_remains();
        tracing::info!(slice = %self.recipe.slice, "the slice is free again");
    }

    async fn launch(&mut self) -> Result<(), ExecutorError> {
        if self.before.used.is_none() {
            self.before.used = self.watched.usage().map(|usage| usage.used_bytes);
        }
        let started = Executor::start(self.launch.as_ref(), &self.recipe).await;
        self.failures += u32::from(started.is_err());
        self.failed_starts = if started.is_err() { self.failed_starts + 1 } else { 0 };
        self.current = Some(started?);
        self.started = Instant::now();
        // From now on NVML may list it.
        self.watched.request();
        Ok(())
    }

    /// From now on the slice is not free until the process is gone and the device's memory, too.
    fn bury(&mut self, process: Box<dyn Child>) {
        self.before.listed = self.listed(process.as_ref());
        self.remains = Some(Remains { process, killed: Instant::now(), gone: None });
    }

    /// The pid by which NVML last listed the process, if it did: it lists pids of the host.
    fn listed(&self, process: &dyn Child) -> Option<u32> {
        let pid = process.number().filter(|_| driver_pid().is_some())?;
        let processes = self.watched.usage()?.processes?;
        processes.iter().any(|process| process.pid == pid).then_some(pid)
    }

    fn look(&mut self) -> Verdict {
        let Some(Remains { process, killed, gone }) = &mut self.remains else {
            return Verdict::Free;
        };
        if gone.is_none() && process.is_gone() {
            *gone = Some(Instant::now());
        }
        let left = match *gone {
            None => Left::Process(killed.elapsed()),
            Some(gone) => Left::Device(gone.elapsed(), self.watched.usage_since(gone)),
        };
        judge(&left, self.before)
    }

    /// Waits until nothing is left of the last executor.
    async fn vacate(&mut self) -> Result<(), ExecutorError> {
        while !is_planted(Bug::SliceFreedOnSuspicion) {
            match self.look() {
                Verdict::Free => break,
                Verdict::Wait => {
                    self.watched.request();
                    sleep(LOOK).await;
                }
                Verdict::Fence(held) => {
                    return Err(ExecutorError::Fenced { why: held.to_string() });
                }
            }
        }
        self.forget_remains();
        Ok(())
    }

    fn forget_remains(&mut self) {
        self.remains = None;
        // Where pids tell what is free, others may have taken more meanwhile. Elsewhere the first
        // figure stays: step by step a leak would hide in the play.
        if self.before.listed.take().is_some() {
            self.before.used = None;
        }
    }

    async fn notice_end(&mut self) {
        let ended = self.current.as_mut().and_then(|executor| executor.process.ended());
        if ended.is_some() {
            self.post_mortem("it ended while it had nothing to do").await;
        }
    }
}
