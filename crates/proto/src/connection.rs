//! Limits and connections, in one place: the library's defaults have no deadline, no keepalive and
//! no bound on what is sent.

use std::{fmt, io, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};
use tonic::transport::{Channel, Endpoint, Server, Uri};

/// Largest message that is sent or taken. Blobs travel in chunks well below it.
pub const MESSAGE_LIMIT_BYTES: usize = 8 << 20;
/// Largest question of those who only look: names and numbers.
pub const QUESTION_LIMIT_BYTES: usize = 2 << 20;
/// Size of one chunk of a blob or file.
pub const CHUNK_BYTES: usize = 256 << 10;

/// Blobs smaller than this travel and are stored with their result: a file each would cost more.
pub const INLINE_LIMIT_BYTES: u64 = 4 << 10;
/// Deadline of a call that only talks.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of a call that moves a blob.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_mins(2);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Calls of one connection at once; more wait at the caller's end. A host with 8 GPUs in 7 parts
/// each has 56 calls for work waiting, and its heartbeats must never wait behind them.
const MOST_STREAMS: u32 = 256;
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// Largest piece of a message between those of other calls: a chunk in one piece, not in sixteen.
const FRAME_BYTES: u32 = 256 << 10;

/// Why the other side cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address is not one.
    #[error("`{0}` is not an address; write for example http://127.0.0.1:7070")]
    Address(String),
    /// Nobody answers there.
    #[error("no answer from {address}")]
    Unreachable {
        /// Where.
        address: String,
        /// What the transport says.
        #[source]
        source: tonic::transport::Error,
    },
}

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Dialling = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

/// How a connection to an address is made.
#[derive(Clone, Default)]
pub enum Dial {
    /// Over TCP.
    #[default]
    Tcp,
    /// Over a network that a simulation makes up.
    With(Arc<dyn Fn(Uri) -> Dialling + Send + Sync>),
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "Tcp",
            Self::With(_) => "With(..)",
        })
    }
}

/// Connects over TCP.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(address: &str) -> Result<Channel, ConnectError> {
    connect_by(&Dial::Tcp, address).await
}

/// Connects in this way; the channel connects again by itself.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect_by(dial: &Dial, address: &str) -> Result<Channel, ConnectError> {
    let endpoint = Endpoint::from_shared(address.to_owned())
        .map_err(|_| ConnectError::Address(address.to_owned()))?;
    let unreachable = |source| ConnectError::Unreachable { address: address.to_owned(), source };
    let endpoint = bounded(endpoint);
    let connected = match dial {
        Dial::Tcp => endpoint.connect().await,
        Dial::With(dial) => {
            let dial = Arc::clone(dial);
            let connector = tower::service_fn(move |uri| {
                let dialling = dial(uri);
                async move { dialling.await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await
        }
    };
    connected.map_err(unreachable)
}

/// Connects over a Unix socket on this host.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect_unix(socket: PathBuf) -> Result<Channel, ConnectError> {
    let address = socket.display().to_string();
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The URI is required by HTTP/2 and means nothing on a Unix socket.
    bounded(Endpoint::from_static("http://executor.local"))
        .connect_with_connector(connector)
        .await
        .map_err(|source| ConnectError::Unreachable { address, source })
}

fn bounded(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
}

/// A server with our limits.
pub fn server() -> Server {
    Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .http2_max_header_list_size(16 << 10)
        .max_concurrent_streams(MOST_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
}
