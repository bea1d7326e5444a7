//! HTTP for probes and scrapers: read-only, and nothing that a browser could change.
//!
//! Beyond this machine it is served inside mutual TLS. On this machine a page of somebody else's could
//! call it under a name of its own (DNS rebinding), so there only names of this machine are answered.
//!
//! Absent on purpose: anything that asks the driver. A probe is answered while the driver works.

use std::{io, net::SocketAddr};

use axum::{
    Router,
    extract::Request,
    http::{HeaderName, StatusCode, header::CONTENT_TYPE, header::HOST, uri::Authority},
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
    routing::get,
    serve::Listener,
};
use orchestrator_tls::{Credentials, Incoming, Secured};
use tokio::net::TcpListener;

use crate::{life::Life, metrics::Metrics};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where requests come from.
pub(crate) enum Door {
    /// From this machine, or from whom the user lets in.
    Open(TcpListener),
    /// From who shows a certificate.
    Certified(Incoming),
}

/// Connections inside TLS, as the server takes them.
struct Certified(Incoming);

impl Listener for Certified {
    type Io = Secured;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Secured, SocketAddr) {
        match self.0.next().await {
            Some(secured) => {
                let address = secured.peer().address;
                (secured, address)
            }
            // The listener ends with the runtime.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.address())
    }
}

/// Serves until `life` ends.
pub(crate) async fn serve(door: Door, metrics: Metrics, life: Life) {
    let health = life.clone();
    let router = Router::new()
        .route("/healthz", get(move || healthz(health.clone())))
        .route("/metrics", get(move || scrape(metrics.clone())));
    let stop = life.stop().clone();
    let stopped = async move { stop.cancelled().await };
    let served = match door {
        Door::Certified(incoming) => {
            axum::serve(Certified(incoming), router).with_graceful_shutdown(stopped).await
        }
        Door::Open(listener) => {
            let local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
            let router = if local { router.layer(from_fn(by_our_name)) } else { router };
            axum::serve(listener, router).with_graceful_shutdown(stopped).await
        }
    };
    if let Err(error) = served {
        // Evaluations go on without their gauges.
        tracing::error!(%error, "the HTTP server failed");
    }
}

/// Binds `address`.
pub(crate) async fn listen(
    address: SocketAddr,
    tls: Option<Credentials>,
) -> io::Result<(Door, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let door = match tls.filter(|_| !address.ip().is_loopback()) {
        Some(tls) => Door::Certified(Incoming::http(listener, tls)?),
        None => Door::Open(listener),
    };
    Ok((door, address))
}

/// Answers who called this machine by a name of its own.
async fn by_our_name(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let authority = host.and_then(|host| host.parse::<Authority>().ok());
    // An authority in the request's line is HTTP/1.1's other way to name the host.
    let named = request.uri().authority().or(authority.as_ref());
    if named.is_none_or(|authority| is_ours(authority.host())) {
        return next.run(request).await;
    }
    (StatusCode::MISDIRECTED_REQUEST, "ask by an address of this machine\n").into_response()
}

fn is_ours(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[expect(clippy::unused_async, reason = "a handler is a future")]
async fn scrape(metrics: Metrics) -> ([(HeaderName, &'static str); 1], String) {
    ([(CONTENT_TYPE, OPEN_METRICS)], metrics.text())
}

#[expect(clippy::unused_async, reason = "a handler is a future")]
async fn healthz(life: Life) -> (StatusCode, &'static str) {
    if life.stop().is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_not_ours() {
        for ours in ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert!(is_ours(ours), "{ours}");
        }
        for other in ["evil.example", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.x"] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
