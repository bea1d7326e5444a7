//! `orchestrator coordinator`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, anyhow};
use orchestrator_coordinator::{BlobPlace, Config, Coordinator, StartError, StoreError};
use orchestrator_proto::Health;
use orchestrator_tls::{CONNECTION_AGE, Role};

use super::{
    reach::{self, Guard, certificates, listen},
    settings::{self, CoordinatorFile},
};
use crate::{
    args::service::{self, LogFormat},
    duration::Time,
    exit::{Exit, Failure},
    interrupt::Interrupt,
    logs, runtime, say,
    state::coordinator_folder,
    target::Tls,
};

const LISTEN: &str = "127.0.0.1:7070";
const HTTP: &str = "127.0.0.1:7071";
const LEASE: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(5);
const NO_WORKER: Duration = Duration::from_mins(10);
/// How often the end of the certificate is looked for.
const LOOK: Duration = Duration::from_secs(30);
const STRAGGLER: Duration = Duration::from_secs(30);
/// A lease must survive a lost heartbeat.
const BEATS_PER_LEASE: u32 = 2;

/// Every setting with its value.
#[derive(Debug)]
struct Settings {
    listen: SocketAddr,
    http: SocketAddr,
    state: PathBuf,
    blobs: BlobPlace,
    lease: Duration,
    heartbeat: Duration,
    no_worker: Duration,
    straggler: Duration,
    network_store: bool,
    reflection: bool,
    guard: Guard,
    health: Option<SocketAddr>,
    log_format: LogFormat,
}

/// Serves until it is stopped.
pub(crate) fn serve(arguments: service::Coordinator, verbose: u8) -> Result<Exit, Failure> {
    let file = settings::read(arguments.service.config.as_deref()).map_err(Failure::usage)?;
    let settings = merged(arguments, file)?;
    logs::start_service(verbose, settings.log_format);
    if settings.guard.is_nothing() {
        say("warning: --insecure-plaintext: nothing is encrypted, and whoever reaches these \
             addresses can run evaluations and read results");
    }
    runtime::run(work(settings))
}

fn merged(arguments: service::Coordinator, file: CoordinatorFile) -> Result<Settings, Failure> {
    let service::Coordinator {
        listen: address,
        http,
        state,
        blobs,
        lease,
        heartbeat,
        no_worker,
        straggler,
        network_store,
        reflection,
        service,
    } = arguments;
    let service::Service { config: _, tls, health, insecure_plaintext, log_format } = service;
    let insecure = insecure_plaintext.or(file.insecure_plaintext).unwrap_or(false);
    let tls = certificates(tls, file.tls).as_deref().map(Tls::open).transpose()?;
    tls.iter().try_for_each(|tls| tls.require(Role::Coordinator))?;
    let guard = Guard::new(tls, insecure)?;
    let health = health.or(file.health);
    let health = health.as_deref().map(|text| reach::address("--health", text)).transpose()?;
    let address = address.or(file.listen).unwrap_or_else(|| LISTEN.to_owned());
    let http = http.or(file.http).unwrap_or_else(|| HTTP.to_owned());
    let time = |flag: Option<Time>, file: Option<Time>, default| {
        flag.or(file).map_or(default, |time| time.0)
    };
    let lease = time(lease, file.lease, LEASE);
    let heartbeat = time(heartbeat, file.heartbeat, HEARTBEAT);
    if heartbeat.is_zero() || heartbeat * BEATS_PER_LEASE > lease {
        let message = format!(
            "a heartbeat every {heartbeat:?} and a lease of {lease:?} do not fit: one lost \
             heartbeat would lose the worker; make the lease several heartbeats long"
        );
        return Err(Failure::usage(anyhow!(message)));
    }
    Ok(Settings {
        listen: listen("--listen", &address, &guard)?,
        http: listen("--http", &http, &guard)?,
        state: match state.or(file.state) {
            Some(state) => state,
            None => coordinator_folder()?,
        },
        blobs: blobs.or(file.blobs).unwrap_or_default(),
        lease,
        heartbeat,
        no_worker: time(no_worker, file.no_worker, NO_WORKER),
        straggler: time(straggler, file.straggler, STRAGGLER),
        network_store: network_store.or(file.network_store).unwrap_or(false),
        reflection: reflection.or(file.reflection).unwrap_or(false),
        guard,
        health,
        log_format: log_format.or(file.log_format).unwrap_or_default(),
    })
}

async fn work(settings: Settings) -> Result<Exit, Failure> {
    let mut stop = Interrupt::new()?;
    let health = health(settings.health).await?;
    let tls = settings.guard.tls().map(|tls| tls.credentials.clone());
    let scheme = if tls.is_some() { "https" } else { "http" };
    let config = Config {
        tls,
        audit: true,
        listen: settings.listen,
        http: Some(settings.http),
        reflection: settings.reflection,
        heartbeat: settings.heartbeat,
        blobs: settings.blobs,
        lease: settings.lease,
        no_worker: settings.no_worker,
        straggler: settings.straggler,
        network_store: settings.network_store,
        connection_age: Some(CONNECTION_AGE),
        continue_interrupted: true,
        ..Config::local(settings.state.clone())
    };
    let started = tokio::select! {
        started = Coordinator::start(config) => started,
        // What it reads at the start, it reads again.
        () = stop.asked() => return Ok(Exit::Cancelled),
    };
    let coordinator = started.map_err(not_started)?;
    let http = coordinator.http().map(|http| {
        let open = http.ip().is_loopback() || scheme == "http";
        format!(", {}://{http}", if open { "http" } else { scheme })
    });
    let http = http.unwrap_or_default();
    if let Some(health) = &health {
        health.set_ready(true).await;
    }
    say(format_args!(
        "coordinator ready: {scheme}://{}{http}, state in {}",
        coordinator.address(),
        settings.state.display()
    ));
    let ended = tokio::select! {
        () = tell(health.as_ref(), settings.guard.tls()) => unreachable!("it is told for ever"),
        ended = coordinator.ended() => ended.map_err(Failure::internal),
        () = stop.asked() => {
            say("stopping; every run is kept, and goes on when the coordinator is started again");
            Ok(())
        }
    };
    if let Some(health) = &health {
        health.set_ready(false).await;
    }
    tokio::select! {
        () = coordinator.shutdown() => {}
        () = stop.asked() => {}
    }
    ended.map(|()| Exit::Complete)
}

/// Probes are answered from before the store is opened until the process ends.
pub(super) async fn health(address: Option<SocketAddr>) -> Result<Option<Health>, Failure> {
    let Some(address) = address else { return Ok(None) };
    let listening = Health::listen(address).await;
    let health = listening.with_context(|| format!("cannot listen on {address} (`--health`)"));
    let health = health.map_err(Failure::usage)?;
    say(format_args!("health on {}", health.address()));
    Ok(Some(health))
}

/// Tells probes for ever whether anybody can still believe us.
async fn tell(health: Option<&Health>, tls: Option<&Tls>) {
    let Some((health, tls)) = health.zip(tls) else { return std::future::pending().await };
    loop {
        health.set_ready(!tls.credentials.are_over()).await;
        tokio::time::sleep(LOOK).await;
    }
}

fn not_started(error: StartError) -> Failure {
    let exit = match error {
        StartError::Listen { .. } => Exit::Usage,
        StartError::Store(_)
        | StartError::Audit(_)
        | StartError::Blobs(_)
        | StartError::Thread(_)
        | StartError::Defect(_) => Exit::Internal,
    };
    let on_disk =
        matches!(error, StartError::Store(StoreError::File { .. } | StoreError::Database { .. }));
    let failure =
        Failure::new(exit, anyhow::Error::new(error).context("the coordinator does not start"));
    if on_disk {
        return failure.advise(
            "make room there, or name a folder with `--state` that this user can write to"
                .to_owned(),
        );
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_stronger_than_the_file_and_the_file_than_defaults() {
        let file = || CoordinatorFile {
            listen: Some("127.0.0.1:1".to_owned()),
            state: Some("/file".into()),
            reflection: Some(true),
            ..CoordinatorFile::default()
        };
        let flags = service::Coordinator {
            listen: Some("127.0.0.1:2".to_owned()),
            reflection: Some(false),
            ..service::Coordinator::default()
        };
        let both = merged(flags, file()).unwrap();
        assert_eq!((both.listen.port(), both.reflection), (2, false));
        assert_eq!(both.state, PathBuf::from("/file"));
        assert_eq!((both.http.port(), both.lease, both.heartbeat), (7071, LEASE, HEARTBEAT));
        assert_eq!(merged(service::Coordinator::default(), file()).unwrap().listen.port(), 1);
    }

    #[test]
    fn a_lease_is_longer_than_heartbeats() {
        let time = |text: &str| Some(text.parse::<Time>().unwrap());
        let times = |lease, heartbeat| {
            let arguments = service::Coordinator {
                lease: time(lease),
                heartbeat: time(heartbeat),
                state: Some("/s".into()),
                ..service::Coordinator::default()
            };
            merged(arguments, CoordinatorFile::default()).map_err(|failure| failure.text())
        };
        assert!(times("2 s", "200 ms").is_ok());
        insta::assert_snapshot!(times("2 s", "5 s").unwrap_err());
        assert!(times("2 s", "0 s").is_err());
    }
}
