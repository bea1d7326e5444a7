//! The made-up network: connections and listeners of the simulation instead of the kernel's.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use orchestrator_proto::{Dial, Stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
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
            Ok(Box::new(Traced { stream, side: "client" }) as Box<dyn Stream>)
        })
    }))
}

/// A connection whose bytes are noted.
pub(crate) struct Traced {
    stream: TcpStream,
    side: &'static str,
}

impl Connected for Traced {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Traced {
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

impl AsyncWrite for Traced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = polled {
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
pub(crate) async fn incoming() -> io::Result<ReceiverStream<io::Result<Traced>>> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let (sender, accepted) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let accepted = Traced { stream, side: "coordinator" };
            if sender.send(Ok(accepted)).await.is_err() {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(accepted))
}
