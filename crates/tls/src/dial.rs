//! [`dial`]: connections to a coordinator.

use std::{io, sync::Arc, time::Duration};

use orchestrator_proto::{Dial, Stream};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::codegen::http::Uri;

use crate::{Credentials, Identity, Role};

const CONNECT: Duration = Duration::from_secs(3);
const DEFAULT_PORT: u16 = 7070;

/// How a coordinator is reached with these credentials: encrypted, and only if its certificate names
/// the host that was called and is a coordinator's.
pub fn dial(credentials: Credentials) -> Dial {
    Dial::With(Arc::new(move |uri| {
        let credentials = credentials.clone();
        Box::pin(async move {
            let connected = timeout(CONNECT, connect(&credentials, &uri)).await;
            let stream = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }))
}

async fn connect(
    credentials: &Credentials,
    uri: &Uri,
) -> io::Result<BufReader<TlsStream<TcpStream>>> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(DEFAULT_PORT);
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::clone(&credentials.current().client));
    let stream = connector.connect(name, stream).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|shown| shown.first());
    let shown = shown.ok_or_else(|| io::Error::other("no certificate was shown"))?;
    let identity = Identity::of(shown).map_err(io::Error::other)?;
    if identity.role() != Role::Coordinator {
        let message =
            format!("what answers there shows the certificate of {identity}, no coordinator's");
        return Err(io::Error::other(message));
    }
    // In TLS 1.3 a client hears of its certificate's refusal with the first bytes that it reads. A
    // server of HTTP/2 speaks first, so they are waited for: a connection is one that was accepted.
    let mut stream = BufReader::new(stream);
    if stream.fill_buf().await?.is_empty() {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    Ok(stream)
}
