//! [`Agent`]: starts everything, registers, keeps going over sessions, stops everything.

use std::{sync::Arc, time::Duration};

use orchestrator_proto::{PROTOCOL_VERSION, v1};
use tokio::{task::JoinSet, time::timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    AgentError, Config, StartError,
    executor::Recipe,
    heartbeat::beat,
    host::Host,
    registration::{Registration, reach},
    scratch::Scratch,
    session::Session,
    slice::{GivenUp, Slice},
    supervisor::Supervisor,
};

/// A running worker. Dropping it kills its executors; [`Agent::shutdown`] lets them leave.
#[derive(Debug)]
pub struct Agent {
    draining: CancellationToken,
    stopping: CancellationToken,
    grace: Duration,
    libtorch: String,
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
        let reached = async { Ok(reach(&config.coordinator, patience).await?) };
        let (supervisors, channel) = tokio::try_join!(supervise(&config, &scratch), reached)?;
        let libtorch = supervisors[0].libtorch().to_owned();
        let host = Arc::new(Host::new(channel, &scratch, config.limits));
        let registration = Registration {
            client: host.client.clone(),
            request: introduction(&config, &libtorch),
            address: config.coordinator,
        };
        let session = match registration.session(patience).await {
            Ok(session) => session,
            Err(error) => {
                stop(supervisors.into_iter().map(Supervisor::stop)).await;
                return Err(error.into());
            }
        };
        let offers = config.slices.into_iter().zip(supervisors);
        let slices = offers
            .map(|(offer, supervisor)| Slice::new(offer.id, Arc::clone(&host), supervisor))
            .collect();
        let (draining, stopping) = (host.draining.clone(), host.stopping.clone());
        let work = tokio::spawn(work(scratch, host, registration, session, slices));
        let (work, grace) = (AbortOnDropHandle::new(work), config.limits.grace);
        Ok(Self { draining, stopping, grace, libtorch, work })
    }

    /// Version of libtorch in the executors.
    pub fn libtorch(&self) -> &str {
        &self.libtorch
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
        protocol_version: PROTOCOL_VERSION,
        build: config.build.clone(),
        node: config.node.to_string(),
        slices: config.slices.iter().cloned().map(Into::into).collect(),
        libtorch: libtorch.to_owned(),
    }
}

/// One executor for each slice, in their order. An error drops, and so kills, the others.
async fn supervise(config: &Config, scratch: &Scratch) -> Result<Vec<Supervisor>, StartError> {
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
            build: config.build.clone(),
        };
        starting
            .spawn(async move { (index, recipe.slice.clone(), Supervisor::start(recipe).await) });
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

/// Session after session, until the agent drains, the coordinator stays away, or no slice is left.
/// Then the executors are ended. The scratch folder stays locked until they are.
async fn work(
    scratch: Scratch,
    host: Arc<Host>,
    mut registration: Registration,
    mut session: Arc<Session>,
    mut slices: Vec<Slice>,
) -> Result<(), AgentError> {
    let outcome = loop {
        let given_up;
        (slices, given_up) = serve(&host, &session, slices).await;
        for GivenUp { slice, .. } in &given_up {
            tracing::error!(%slice, left = slices.len(), "the slice is given up");
            registration.withdraw(slice);
        }
        if let (true, Some(GivenUp { slice, error })) =
            (slices.is_empty(), given_up.into_iter().last())
        {
            break Err(AgentError::NoSlice { slice, source: Box::new(error) });
        }
        let again = tokio::select! {
            biased;
            () = host.draining.cancelled() => break Ok(()),
            again = registration.session(host.limits.reconnect) => again,
        };
        match again {
            Ok(next) => session = next,
            Err(error) => break Err(error.into()),
        }
    };
    stop(slices.into_iter().map(Slice::stop)).await;
    drop(scratch);
    outcome
}

/// Ends executors, all at the same time; each is reaped when this returns.
async fn stop(stops: impl Iterator<Item = impl Future<Output = ()> + Send + 'static>) {
    let mut stopping: JoinSet<()> = stops.collect();
    while let Some(ended) = stopping.join_next().await {
        joined(ended);
    }
}

/// Beats and serves until every slice has ended its part in the session. Gives those that are left,
/// and those that are not.
async fn serve(
    host: &Host,
    session: &Arc<Session>,
    slices: Vec<Slice>,
) -> (Vec<Slice>, Vec<GivenUp>) {
    let mut serving: JoinSet<Result<Slice, GivenUp>> =
        slices.into_iter().map(|slice| slice.serve(Arc::clone(session))).collect();
    let gathered = async {
        let (mut left, mut given_up) = (Vec::new(), Vec::new());
        while let Some(ended) = serving.join_next().await {
            match joined(ended) {
                Ok(slice) => left.push(slice),
                Err(slice) => given_up.push(slice),
            }
        }
        session.end();
        (left, given_up)
    };
    let ((), gathered) = tokio::join!(beat(&host.client, session, host.limits.reconnect), gathered);
    gathered
}

/// A task's value. A panic is a defect and ends the agent, and with it every executor.
fn joined<T>(ended: Result<T, tokio::task::JoinError>) -> T {
    match ended {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
