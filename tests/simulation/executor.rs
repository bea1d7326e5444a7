//! The stand-in for executors: it takes time, tells progress, reads its inputs, dies when it is told
//! to, and gives the result that an honest executor would give.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    pin::Pin,
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use orchestrator_proto::{
    Dial, INLINE_LIMIT_BYTES, PROTOCOL_VERSION, Refusal, RefusalCode, Stream, connect_by,
    domain::Assignment,
    server,
    v1::{
        self,
        executor_server::{Executor, ExecutorServer},
    },
};
use orchestrator_types::SliceId;
use orchestrator_worker::{Child, Later, Launch, Recipe};
use tokio::{
    io::DuplexStream,
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, transport::Channel};

use crate::{
    job::{self, Flaws},
    random::Random,
};

/// Steps in which a unit is computed.
const STEPS: u64 = 4;
const PIPE_BYTES: usize = 1 << 20;

/// Executors of all hosts, for whoever wants to kill one, and what they were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Executors(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Of the executor that was started last, by slice.
    switches: BTreeMap<SliceId, watch::Sender<Option<i32>>>,
    /// Units that were computed, with their results.
    done: Vec<v1::Finished>,
}

impl Executors {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the executor of a slice, if it lives.
    pub(crate) fn kill(&self, slice: &SliceId) -> bool {
        let state = self.state();
        let Some(switch) = state.switches.get(slice) else { return false };
        switch.send_if_modified(|dead| dead.replace(9).is_none())
    }

    /// A unit that was computed at some time, as its commit named it.
    pub(crate) fn some_result(&self, random: &mut Random) -> Option<v1::Finished> {
        let state = self.state();
        (!state.done.is_empty()).then(|| random.pick(&state.done).clone())
    }
}

/// Starts stand-ins.
#[derive(Clone, Debug)]
pub(crate) struct Pretend {
    pub(crate) executors: Executors,
    pub(crate) flaws: Flaws,
    pub(crate) seed: u64,
    pub(crate) build: String,
    /// The way to the one that was started last, by slice.
    pub(crate) doors: Arc<Mutex<BTreeMap<SliceId, mpsc::Sender<DuplexStream>>>>,
}

impl Launch for Pretend {
    fn spawn<'a>(&'a self, recipe: &'a Recipe) -> Later<'a, io::Result<Box<dyn Child>>> {
        Box::pin(async move {
            let (door, callers) = mpsc::channel::<DuplexStream>(8);
            let (switch, dead) = watch::channel(None);
            let slice = recipe.slice.clone();
            self.executors.state().switches.insert(slice.clone(), switch.clone());
            self.doors.lock().unwrap_or_else(PoisonError::into_inner).insert(slice, door);
            let desk = Desk {
                blobs: recipe.blobs.clone(),
                executors: self.executors.clone(),
                flaws: self.flaws,
                seed: self.seed,
                build: self.build.clone(),
                switch: switch.clone(),
            };
            let callers = ReceiverStream::new(callers).map(Ok::<_, io::Error>);
            let serving = async move {
                let service = ExecutorServer::new(desk);
                let served = server().add_service(service).serve_with_incoming(callers).await;
                assert!(served.is_ok(), "a made-up network does not fail: {served:?}");
            };
            let mut gone = dead.clone();
            let task = tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = serving => {}
                    _ = gone.wait_for(Option::is_some) => {}
                }
            });
            let child = Pretended { dead, switch, _task: AbortOnDropHandle::new(task) };
            Ok(Box::new(child) as Box<dyn Child>)
        })
    }

    fn connect<'a>(&'a self, recipe: &'a Recipe) -> Later<'a, Option<Channel>> {
        let doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        let door = doors.get(&recipe.slice).cloned();
        Box::pin(async move {
            let door = door?;
            let dial = Dial::With(Arc::new(move |_| {
                let door = door.clone();
                Box::pin(async move {
                    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
                    door.send(theirs).await.map_err(io::Error::other)?;
                    Ok(Box::new(ours) as Box<dyn Stream>)
                })
            }));
            connect_by(&dial, "http://executor.local").await.ok()
        })
    }
}

#[derive(Debug)]
struct Pretended {
    dead: watch::Receiver<Option<i32>>,
    switch: watch::Sender<Option<i32>>,
    _task: AbortOnDropHandle<()>,
}

impl Child for Pretended {
    fn number(&self) -> Option<u32> {
        None
    }

    fn is_gone(&mut self) -> bool {
        self.dead.borrow().is_some()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.dead.borrow().map(ExitStatus::from_raw)
    }

    fn end_within(&mut self, limit: Duration) -> Later<'_, Option<ExitStatus>> {
        Box::pin(async move {
            let ended = timeout(limit, self.dead.wait_for(Option::is_some)).await.ok()?;
            ended.ok()?.map(ExitStatus::from_raw)
        })
    }

    fn last_words(&mut self) -> Later<'_, String> {
        Box::pin(async { String::new() })
    }

    fn end(&mut self) -> Later<'_, ()> {
        self.switch.send_replace(Some(0));
        Box::pin(async {})
    }

    fn kill(&mut self) -> Later<'_, ()> {
        self.switch.send_replace(Some(9));
        Box::pin(async {})
    }
}

/// One stand-in.
#[derive(Clone, Debug)]
struct Desk {
    blobs: PathBuf,
    executors: Executors,
    flaws: Flaws,
    seed: u64,
    build: String,
    switch: watch::Sender<Option<i32>>,
}

impl Desk {
    async fn compute(self, assignment: Assignment, events: mpsc::Sender<v1::ExecuteEvent>) {
        use v1::execute_event::Event;
        let mut random = Random::new(self.seed ^ assignment.token.0);
        let step = random.millis(10..120);
        for done in 1..=STEPS {
            sleep(step).await;
            let progress = v1::Progress { done, total: STEPS };
            let event = v1::ExecuteEvent { event: Some(Event::Progress(progress)) };
            if events.send(event).await.is_err() {
                return;
            }
        }
        if job::kills(&assignment, self.flaws) {
            self.switch.send_replace(Some(9));
            return;
        }
        let last = match self.result(&assignment) {
            Ok(result) => Event::Result(result),
            Err(error) => Event::Failure(v1::Failure {
                class: v1::FailureClass::Internal.into(),
                message: error.to_string(),
            }),
        };
        // Whoever hears it no more needs no result.
        drop(events.send(v1::ExecuteEvent { event: Some(last) }).await);
    }

    fn result(&self, assignment: &Assignment) -> io::Result<v1::UnitResult> {
        let (result, bytes) = job::output(assignment, &self.blobs, self.flaws)?;
        fs::write(self.blobs.join(result.blob.digest.to_string()), &bytes)?;
        let small = (bytes.len() as u64) < INLINE_LIMIT_BYTES;
        let result = v1::UnitResult::from(result);
        // As its agent would hand it in.
        let handed = v1::UnitResult { inline_blob: small.then_some(bytes), ..result.clone() };
        let finished = v1::Finished {
            run: assignment.run.to_string(),
            unit: assignment.unit.0,
            token: assignment.token.0,
            result: Some(handed),
        };
        self.executors.state().done.push(finished);
        Ok(result)
    }
}

#[tonic::async_trait]
impl Executor for Desk {
    async fn describe(
        &self,
        _: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeReply>, Status> {
        Ok(Response::new(v1::DescribeReply {
            protocol_version: PROTOCOL_VERSION,
            build: self.build.clone(),
            libtorch: "none".to_owned(),
            pid: 0,
        }))
    }

    type ExecuteStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::ExecuteEvent, Status>> + Send>>;

    async fn execute(
        &self,
        request: Request<v1::ExecuteRequest>,
    ) -> Result<Response<Self::ExecuteStream>, Status> {
        let missing = || Refusal::new(RefusalCode::Invalid, "there is no assignment");
        let assignment = request.into_inner().assignment.ok_or_else(missing)?;
        let (events, told) = mpsc::channel(8);
        tokio::spawn(self.clone().compute(Assignment::try_from(assignment)?, events));
        Ok(Response::new(Box::pin(ReceiverStream::new(told).map(Ok))))
    }
}
