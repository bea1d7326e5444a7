//! [`Coordinator`]: the parts put together, started and stopped.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, thread::JoinHandle, time::Duration};

use orchestrator_proto::{
    Blocking, DESCRIPTORS, Defect, MESSAGE_LIMIT_BYTES, QUESTION_LIMIT_BYTES, server,
    v1::{coordinator_server::CoordinatorServer, inspector_server::InspectorServer},
};
use orchestrator_run::Stragglers;
use orchestrator_tls::Incoming;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{broadcast, mpsc},
    task::AbortHandle,
    time::timeout,
};
use tokio_stream::{Stream, wrappers::TcpListenerStream};
use tokio_util::task::TaskTracker;
use tonic::transport::server::Connected;

use crate::{
    access::Access,
    audit::Audit,
    blobs::{BlobError, Blobs},
    calls::Admission,
    clock::{Clock, SystemClock},
    config::Config,
    driver::{Driver, Pause, Request, Settings, handle},
    event::Live,
    grpc::Handlers,
    http,
    inspector::Looks,
    life::{EndError, Life},
    metrics::Metrics,
    results::Results,
    store::{Store, StoreError, refuse_network},
    sweep::Sweep,
};

/// Live events that a watcher may miss before it reads the store again.
const LIVE_EVENTS: usize = 1_024;

/// Why a coordinator does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be used.
    #[error("the coordinator's store cannot be used")]
    Store(#[from] StoreError),
    /// The place of the blobs cannot be used.
    #[error("the coordinator's blobs cannot be used")]
    Blobs(#[from] BlobError),
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}; choose another address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Calls that change something could not be noted.
    #[error("cannot write audit.jsonl in the state folder")]
    Audit(#[source] std::io::Error),
    /// See [`Defect`].
    #[error(transparent)]
    Defect(#[from] Defect),
    /// The operating system gives no thread.
    #[error("cannot start the coordinator's thread")]
    Thread(#[source] std::io::Error),
}

/// A running coordinator. Dropped without [`Coordinator::shutdown`], it stops as after a crash:
/// nothing acknowledged is lost.
pub struct Coordinator {
    address: SocketAddr,
    http: Option<SocketAddr>,
    life: Life,
    pause: Pause,
    tasks: TaskTracker,
    server: AbortHandle,
    /// None where it is one of the tasks.
    driver: Option<JoinHandle<()>>,
    config: Config,
}

impl Coordinator {
    /// Opens the store and serves on `config.listen`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, Arc::new(SystemClock::default())).await
    }

    pub(crate) async fn start_with(
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let address = config.listen;
        let listen = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        match config.tls.clone() {
            None => Self::serve_on(TcpListenerStream::new(listener), address, config, clock).await,
            Some(tls) => {
                let incoming = Incoming::grpc(listener, tls).map_err(listen)?;
                Self::serve_on(incoming, address, config, clock).await
            }
        }
    }

    /// Opens the store and serves whoever comes in by `incoming`, where `address` is ours. For
    /// simulations, which make their own network and time.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn serve_on<I, T>(
        incoming: I,
        address: SocketAddr,
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError>
    where
        I: Stream<Item = io::Result<T>> + Send + 'static,
        T: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let http = match config.http {
            None => None,
            Some(address) => {
                let listen = |source| StartError::Listen { address, source };
                Some(http::listen(address, config.tls.clone()).await.map_err(listen)?)
            }
        };
        let (told, _) = broadcast::channel(LIVE_EVENTS);
        let certified = config.tls.is_some();
        let life = Life::default();
        let pause = Pause::default();
        let (requests, receiver) = handle(life.clone(), pause.clone());
        let (driver, blobs) = open(&config, clock.clone(), told.clone(), pause.clone()).await?;
        let audit = if config.audit {
            Audit::open(&config.state, config.blocking).map_err(StartError::Audit)?
        } else {
            Audit::none(config.blocking)
        };
        let metrics = Metrics::default();
        let (tasks, blobs) = (TaskTracker::new(), Arc::new(blobs));
        let driver = driver.measured(metrics.clone());
        let driver = match config.blocking {
            Blocking::Threads => Some(start_driver(driver, receiver, life.clone())?),
            Blocking::Inline => {
                tasks.spawn(driver.work(receiver, life.clone()));
                None
            }
        };
        let looks = Looks {
            driver: requests.clone(),
            state: config.state.clone(),
            build: config.build.clone(),
            blocking: config.blocking,
        };
        let handlers = Handlers {
            driver: requests,
            results: Arc::new(Results::new(config.state.clone(), Arc::clone(&blobs))),
            blobs,
            audit: audit.clone(),
            pause: pause.clone(),
            live: told,
            state: config.state.clone(),
            build: config.build.clone(),
            slice_wait: config.slice_wait,
            blocking: config.blocking,
            metrics: metrics.clone(),
            tasks: tasks.clone(),
            life: life.clone(),
        };
        let sweep = Sweep {
            blobs: handlers.blobs.clone(),
            state: config.state.clone(),
            blocking: config.blocking,
            clock,
        };
        tasks.spawn(sweep.work_until(life.clone()));
        let services = Services {
            handlers,
            looks,
            reflection: config.reflection,
            access: Access::new(certified, audit),
            admission: Admission::new(config.calls, metrics.clone()),
            connection_age: config.connection_age,
        };
        let server = tasks.spawn(serve(incoming, services, life.clone())).abort_handle();
        let http = http.map(|(listener, address)| {
            tasks.spawn(http::serve(listener, metrics, life.clone()));
            address
        });
        if let Some(tls) = config.tls.clone() {
            let stopped = life.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = tls.renew() => {}
                    () = stopped.stop().cancelled() => {}
                }
            });
        }
        Ok(Self { address, http, life, pause, tasks, server, driver, config })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it serves HTTP, if it does.
    pub const fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// The folder of its store.
    pub const fn state(&self) -> &PathBuf {
        &self.config.state
    }

    /// Resolves when the coordinator ends by itself. Whoever started it should then report the
    /// error and call [`Coordinator::shutdown`].
    ///
    /// # Errors
    /// See [`EndError`].
    pub async fn ended(&self) -> Result<(), EndError> {
        self.life.ended().await
    }

    /// Why nothing can be stored now, such as a full disk; it goes on by itself when that is over.
    pub fn paused(&self) -> Option<String> {
        self.pause.reason().map(|reason| reason.to_string())
    }

    /// Whether it has ended by itself.
    pub fn failed(&self) -> bool {
        self.life.failure().is_some()
    }

    /// Ends long calls, gives short ones `stop_wait`, and closes the store.
    pub async fn shutdown(self) {
        self.life.stop().cancel();
        self.tasks.close();
        if timeout(self.config.stop_wait, self.tasks.wait()).await.is_err() {
            tracing::warn!("calls were cut off at the stop of the coordinator");
            self.server.abort();
        }
        let Some(driver) = self.driver else { return };
        let joined = tokio::task::spawn_blocking(move || driver.join());
        match timeout(self.config.stop_wait, joined).await {
            Ok(Ok(Ok(()))) => {}
            Ok(_) => tracing::error!("the coordinator's thread has panicked"),
            Err(_) => tracing::warn!("the store was still busy at the stop of the coordinator"),
        }
    }
}

/// Opens the files, off the runtime.
async fn open(
    config: &Config,
    clock: Arc<dyn Clock>,
    live: broadcast::Sender<Arc<Live>>,
    pause: Pause,
) -> Result<(Driver, Blobs), StartError> {
    let (state, network_store) = (config.state.clone(), config.network_store);
    let open = move || {
        if !network_store {
            refuse_network(&state)?;
        }
        Store::open(&state)
    };
    let store = config.blocking.run(open).await??;
    let (place, identity) = (&config.blobs, store.identity());
    let blobs = Blobs::open(place, &config.state, identity, config.blocking).await?;
    let settings = settings(config);
    let load = move || Driver::new(store, settings, clock, live, pause);
    Ok((config.blocking.run(load).await??, blobs))
}

/// Starts the thread that decides.
fn start_driver(
    driver: Driver,
    requests: mpsc::Receiver<Request>,
    life: Life,
) -> Result<JoinHandle<()>, StartError> {
    let thread = std::thread::Builder::new().name("coordinator".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(StartError::Thread)?;
    let work = move || runtime.block_on(driver.work(requests, life));
    thread.spawn(work).map_err(StartError::Thread)
}

fn settings(config: &Config) -> Settings {
    let ms = |duration: std::time::Duration| u32::try_from(duration.as_millis());
    Settings {
        state: config.state.clone(),
        build: config.build.clone(),
        heartbeat_ms: ms(config.heartbeat).unwrap_or(u32::MAX),
        lease_ms: ms(config.lease).unwrap_or(u32::MAX),
        expected_slices: config.expected_slices,
        slice_wait_ms: ms(config.slice_wait).unwrap_or(u32::MAX).into(),
        continue_interrupted: config.continue_interrupted,
        stragglers: Stragglers { least_ms: ms(config.straggler).unwrap_or(u32::MAX).into() },
        no_worker_ms: ms(config.no_worker).unwrap_or(u32::MAX).into(),
        insecure: config.tls.is_none() && !config.listen.ip().is_loopback(),
    }
}

/// What is served over gRPC.
struct Services {
    handlers: Handlers,
    looks: Looks,
    reflection: bool,
    access: Access,
    admission: Admission,
    connection_age: Option<Duration>,
}

/// Serves until `life` ends, which an error makes it do.
async fn serve<I, T>(incoming: I, services: Services, life: Life)
where
    I: Stream<Item = io::Result<T>> + Send + 'static,
    T: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let Services { handlers, looks, reflection, access, admission, connection_age } = services;
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<CoordinatorServer<Handlers>>().await;
    let reflection = reflection.then(|| {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .expect("the descriptors were made by the compiler that made the code")
    });
    let service = CoordinatorServer::new(handlers)
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
    // Who balances load by health is told before the listener closes.
    let stopping = async {
        life.stop().cancelled().await;
        health.set_not_serving::<CoordinatorServer<Handlers>>().await;
    };
    let inspector = InspectorServer::new(looks)
        .max_decoding_message_size(QUESTION_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
    // Who may not call takes no place from those who may.
    let mut bounded = server().layer(access).layer(admission);
    if let Some(age) = connection_age {
        // No grace: with one, tonic 0.14 asks nobody to connect anew, and only cuts off.
        bounded = bounded.max_connection_age(age);
    }
    let served = bounded
        .add_service(service)
        .add_service(inspector)
        .add_service(health_service)
        .add_optional_service(reflection)
        .serve_with_incoming_shutdown(incoming, stopping)
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the coordinator's server failed");
        life.fail(EndError::Server);
    }
}
