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
use tonic::{Request, Response, Status, transport::Channel};

use crate::{
    job::{self, Flaws},
    random::Random,
};

/// Steps in which a unit is computed.
const STEPS: u64 = 4;
const PIPE_BYTES: usize = 1 << 20;

/// How an executor is told to die, and for how long the kernel cannot end it.
#[derive(Clone, Copy, Debug)]
struct Death {
    signal: i32,
    stuck: Duration,
}

/// A unit that is, or was, computed: its session, and its result as the agent hands it in.
#[derive(Clone, Debug)]
pub(crate) struct Computed {
    pub(crate) session: String,
    pub(crate) finished: v1::Finished,
}

/// Executors of all hosts, for whoever wants to kill one, and what they were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Executors(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Of the executor that was started last, by slice.
    switches: BTreeMap<SliceId, watch::Sender<Option<Death>>>,
    /// Executors that are not gone, by the life of their agent and their slice.
    living: BTreeMap<(String, SliceId), u32>,
    /// Slices that somebody used while an executor before was not gone.
    crowded: Vec<SliceId>,
    computed: Vec<Computed>,
    /// Of every life of a worker, in their order.
    sessions: Vec<String>,
}

/// Holds the memory of its slice until it is dropped.
#[derive(Debug)]
struct Living {
    executors: Executors,
    key: (String, SliceId),
}

impl Drop for Living {
    fn drop(&mut self) {
        if let Some(living) = self.executors.state().living.get_mut(&self.key) {
            *living -= 1;
        }
    }
}

impl Executors {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the executor of a slice, if it lives. It answers nobody any more, and is gone after
    /// `stuck`.
    pub(crate) fn kill(&self, slice: &SliceId, stuck: Duration) -> bool {
        let state = self.state();
        let Some(switch) = state.switches.get(slice) else { return false };
        switch.send_if_modified(|dead| dead.replace(Death { signal: 9, stuck }).is_none())
    }

    /// A worker begins a life.
    pub(crate) fn begin_session(&self, session: &str) {
        self.state().sessions.push(session.to_owned());
    }

    /// A session of some life.
    pub(crate) fn some_session(&self, random: &mut Random) -> Option<String> {
        let state = self.state();
        (!state.sessions.is_empty()).then(|| random.pick(&state.sessions).clone())
    }

    /// A unit that was computed at some time, or one of the last ones.
    pub(crate) fn some_result(&self, random: &mut Random) -> Option<Computed> {
        let state = self.state();
        let from = if random.one_in(2) { state.computed.len().saturating_sub(6) } else { 0 };
        let among = &state.computed[from..];
        (!among.is_empty()).then(|| random.pick(among).clone())
    }

    /// I7, as far as it shows from outside of executors: nobody is given memory that somebody else
    /// may still hold. An agent knows of no executor that the kernel could not end for an agent
    /// before it.
    pub(crate) fn crowded(&self) -> Vec<SliceId> {
        self.state().crowded.clone()
    }

    fn live(&self, session: &str, slice: &SliceId) -> Living {
        let key = (session.to_owned(), slice.clone());
        let mut state = self.state();
        let living = state.living.entry(key.clone()).or_default();
        *living += 1;
        if *living > 1 {
            state.crowded.push(slice.clone());
        }
        Living { executors: self.clone(), key }
    }
}

/// Starts stand-ins.
#[derive(Clone, Debug)]
pub(crate) struct Pretend {
    pub(crate) executors: Executors,
    pub(crate) flaws: Flaws,
    pub(crate) seed: u64,
    pub(crate) build: String,
    pub(crate) session: String,
    /// The way to the one that was started last, by slice.
    pub(crate) doors: Arc<Mutex<BTreeMap<SliceId, mpsc::Sender<DuplexStream>>>>,
}

impl Launch for Pretend {
    fn spawn<'a>(&'a self, recipe: &'a Recipe) -> Later<'a, io::Result<Box<dyn Child>>> {
        Box::pin(async move {
            let (door, callers) = mpsc::channel::<DuplexStream>(8);
            let (switch, mut death) = watch::channel(None);
            let (grave, gone) = watch::channel(None);
            let slice = recipe.slice.clone();
            self.executors.state().switches.insert(slice.clone(), switch.clone());
            let living = self.executors.live(&self.session, &slice);
            self.doors.lock().unwrap_or_else(PoisonError::into_inner).insert(slice, door);
            let desk = Desk {
                blobs: recipe.blobs.clone(),
                executors: self.executors.clone(),
                flaws: self.flaws,
                seed: self.seed,
                build: self.build.clone(),
                session: self.session.clone(),
                switch: switch.clone(),
            };
            let callers = ReceiverStream::new(callers).map(Ok::<_, io::Error>);
            let serving = async move {
                let service = ExecutorServer::new(desk);
                let served = server().add_service(service).serve_with_incoming(callers).await;
                assert!(served.is_ok(), "a made-up network does not fail: {served:?}");
            };
            // Nothing but its host's end ends it sooner.
            tokio::spawn(async move {
                let dies = async {
                    let death = death.wait_for(Option::is_some).await.ok();
                    death.and_then(|death| *death)
                };
                let death = tokio::select! {
                    biased;
                    death = dies => death,
                    () = serving => None,
                };
                let Death { signal, stuck } =
                    death.unwrap_or(Death { signal: 0, stuck: Duration::ZERO });
                if !stuck.is_zero() {
                    sleep(stuck).await;
                }
                drop(living);
                grave.send_replace(Some(signal));
            });
            Ok(Box::new(Pretended { gone, switch }) as Box<dyn Child>)
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

/// How long an agent waits for the end of what it killed.
const REAP: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Pretended {
    gone: watch::Receiver<Option<i32>>,
    switch: watch::Sender<Option<Death>>,
}

impl Pretended {
    fn die(&self, signal: i32) {
        let death = Death { signal, stuck: Duration::ZERO };
        self.switch.send_if_modified(|dead| dead.is_none() && dead.replace(death).is_none());
    }
}

impl Drop for Pretended {
    fn drop(&mut self) {
        self.die(9);
    }
}

impl Child for Pretended {
    fn number(&self) -> Option<u32> {
        None
    }

    fn is_gone(&mut self) -> bool {
        self.gone.borrow().is_some()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.gone.borrow().map(ExitStatus::from_raw)
    }

    fn end_within(&mut self, limit: Duration) -> Later<'_, Option<ExitStatus>> {
        Box::pin(async move {
            let ended = timeout(limit, self.gone.wait_for(Option::is_some)).await.ok()?;
            ended.ok()?.map(ExitStatus::from_raw)
        })
    }

    fn last_words(&mut self) -> Later<'_, String> {
        Box::pin(async { String::new() })
    }

    fn end(&mut self) -> Later<'_, ()> {
        self.die(0);
        Box::pin(async {
            self.end_within(REAP).await;
        })
    }

    fn kill(&mut self) -> Later<'_, ()> {
        self.die(9);
        Box::pin(async {
            self.end_within(REAP).await;
        })
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
    session: String,
    switch: watch::Sender<Option<Death>>,
}

impl Desk {
    async fn compute(self, assignment: Assignment, events: mpsc::Sender<v1::ExecuteEvent>) {
        use v1::execute_event::Event;
        let mut random = Random::new(self.seed ^ assignment.token.0);
        let step = random.millis(10..120);
        let deadly = job::kills(&assignment, self.flaws);
        let result = self.result(&assignment);
        let computed = result.as_ref().ok().map(|(_, computed)| computed.clone());
        let note = || self.executors.state().computed.extend(computed.clone());
        // A result may overtake its own computation, but not the proof that it kills nobody.
        let known = !deadly && !assignment.alone;
        if known {
            note();
        }
        for done in 1..=STEPS {
            sleep(step).await;
            let progress = v1::Progress { done, total: STEPS };
            let event = v1::ExecuteEvent { event: Some(Event::Progress(progress)) };
            if events.send(event).await.is_err() {
                return;
            }
        }
        if deadly {
            self.switch.send_replace(Some(Death { signal: 9, stuck: Duration::ZERO }));
            return;
        }
        if !known {
            note();
        }
        let last = match result {
            Ok((result, _)) => Event::Result(result),
            Err(error) => Event::Failure(v1::Failure {
                class: v1::FailureClass::Internal.into(),
                message: error.to_string(),
            }),
        };
        // Whoever hears it no more needs no result.
        drop(events.send(v1::ExecuteEvent { event: Some(last) }).await);
    }

    fn result(&self, assignment: &Assignment) -> io::Result<(v1::UnitResult, Computed)> {
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
        Ok((result, Computed { session: self.session.clone(), finished }))
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
