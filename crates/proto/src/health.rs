//! [`Health`]: the standard health service (`grpc.health.v1`) on a port of its own, in plaintext,
//! because Kubernetes' probes show no certificate. It tells nothing but its states, and takes nothing.
//!
//! `liveness` serves for as long as the process answers; `readiness`, and the empty name, once it can
//! do its work and until it starts to leave.

use std::{io, net::SocketAddr};

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::connection::server;

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
        let serving =
            server().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let serving = AbortOnDropHandle::new(tokio::spawn(async move {
            // A probe that is not answered tells what this would tell.
            drop(serving.await);
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
