//! [`Agent`]: starts everything, registers, keeps going, stops everything.

use std::{sync::Arc, time::Duration};

use orchestrator_proto::{PROTOCOL_MIN, PROTOCOL_VERSION, v1};
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    AgentError, Config, ExecutorError, StartError,
    failure::chain,
    health::Health,
    heartbeat::beat,
    host::Host,
    launch::Recipe,
    registration::{Registration, reach},
    scratch::Scratch,
    session::Session,
    slice::{GivenUp, Slice},
    supervisor::Supervisor,
};

/// Longest wait for the answer to a goodbye.
const FAREWELL: Duration = Duration::from_secs(2);

/// A running worker. Dropping it kills its executors; [`Agent::shutdown`] lets them leave.
#[derive(Debug)]
pub struct Agent {
    draining: CancellationToken,
    stopping: CancellationToken,
    grace: Duration,
    libtorch: String,
    session: Arc<Session>,
    /// Runs until the agent drains, or gives up. Aborting it drops the slices.
    work: AbortOnDropHandle<Result<(), AgentError>>,
}

impl Agent {
    /// Starts the executors, all at the same time, and registers with the coordinator. When this
    /// fails, or its future is dropped, no executor is left.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        if config.slices.is_empty() {
            return Err(StartError::NoSlice);
        }
        let scratch = Scratch::open(&config)?;
        let patience = config.limits.first_contact;
        let reached = async { Ok(reach(&config.dial, &config.coordinator, patience).await?) };
        let devices = config.slices.iter().map(|slice| slice.device.clone()).collect();
        let supervised = async {
            let health = Health::watch(config.executor.clone(), devices).await;
            Ok::<_, StartError>((supervise(&config, &scratch, &health).await?, health))
        };
        let ((supervisors, health), channel) = tokio::try_join!(supervised, reached)?;
        let libtorch = supervisors[0].libtorch().to_owned();
        let host = Arc::new(Host::new(channel, &scratch, &config));
        let request = introduction(&config, &libtorch);
        let registration = Registration::new(config.coordinator, host.client.clone(), request);
        let session = Arc::new(Session::new(config.session));
        if let Err(error) = registration.hello(&session, patience).await {
            let retire = |mut one: Supervisor| async move { one.retire().await };
            stop(supervisors.into_iter().map(retire)).await;
            return Err(error.into());
        }
        let offers = config.slices.into_iter().zip(supervisors);
        let slices = offers
            .map(|(offer, supervisor)| Slice::new(offer.id, Arc::clone(&host), supervisor))
            .collect();
        let (draining, stopping) = (host.draining.clone(), host.stopping.clone());
        let known = Arc::clone(&session);
        let work = tokio::spawn(work(scratch, health, host, registration, session, slices));
        let (work, grace) = (AbortOnDropHandle::new(work), config.limits.grace);
        Ok(Self { draining, stopping, grace, libtorch, session: known, work })
    }

    /// Version of libtorch in the executors.
    pub fn libtorch(&self) -> &str {
        &self.libtorch
    }

    /// Whether the coordinator knows this worker and gives it work: not while it does not answer, and
    /// not from the moment of [`Agent::shutdown`] on.
    pub fn readiness(&self) -> watch::Receiver<bool> {
        self.session.readiness()
    }

    /// Waits until the agent gives up on its coordinator, or on its last executor; without that,
    /// for ever. Safe to drop.
    ///
    /// # Errors
    /// [`AgentError`]: that is how it ends.
    ///
    /// # Panics
    /// If a task of the agent panicked, with its panic, or if it is called again after its end.
    pub async fn ended(&mut self) -> Result<(), AgentError> {
        match (&mut self.work).await {
            Ok(outcome) => outcome,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Nobody but a runtime that shuts down cancels it.
                Err(_) => Ok(()),
            },
        }
    }

    /// Takes no new unit, lets running attempts go on for the grace of the limits, leaves the
    /// rest, and ends the executors. Takes at most the grace and some ten seconds more; every
    /// executor is reaped when it returns.
    pub async fn shutdown(mut self) {
        self.draining.cancel();
        self.session.drain();
        if self.work.is_finished() {
            return;
        }
        let mut outcome = timeout(self.grace, &mut self.work).await;
        if outcome.is_err() {
            self.stopping.cancel();
            outcome = Ok((&mut self.work).await);
        }
        match outcome.expect("it was waited for without a limit") {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the agent had given up before"),
            Err(error) => tracing::error!(%error, "the agent's task failed"),
        }
    }
}

fn introduction(config: &Config, libtorch: &str) -> v1::RegisterRequest {
    v1::RegisterRequest {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_VERSION,
        session: config.session.to_string(),
        held: Vec::new(),
        withdrawn: Vec::new(),
        build: config.build.clone(),
        node: config.node.to_string(),
        slices: config.slices.iter().cloned().map(Into::into).collect(),
        libtorch: libtorch.to_owned(),
    }
}

/// One executor for each slice, in their order. An error drops, and so kills, the others.
async fn supervise(
    config: &Config,
    scratch: &Scratch,
    health: &Health,
) -> Result<Vec<Supervisor>, StartError> {
    let mut starting = JoinSet::new();
    for (index, offer) in config.slices.iter().enumerate() {
        let recipe = Recipe {
            slice: offer.id.clone(),
            program: config.executor.clone(),
            socket: scratch.socket(index)?,
            blobs: scratch.blobs().folder().to_owned(),
            cache: config.cache.clone(),
            decoded: scratch.decoded(),
            decoded_limit: config.limits.decoded,
            threads: offer.threads,
            device: offer.device.clone(),
            ceiling: offer.memory_bytes,
            roots: config.data.folders(),
            build: config.build.clone(),
        };
        let launch = Arc::clone(&config.launch);
        let watched = health.of(&offer.device);
        starting.spawn(async move {
            (index, recipe.slice.clone(), Supervisor::start(launch, recipe, watched).await)
        });
    }
    let mut started = Vec::new();
    while let Some(ended) = starting.join_next().await {
        let (index, slice, outcome) = joined(ended);
        let supervisor =
            outcome.map_err(|error| StartError::Executor { slice, source: Box::new(error) })?;
        started.push((index, supervisor));
    }
    started.sort_by_key(|(index, _)| *index);
    Ok(started.into_iter().map(|(_, supervisor)| supervisor).collect())
}

/// Works until the agent drains, the coordinator stays away, or no slice is left. Then the
/// executors are ended. The scratch folder stays locked until they are.
async fn work(
    scratch: Scratch,
    health: Health,
    host: Arc<Host>,
    registration: Registration,
    session: Arc<Session>,
    slices: Vec<Slice>,
) -> Result<(), AgentError> {
    let beating = beat(&host.client, &registration, &session, host.limits.reconnect);
    let serving = async {
        let served = serve(&registration, &session, slices).await;
        session.end();
        served
    };
    let beating = async {
        let beaten = beating.await;
        session.end();
        beaten
    };
    let (beaten, (slices, served)) = tokio::join!(beating, serving);
    let outcome = beaten.map_err(AgentError::from).and(served);
    if outcome.is_ok() {
        goodbye(&host, &session).await;
    }
    stop(slices.into_iter().map(Slice::stop)).await;
    health.stop().await;
    drop(scratch);
    outcome
}

/// Hands back what is left, so that nobody waits for it. A coordinator that does not answer finds
/// out by itself.
async fn goodbye(host: &Host, session: &Session) {
    let request =
        v1::GoodbyeRequest { session: session.id(), reason: "its worker was stopped".to_owned() };
    match timeout(FAREWELL, host.client.goodbye(request)).await {
        Ok(Ok(())) => {}
        Ok(Err(refusal)) => tracing::debug!(%refusal, "the goodbye was not taken"),
        Err(_) => tracing::debug!("the goodbye was not answered"),
    }
}

/// Ends executors, all at the same time; each is reaped when this returns.
async fn stop(stops: impl Iterator<Item = impl Future<Output = ()> + Send + 'static>) {
    let mut stopping: JoinSet<()> = stops.collect();
    while let Some(ended) = stopping.join_next().await {
        joined(ended);
    }
}

/// Serves until every slice has ended. Gives those that are left, and the error that left none.
async fn serve(
    registration: &Registration,
    session: &Arc<Session>,
    slices: Vec<Slice>,
) -> (Vec<Slice>, Result<(), AgentError>) {
    let mut serving: JoinSet<Result<Slice, GivenUp>> =
        slices.into_iter().map(|slice| slice.serve(Arc::clone(session))).collect();
    let mut fenced: JoinSet<Slice> = JoinSet::new();
    let (mut left, mut last) = (Vec::new(), None);
    while !serving.is_empty() {
        tokio::select! {
            Some(ended) = serving.join_next() => match joined(ended) {
                Ok(slice) => left.push(slice),
                Err(GivenUp { slice, error }) => {
                    let id = slice.id().clone();
                    tracing::error!(slice = %id, left = serving.len(), "the slice is given up: {error}");
                    if let ExecutorError::Fenced { why } = &error {
                        registration.withdraw(&id, why);
                        fenced.spawn(slice.regained());
                    } else {
                        registration.withdraw(&id, &chain(&error));
                    }
                    if !serving.is_empty() {
                        session.say_hello();
                    }
                    last = Some((id, error));
                }
            },
            Some(regained) = fenced.join_next() => {
                let slice = joined(regained);
                registration.offer_again(slice.id());
                session.say_hello();
                serving.spawn(slice.serve(Arc::clone(session)));
            }
        }
    }
    let outcome = match last {
        Some((slice, error)) if left.is_empty() => {
            Err(AgentError::NoSlice { slice, source: Box::new(error) })
        }
        _ => Ok(()),
    };
    (left, outcome)
}

/// A task's value. A panic is a defect and ends the agent, and with it every executor.
fn joined<T>(ended: Result<T, tokio::task::JoinError>) -> T {
    match ended {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
