//! [`Health`]: the standard health service (`grpc.health.v1`) on a port of its own, in plaintext,
//! because Kubernetes' probes show no certificate. It tells nothing but its states, and takes nothing.
//!
//! Whoever reaches it needs no certificate, so it holds next to nothing for anybody: 64 connections, each for
//! a minute at most, and messages of a kilobyte.
//!
//! `liveness` serves for as long as the process answers; `readiness`, and the empty name, once it can
//! do its work and until it starts to leave.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Sleep, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Server, server::Connected};
use tonic_health::{ServingStatus, server::HealthReporter};

const CONNECTIONS: usize = 64;
/// A probe takes milliseconds.
const AGE: Duration = Duration::from_mins(1);
const MESSAGE_BYTES: usize = 1 << 10;
const WINDOW_BYTES: u32 = 64 << 10;
const STREAMS: u32 = 8;
/// After an error of the listener, such as no free file descriptor.
const PAUSE: Duration = Duration::from_millis(200);
const READINESS: [&str; 2] = ["", "readiness"];

/// See the module's documentation. Dropping it closes the port.
#[derive(Debug)]
pub struct Health {
    reporter: HealthReporter,
    address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl Health {
    /// Serves on `address`, not ready yet.
    ///
    /// # Errors
    /// If the address is taken, or not ours.
    pub async fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (reporter, service) = tonic_health::server::health_reporter();
        reporter.set_service_status("liveness", ServingStatus::Serving).await;
        let (sender, incoming) = mpsc::channel(1);
        let bounded = Server::builder()
            .timeout(AGE)
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .http2_max_header_list_size(4 << 10)
            .add_service(service.max_decoding_message_size(MESSAGE_BYTES));
        let serving = bounded.serve_with_incoming(ReceiverStream::new(incoming));
        let serving = AbortOnDropHandle::new(tokio::spawn(async move {
            // A probe that is not answered tells what an error would tell.
            tokio::select! {
                _ = serving => {}
                () = accept(listener, sender) => {}
            }
        }));
        let health = Self { reporter, address, _serving: serving };
        health.set_ready(false).await;
        Ok(health)
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells whether work can be done.
    pub async fn set_ready(&self, ready: bool) {
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in READINESS {
            self.reporter.set_service_status(service, status).await;
        }
    }
}

/// Takes connections; beyond the limit the newest is dropped at once, so that none waits unseen.
async fn accept(listener: TcpListener, sender: mpsc::Sender<io::Result<Brief>>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let brief = Brief { stream, end: Box::pin(sleep(AGE)), _place: place };
        if sender.send(Ok(brief)).await.is_err() {
            return;
        }
    }
}

/// A connection that ends when its time is over, whatever the other side does.
struct Brief {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Brief {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Brief {
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

impl AsyncWrite for Brief {
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
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt as _, time::timeout};
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

    use super::*;

    /// Whoever holds connections open and says nothing keeps no probe out for longer than a minute,
    /// and no more than a few dozen connections at all.
    #[tokio::test]
    async fn silent_connections_are_few() {
        let health = Health::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS + 8 {
            held.push(TcpStream::connect(health.address()).await.unwrap());
        }
        let mut dropped = 0;
        for stream in &mut held {
            // A server of HTTP/2 speaks first: who hears the end at once was not taken.
            let heard = timeout(Duration::from_secs(20), stream.read(&mut [0; 64])).await.unwrap();
            dropped += usize::from(!heard.is_ok_and(|bytes| bytes > 0));
        }
        assert_eq!(dropped, 8);
        drop(held);
        let probe = async || {
            let channel = crate::connect(&format!("http://{}", health.address())).await.ok()?;
            let request = HealthCheckRequest { service: "liveness".to_owned() };
            HealthClient::new(channel).check(request).await.ok()
        };
        let answered = async {
            while probe().await.is_none() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(20), answered).await.unwrap();
    }

    #[tokio::test]
    async fn a_large_question_is_refused() {
        let health = Health::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let channel = crate::connect(&format!("http://{}", health.address())).await.unwrap();
        let request = HealthCheckRequest { service: "x".repeat(MESSAGE_BYTES) };
        let refused = HealthClient::new(channel).check(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
    }
}
