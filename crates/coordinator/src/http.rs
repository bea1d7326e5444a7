//! HTTP for probes and scrapers: read-only, and nothing that a browser could change.
//!
//! Absent on purpose: anything that asks the driver. A probe is answered while the driver works.

use std::net::SocketAddr;

use axum::{
    Router,
    http::{HeaderName, StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use tokio::net::TcpListener;

use crate::{life::Life, metrics::Metrics};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until `life` ends.
pub(crate) async fn serve(listener: TcpListener, metrics: Metrics, life: Life) {
    let health = life.clone();
    let router = Router::new()
        .route("/healthz", get(move || healthz(health.clone())))
        .route("/metrics", get(move || scrape(metrics.clone())));
    let stop = life.stop().clone();
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await;
    if let Err(error) = served {
        // Evaluations go on without their gauges.
        tracing::error!(%error, "the HTTP server failed");
    }
}

/// Binds `address`.
pub(crate) async fn listen(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
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
