//! [`Incoming`]: connections whose handshake is over.
//!
//! Invariants:
//! - a handshake holds up nobody else's, and is over within five seconds; at most 256 are on their way,
//!   64 of one address, and 4,096 connections are open. Who comes beyond an address's share is dropped;
//!   beyond the others it waits in the kernel's queue;
//! - a connection ends after 35 minutes, or with its peer's certificate, whatever its peer does: a
//!   server asks to connect anew after half an hour, and who is honest has left by then.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Sleep, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::{Credentials, Identity, credentials::Loaded, identity::time_left};

const HANDSHAKE: Duration = Duration::from_secs(5);
const HANDSHAKES: usize = 256;
const HANDSHAKES_OF_ONE: usize = 64;
const CONNECTIONS: usize = 4_096;
/// Age at which a server asks its callers to connect anew; calls in work go on.
pub const CONNECTION_AGE: Duration = Duration::from_mins(30);
/// Age at which a connection ends, whatever its peer does.
pub const CONNECTION_LIFE: Duration = Duration::from_mins(35);
/// Connections that wait for the server's loop.
const READY: usize = 64;
/// After an error of the listener, such as no free file descriptor.
const PAUSE: Duration = Duration::from_millis(200);

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it calls from.
    pub address: SocketAddr,
    /// Who it is, by its certificate.
    pub identity: Identity,
}

/// A connection with a known peer.
#[derive(Debug)]
pub struct Secured {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Secured {
    /// Who is at the other end.
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Connected for Secured {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// Connections of a listener, each with its peer. Dropping it stops the listener.
#[derive(Debug)]
pub struct Incoming {
    ready: mpsc::Receiver<Secured>,
    address: SocketAddr,
    accepting: tokio::task::AbortHandle,
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// What is spoken inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Grpc,
    Http,
}

impl Speech {
    fn config(self, loaded: &Loaded) -> Arc<ServerConfig> {
        Arc::clone(match self {
            Self::Grpc => &loaded.server,
            Self::Http => &loaded.pages,
        })
    }
}

impl Incoming {
    /// Callers that speak gRPC.
    ///
    /// # Errors
    /// If the listener has no address.
    pub fn grpc(listener: TcpListener, credentials: Credentials) -> io::Result<Self> {
        Self::new(listener, credentials, Speech::Grpc)
    }

    /// Callers that speak HTTP/1.1.
    ///
    /// # Errors
    /// If the listener has no address.
    pub fn http(listener: TcpListener, credentials: Credentials) -> io::Result<Self> {
        Self::new(listener, credentials, Speech::Http)
    }

    fn new(listener: TcpListener, credentials: Credentials, speech: Speech) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, ready) = mpsc::channel(READY);
        let accepting = tokio::spawn(accept(listener, credentials, speech, sender)).abort_handle();
        Ok(Self { ready, address, accepting })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection; none once the listener is gone.
    pub async fn next(&mut self) -> Option<Secured> {
        self.ready.recv().await
    }
}

impl Stream for Incoming {
    type Item = io::Result<Secured>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(context).map(|next| next.map(Ok))
    }
}

async fn accept(
    listener: TcpListener,
    credentials: Credentials,
    speech: Speech,
    ready: mpsc::Sender<Secured>,
) {
    let places = Arc::new(Semaphore::new(HANDSHAKES));
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let shares = Shares::default();
    // Handshakes end with the listener.
    let mut shaking = tokio::task::JoinSet::new();
    loop {
        while shaking.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok(connection) = Arc::clone(&connections).acquire_owned().await else { return };
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Some(share) = shares.take(address.ip()) else {
            tracing::debug!(peer = %address, "too many handshakes of one address");
            continue;
        };
        let acceptor = TlsAcceptor::from(speech.config(&credentials.current()));
        let ready = ready.clone();
        shaking.spawn(async move {
            let shaken = timeout(HANDSHAKE, shake(acceptor, stream, address, connection)).await;
            drop((place, share));
            match shaken {
                // The server is gone: so is the connection.
                Ok(Ok(secured)) => drop(ready.send(secured).await),
                Ok(Err(error)) => {
                    tracing::warn!(peer = %address, %error, "a connection was refused");
                }
                Err(_) => {
                    let error = "no handshake within 5 s";
                    tracing::warn!(peer = %address, error, "a connection was refused");
                }
            }
        });
    }
}

async fn shake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    place: OwnedSemaphorePermit,
) -> io::Result<Secured> {
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|shown| shown.first());
    let shown = shown.ok_or_else(|| io::Error::other("no certificate was shown"))?;
    let identity = Identity::of(shown).map_err(io::Error::other)?;
    let end = Box::pin(sleep(CONNECTION_LIFE.min(time_left(shown))));
    Ok(Secured { stream, peer: Peer { address, identity }, end, _place: place })
}

/// How many handshakes of each address are on their way.
#[derive(Clone, Debug, Default)]
struct Shares(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One of them.
struct Share {
    shares: Shares,
    address: IpAddr,
}

impl Shares {
    fn take(&self, address: IpAddr) -> Option<Share> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= HANDSHAKES_OF_ONE {
            return None;
        }
        *count += 1;
        Some(Share { shares: self.clone(), address })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self.shares.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_holds_a_share_of_the_handshakes_and_no_more() {
        let shares = Shares::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let mut held: Vec<Share> =
            (0..HANDSHAKES_OF_ONE).map(|_| shares.take(one).unwrap()).collect();
        assert!(shares.take(one).is_none());
        assert!(shares.take(other).is_some());
        held.pop();
        assert!(shares.take(one).is_some());
        drop(held);
        assert!(shares.0.lock().unwrap().is_empty(), "nobody is remembered");
    }
}
