//! [`Coordinator`]: the parts put together, started and stopped.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use orchestrator_proto::{MESSAGE_LIMIT_BYTES, server, v1::coordinator_server::CoordinatorServer};
use tokio::{net::TcpListener, sync::broadcast, task::AbortHandle, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    blobs::{BlobError, Blobs},
    clock::{Clock, SystemClock},
    config::Config,
    driver::{Driver, Request, Settings, handle},
    event::Live,
    grpc::Handlers,
    results::Results,
    store::{Store, StoreError},
};

/// Live events that a watcher may miss before it reads the store again.
const LIVE_EVENTS: usize = 1_024;

/// Why a coordinator does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be used.
    #[error("the coordinator's store cannot be used")]
    Store(#[from] StoreError),
    /// The folder of blobs cannot be used.
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
    /// The operating system gives no thread.
    #[error("cannot start the coordinator's thread")]
    Thread(#[source] std::io::Error),
}

/// A running coordinator. Dropped without [`Coordinator::shutdown`], it stops as after a crash:
/// nothing acknowledged is lost.
pub struct Coordinator {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
    server: AbortHandle,
    driver: JoinHandle<()>,
    config: Config,
}

impl Coordinator {
    /// Opens the store and serves on `config.listen`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let address = config.listen;
        let listen = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (live, _) = broadcast::channel(LIVE_EVENTS);
        let stop = CancellationToken::new();
        let (requests, receiver) = handle();
        let (driver, blobs) = start_driver(&config, live.clone(), receiver, stop.clone()).await?;
        let (tasks, blobs) = (TaskTracker::new(), Arc::new(blobs));
        let handlers = Handlers {
            driver: requests,
            results: Arc::new(Results::new(config.state.clone(), Arc::clone(&blobs))),
            blobs,
            live,
            state: config.state.clone(),
            build: config.build.clone(),
            slice_wait: config.slice_wait,
            tasks: tasks.clone(),
            stop: stop.clone(),
        };
        let server = tasks.spawn(serve(listener, handlers, stop.clone())).abort_handle();
        Ok(Self { address, stop, tasks, server, driver, config })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder of its store.
    pub const fn state(&self) -> &PathBuf {
        &self.config.state
    }

    /// Ends long calls, gives short ones `stop_wait`, and closes the store.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        if timeout(self.config.stop_wait, self.tasks.wait()).await.is_err() {
            tracing::warn!("calls were cut off at the stop of the coordinator");
            self.server.abort();
        }
        let joined = tokio::task::spawn_blocking(move || self.driver.join());
        match timeout(self.config.stop_wait, joined).await {
            Ok(Ok(Ok(()))) => {}
            Ok(_) => tracing::error!("the coordinator's thread has panicked"),
            Err(_) => tracing::warn!("the store was still busy at the stop of the coordinator"),
        }
    }
}

/// Opens the files off the runtime, and starts the thread that decides.
async fn start_driver(
    config: &Config,
    live: broadcast::Sender<Arc<Live>>,
    requests: mpsc::Receiver<Request>,
    stop: CancellationToken,
) -> Result<(JoinHandle<()>, Blobs), StartError> {
    let (state, settings) = (config.state.clone(), settings(config));
    let opened = tokio::task::spawn_blocking(move || {
        let store = Store::open(&state)?;
        let blobs = Blobs::open(&state)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        Ok::<_, StartError>((Driver::new(store, settings, clock, live)?, blobs))
    });
    let (driver, blobs) =
        opened.await.map_err(|error| StartError::Thread(std::io::Error::other(error)))??;
    let thread = std::thread::Builder::new().name("coordinator".to_owned());
    let driver = thread.spawn(move || driver.work(&requests, &stop)).map_err(StartError::Thread)?;
    Ok((driver, blobs))
}

fn settings(config: &Config) -> Settings {
    let ms = |duration: std::time::Duration| u32::try_from(duration.as_millis());
    Settings {
        heartbeat_ms: ms(config.heartbeat).unwrap_or(u32::MAX),
        lease_ms: ms(config.lease).unwrap_or(u32::MAX),
        expected_slices: config.expected_slices,
        slice_wait_ms: ms(config.slice_wait).unwrap_or(u32::MAX).into(),
        continue_interrupted: config.continue_interrupted,
    }
}

/// Serves until `stop`. On an error the whole coordinator stops: half of one helps nobody.
async fn serve(listener: TcpListener, handlers: Handlers, stop: CancellationToken) {
    let service = CoordinatorServer::new(handlers)
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
    let served = server()
        .add_service(service)
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the coordinator's server failed");
        stop.cancel();
    }
}
