//! How a coordinator is set up.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use orchestrator_proto::Blocking;
use orchestrator_tls::Credentials;

use crate::{blobs::BlobPlace, calls::CallLimits};

/// Settings of one coordinator.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "settings, each with its own name")]
pub struct Config {
    /// Folder of the store, the blobs and finished runs; one coordinator at a time.
    pub state: PathBuf,
    /// Where to listen; port 0 = any free one.
    pub listen: SocketAddr,
    /// Where to serve HTTP for probes and metrics, beyond this machine only with `tls` around it; none:
    /// nowhere. Port 0 = any free one.
    pub http: Option<SocketAddr>,
    /// Who we are and whom we believe; none: nothing is encrypted, and nobody told apart.
    pub tls: Option<Credentials>,
    /// Whether calls that change something are also noted in the state folder.
    pub audit: bool,
    /// Whether gRPC reflection tells callers which services there are.
    pub reflection: bool,
    /// Build that workers must have, so that one run is never computed by two.
    pub build: String,
    /// Slices that planning waits for, at most for `slice_wait`; at least one is needed.
    pub expected_slices: usize,
    /// See `expected_slices`.
    pub slice_wait: Duration,
    /// How often workers report.
    pub heartbeat: Duration,
    /// Silence after which a worker is lost; several heartbeats.
    pub lease: Duration,
    /// Whether runs that were interrupted go on when the coordinator starts.
    pub continue_interrupted: bool,
    /// Time after which an attempt may be slow; near the end of a run it then gets a twin.
    pub straggler: Duration,
    /// How long runs wait when no worker is left at all before they end, incomplete.
    pub no_worker: Duration,
    /// How long a stop waits for calls in work.
    pub stop_wait: Duration,
    /// How many calls are in work at once.
    pub calls: CallLimits,
    /// Age at which callers are asked to connect anew, which ends no call in work; none: never.
    pub connection_age: Option<Duration>,
    /// Where blobs are kept.
    pub blobs: BlobPlace,
    /// Whether the store may lie on a network's file system.
    pub network_store: bool,
    /// Where work that blocks is done; simulations do it inline.
    pub blocking: Blocking,
}

impl Config {
    /// A coordinator on this machine's loopback, on any free port.
    pub fn local(state: PathBuf) -> Self {
        Self {
            state,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            http: None,
            tls: None,
            audit: false,
            reflection: false,
            build: orchestrator_proto::BUILD.to_owned(),
            expected_slices: 1,
            slice_wait: Duration::from_secs(10),
            // On one machine a heartbeat costs nothing, and progress moves with it.
            heartbeat: Duration::from_millis(500),
            lease: Duration::from_secs(30),
            continue_interrupted: false,
            straggler: Duration::from_secs(30),
            no_worker: Duration::from_mins(10),
            stop_wait: Duration::from_secs(3),
            calls: CallLimits::default(),
            connection_age: None,
            blobs: BlobPlace::State,
            network_store: false,
            blocking: Blocking::Threads,
        }
    }
}
