//! `orchestrator worker`.

use std::{net::SocketAddr, path::PathBuf, process, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use orchestrator_plan::Inventory;
use orchestrator_proto::{Blocking, Health};
use orchestrator_tls::{Credentials, Role};
use orchestrator_types::{ByteCount, DeviceId, NodeName, SessionId};
use orchestrator_worker::{
    Agent, AgentError, Config, DataAccess, DataRoot, Limits, Processes, RegisterError, StartError,
};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{
    reach::{self, Guard, certificates},
    settings::{self, WorkerFile},
};
use crate::{
    args::service::{self, LogFormat},
    devices::DeviceChoice,
    executor,
    exit::{Exit, Failure},
    interrupt::Interrupt,
    local::{self, Wish},
    logs, runtime, say, state,
    target::Target,
};

const GRACE: Duration = Duration::from_secs(25);

/// Every setting with its value.
#[derive(Debug)]
struct Settings {
    coordinator: Target,
    devices: Vec<DeviceChoice>,
    quota: Option<ByteCount>,
    slices: u32,
    name: NodeName,
    data: DataAccess,
    scratch: PathBuf,
    grace: Duration,
    guard: Guard,
    health: Option<SocketAddr>,
    log_format: LogFormat,
}

/// Works until it is stopped, or until the coordinator has been away for too long.
pub(crate) fn serve(arguments: service::Worker, verbose: u8) -> Result<Exit, Failure> {
    let file = settings::read(arguments.service.config.as_deref()).map_err(Failure::usage)?;
    let settings = merged(arguments, file)?;
    logs::start_service(verbose, settings.log_format);
    if settings.guard.is_nothing() {
        say(
            "warning: --insecure-plaintext: what this worker and its coordinator say is not encrypted",
        );
    }
    runtime::run(async {
        // As the first process of a container it would not even hear a signal that nobody awaits.
        let mut stop = Interrupt::new()?;
        let (slices, quota) = (settings.slices, settings.quota);
        let (devices, node) = (settings.devices.clone(), settings.name.clone());
        let offered = tokio::task::spawn_blocking(move || {
            local::offered(&Wish { slices, devices: &devices, node, quota })
        });
        let machine = tokio::select! {
            offered = offered => offered.context("looking at the devices failed")??,
            () = stop.asked() => return Ok(Exit::Cancelled),
        };
        machine.reasons.iter().for_each(say);
        let (tls, health) = (tls_of(&settings), settings.health);
        let config = config(settings, machine.inventory)?;
        work(config, tls, health, stop).await
    })
}

fn tls_of(settings: &Settings) -> Option<Credentials> {
    settings.coordinator.tls.as_ref().map(|tls| tls.credentials.clone())
}

fn config(settings: Settings, inventory: Inventory) -> Result<Config, Failure> {
    let fresh: String = state::fresh_name::<SessionId>()?.into();
    let tls = tls_of(&settings);
    Ok(Config {
        dial: settings.coordinator.dial(),
        session: match &tls {
            Some(tls) => tls.identity().session(&fresh),
            None => fresh.parse().context("failed to make a name")?,
        },
        launch: Arc::new(Processes),
        blocking: Blocking::Threads,
        coordinator: settings.coordinator.address,
        node: settings.name,
        slices: inventory.slices,
        executor: executor::program()?,
        scratch: settings.scratch,
        cache: state::cache_folder()?,
        data: settings.data,
        build: orchestrator_proto::BUILD.to_owned(),
        limits: Limits { grace: settings.grace, ..Limits::default() },
    })
}

fn merged(arguments: service::Worker, file: WorkerFile) -> Result<Settings, Failure> {
    let service::Worker {
        coordinator,
        device,
        quota,
        slices,
        name,
        data_roots,
        scratch,
        grace,
        service,
    } = arguments;
    let service::Service { config: _, tls, health, insecure_plaintext, log_format } = service;
    let url = coordinator.filter(|url| !url.is_empty()).or(file.coordinator);
    let url = url.ok_or_else(|| {
        Failure::usage(anyhow!(
            "a worker needs a coordinator: `--coordinator http://HOST:7070`, or \
             ORCHESTRATOR_COORDINATOR"
        ))
    })?;
    let name = name.or(file.name).unwrap_or_else(local::node_name);
    let either = |flags: Vec<DeviceChoice>, file| if flags.is_empty() { file } else { flags };
    let in_file = file.data_roots.into_iter().map(|(name, folder)| DataRoot { name, folder });
    let roots = if data_roots.is_empty() { in_file.collect() } else { data_roots };
    let target = Target::new(&url, certificates(tls, file.tls).as_deref())?;
    target.tls.iter().try_for_each(|tls| tls.require(Role::Worker))?;
    let insecure = insecure_plaintext.or(file.insecure_plaintext).unwrap_or(false);
    let guard = Guard::new(target.tls.clone(), insecure)?;
    reach::coordinator(&target, &guard)?;
    let health = health.or(file.health);
    Ok(Settings {
        coordinator: target,
        devices: either(device, file.device),
        quota: quota.or(file.quota),
        slices: slices.or(file.slices).unwrap_or(1),
        data: DataAccess::inside(roots).map_err(Failure::usage)?,
        scratch: match scratch.or(file.scratch) {
            Some(scratch) => scratch,
            None => state::cache_folder()?.join("workers").join(name.as_str()),
        },
        name,
        grace: grace.or(file.grace).map_or(GRACE, |time| time.0),
        guard,
        health: health.as_deref().map(|text| reach::address("--health", text)).transpose()?,
        log_format: log_format.or(file.log_format).unwrap_or_default(),
    })
}

async fn work(
    config: Config,
    tls: Option<Credentials>,
    health: Option<SocketAddr>,
    mut stop: Interrupt,
) -> Result<Exit, Failure> {
    let health = super::coordinator::health(health).await?;
    let renewing = tls.map(|tls| AbortOnDropHandle::new(tokio::spawn(tls.renew())));
    if let Err(error) = orchestrator_worker::adopt_orphans() {
        tracing::warn!(%error, "what an executor leaves behind is reaped by others");
    }
    let ready = announcement(&config);
    let grace = config.limits.grace;
    let mut agent = tokio::select! {
        started = Agent::start(config) => started.map_err(not_started)?,
        () = stop.asked() => return Ok(Exit::Cancelled),
    };
    say(ready);
    let telling = health.map(|health| tell(health, agent.readiness()));
    let _background =
        (renewing, telling.map(|telling| AbortOnDropHandle::new(tokio::spawn(telling))));
    tokio::select! {
        ended = agent.ended() => return ended.map(|()| Exit::Complete).map_err(given_up),
        () = stop.asked() => {}
    }
    say(format_args!(
        "draining: no new work is taken, and units in work may go on for {} s; a second signal \
         leaves at once",
        grace.as_secs_f64()
    ));
    tokio::select! {
        () = agent.shutdown() => Ok(Exit::Complete),
        // The executors end with their pipes.
        () = stop.asked() => process::exit(Exit::Cancelled as i32),
    }
}

/// Tells probes what the agent says of itself, for ever.
async fn tell(health: Health, mut readiness: watch::Receiver<bool>) {
    loop {
        let ready = *readiness.borrow_and_update();
        health.set_ready(ready).await;
        if readiness.changed().await.is_err() {
            // It has ended; the process follows.
            health.set_ready(false).await;
            return std::future::pending().await;
        }
    }
}

/// `worker NAME ready: 2 slices of cpu, coordinator http://…`
fn announcement(config: &Config) -> String {
    let devices: std::collections::BTreeSet<&DeviceId> =
        config.slices.iter().map(|slice| &slice.device).collect();
    let devices: Vec<String> = devices.into_iter().map(ToString::to_string).collect();
    let count = config.slices.len();
    let plural = if count == 1 { "" } else { "s" };
    format!(
        "worker {} ready: {count} slice{plural} of {}, coordinator {}",
        config.node,
        devices.join(", "),
        config.coordinator
    )
}

fn not_started(error: StartError) -> Failure {
    let exit = match &error {
        StartError::Register(error) => of_registration(error),
        StartError::NoSlice
        | StartError::Folder { .. }
        | StartError::ScratchInUse { .. }
        | StartError::SocketPath { .. } => Exit::Usage,
        StartError::Executor { .. } => Exit::Internal,
    };
    let advice = match &error {
        StartError::Folder { .. } => {
            Some("`--scratch DIR` moves a worker's folder, XDG_CACHE_HOME the cache")
        }
        _ => orchestrator_tls::advice(&error),
    };
    let failure =
        Failure::new(exit, anyhow::Error::new(error).context("the worker does not start"));
    match advice {
        Some(advice) => failure.advise(advice.to_owned()),
        None => failure,
    }
}

fn given_up(error: AgentError) -> Failure {
    let exit = match &error {
        AgentError::Register(error) => of_registration(error),
        AgentError::NoSlice { .. } => Exit::Internal,
    };
    Failure::new(exit, error)
}

const fn of_registration(error: &RegisterError) -> Exit {
    match error {
        RegisterError::Unreachable { .. } => Exit::Unreachable,
        RegisterError::Address(_) => Exit::Usage,
        RegisterError::Refused { .. } => Exit::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_stronger_than_the_file_and_a_coordinator_is_needed() {
        let file = || WorkerFile {
            coordinator: Some("127.0.0.1:1".to_owned()),
            slices: Some(3),
            scratch: Some("/s".into()),
            ..WorkerFile::default()
        };
        let flags = service::Worker { slices: Some(2), ..service::Worker::default() };
        let both = merged(flags, file()).unwrap();
        assert_eq!((both.coordinator.address.as_str(), both.slices), ("http://127.0.0.1:1", 2));
        assert_eq!((both.grace, both.guard.is_nothing()), (GRACE, false));
        let none = merged(service::Worker::default(), WorkerFile::default()).unwrap_err();
        assert_eq!(none.exit, Exit::Usage);
        assert!(none.text().contains("ORCHESTRATOR_COORDINATOR"), "{}", none.text());
    }
}
