//! The made-up network: connections and listeners of the simulation instead of the kernel's.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use orchestrator_proto::{Dial, Stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
    time::{Instant, Sleep, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use turmoil::net::{TcpListener, TcpStream};

use crate::trace;

/// Where the coordinator listens.
pub(crate) const PORT: u16 = 7070;
/// Its address.
pub(crate) const ADDRESS: &str = "http://coordinator:7070";

/// Connections that wait to be taken.
const BACKLOG: usize = 64;

/// Connects through the simulation.
pub(crate) fn dial() -> Dial {
    Dial::With(Arc::new(|uri| {
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().to_owned();
            let port = uri.port_u16().unwrap_or(PORT);
            let stream = TcpStream::connect((host, port)).await?;
            Ok(Box::new(Wire::new(stream, "client")) as Box<dyn Stream>)
        })
    }))
}

/// A connection of a certain width, so that it can be cut in the middle of what is sent. Its bytes
/// are noted.
pub(crate) struct Wire {
    stream: TcpStream,
    side: &'static str,
    /// Bytes that may still be sent in this step.
    room: usize,
    step: Pin<Box<Sleep>>,
}

/// What a wire carries in a step: 2 MB a second.
const STEP: Duration = Duration::from_millis(2);
const STEP_BYTES: usize = 4 << 10;

impl Wire {
    fn new(stream: TcpStream, side: &'static str) -> Self {
        Self { stream, side, room: STEP_BYTES, step: Box::pin(sleep(STEP)) }
    }
}

impl Connected for Wire {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            trace::note(&format!("{} reads", self.side), &buffer.filled()[before..]);
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.room == 0 {
            ready!(self.step.as_mut().poll(context));
        }
        if self.step.is_elapsed() {
            self.step.as_mut().reset(Instant::now() + STEP);
            self.room = STEP_BYTES;
        }
        let bytes = &bytes[..bytes.len().min(self.room)];
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.room -= written;
            trace::note(&format!("{} writes", self.side), &bytes[..written]);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Everybody who connects to this host.
pub(crate) async fn incoming() -> io::Result<ReceiverStream<io::Result<Wire>>> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let (sender, accepted) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let accepted = Wire::new(stream, "coordinator");
            if sender.send(Ok(accepted)).await.is_err() {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(accepted))
}
