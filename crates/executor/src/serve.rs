//! The service on its socket, from start to end.

use std::{
    fs,
    future::poll_fn,
    io,
    path::{Path, PathBuf},
    pin::pin,
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use orchestrator_proto::{MESSAGE_LIMIT_BYTES, server, v1::executor_server::ExecutorServer};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tracing::info;

use crate::{
    execute::{self, SetUpError, Settings},
    service::Service,
    slice::StartError,
};

/// How long the attempt at hand may take to notice that it is over: one tile.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Why the service does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The working folders, threads or libtorch cannot be set up.
    #[error("cannot set up {what}")]
    SetUp {
        /// What.
        what: &'static str,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The device cannot be used.
    #[error(transparent)]
    Slice(StartError),
    /// The socket cannot be opened.
    #[error("cannot listen on {}; is another executor using it?", socket.display())]
    Listen {
        /// Its path.
        socket: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The transport gave up.
    #[error("the service broke down")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves on `socket` until `end`; the attempt at hand is then given up, and the socket removed.
///
/// Blocks the calling thread. `build` identifies the executable to the agent.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(
    settings: Settings,
    socket: &Path,
    build: String,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let set_up = |what| move |source| ServeError::SetUp { what, source };
    let (jobs, attempts) = execute::start(settings).map_err(|error| match error {
        SetUpError::Io(source) => set_up("the working folders")(source),
        SetUpError::Slice(source) => ServeError::Slice(source),
    })?;
    // The service moves messages only; one thread serves, and one is left when that is busy.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(set_up("the runtime"))?;
    let served: Result<(), ServeError> = runtime.block_on(async {
        // Who sees the socket may send signals at once: from its first poll on, `end` hears them.
        let mut end = pin!(end);
        let over = poll_fn(|context| Poll::Ready(end.as_mut().poll(context).is_ready())).await;
        let listen = |source| ServeError::Listen { socket: socket.to_owned(), source };
        let listener = UnixListener::bind(socket).map_err(listen)?;
        if over {
            return Ok(());
        }
        info!(socket = %socket.display(), build, "ready");
        let service = ExecutorServer::new(Service { build, jobs })
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
        let connections = UnixListenerStream::new(listener);
        let serving = server().add_service(service).serve_with_incoming(connections);
        tokio::select! {
            served = serving => served.map_err(ServeError::from),
            () = &mut end => Ok(()),
        }
    });
    // Ends every stream, and with it the attempt at hand.
    runtime.shutdown_background();
    if !matches!(served, Err(ServeError::Listen { .. })) {
        drop(fs::remove_file(socket));
    }
    wait_for(&attempts);
    served
}

/// Leaving while libtorch computes would pull its tables from under it; waiting for ever would
/// leave an orphan.
fn wait_for(thread: &thread::JoinHandle<()>) {
    let started = Instant::now();
    while !thread.is_finished() && started.elapsed() < STOP_LIMIT {
        thread::sleep(Duration::from_millis(5));
    }
}
