//! The command line of the two services. What is left out here may stand in the environment, and
//! then in the configuration file; the documented defaults come last.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use orchestrator_coordinator::BlobPlace;
use orchestrator_types::{ByteCount, NodeName};
use orchestrator_worker::DataRoot;
use serde::Deserialize;

use crate::{devices::DeviceChoice, duration::Time};

/// How a service writes its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line, for collectors
    Json,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Coordinator {
    /// Where clients and workers connect (gRPC). Port 0 takes a free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS", env = "ORCHESTRATOR_LISTEN", hide_env_values = true)]
    pub(crate) listen: Option<String>,
    /// Where /healthz and /metrics are (HTTP; beyond this machine inside TLS, as --listen)
    /// [default: 127.0.0.1:7071]
    #[arg(long, value_name = "ADDRESS", env = "ORCHESTRATOR_HTTP", hide_env_values = true)]
    pub(crate) http: Option<String>,
    /// Folder of everything that outlives the service: runs, results, blobs. One coordinator at a
    /// time [default: $XDG_STATE_HOME/orchestrator/coordinator]
    #[arg(long, value_name = "DIR", env = "ORCHESTRATOR_STATE", hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,
    /// Where large results lie: file:///…, s3://bucket/prefix, gs://… or az://…, with credentials
    /// from the usual variables [default: in the state folder]
    #[arg(long, value_name = "URL", env = "ORCHESTRATOR_BLOBS", hide_env_values = true)]
    pub(crate) blobs: Option<BlobPlace>,
    /// Silence after which a worker is lost and its work goes to others [default: 30 s]
    #[arg(long, value_name = "TIME", env = "ORCHESTRATOR_LEASE", hide_env_values = true)]
    pub(crate) lease: Option<Time>,
    /// How often workers report; well below the lease [default: 5 s]
    #[arg(long, value_name = "TIME", env = "ORCHESTRATOR_HEARTBEAT", hide_env_values = true)]
    pub(crate) heartbeat: Option<Time>,
    /// How long runs wait when no worker is left at all, before they end incomplete
    /// [default: 10 min]
    #[arg(long, value_name = "TIME", env = "ORCHESTRATOR_NO_WORKER", hide_env_values = true)]
    pub(crate) no_worker: Option<Time>,
    /// Time after which a unit may count as slow; near the end of a run it then gets a twin on
    /// another worker [default: 30 s]
    #[arg(long, value_name = "TIME", env = "ORCHESTRATOR_STRAGGLER", hide_env_values = true)]
    pub(crate) straggler: Option<Time>,
    /// Take a state folder on a network's file system, where locks and syncs may not hold
    #[arg(long, env = "ORCHESTRATOR_NETWORK_STORE", hide_env_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) network_store: Option<bool>,
    /// Let callers list the services, for tools like grpcurl
    #[arg(long, env = "ORCHESTRATOR_REFLECTION", hide_env_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) reflection: Option<bool>,
    #[command(flatten)]
    pub(crate) service: Service,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Worker {
    /// The coordinator, for example http://127.0.0.1:7070, or https://HOST:7070 with --tls
    #[arg(long, value_name = "URL", env = "ORCHESTRATOR_COORDINATOR", hide_env_values = true)]
    pub(crate) coordinator: Option<String>,
    /// auto, gpu, cpu, GPU-… or MIG-…; may repeat. gpu takes every GPU that can be used, auto the
    /// processor where there is none [default: auto]
    #[arg(
        long,
        value_name = "DEVICE",
        env = "ORCHESTRATOR_DEVICE",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) device: Vec<DeviceChoice>,
    /// Ceiling of the memory of each slice, for example "2 GiB"; a run's own quota wins if lower
    /// [default: what the device offers]
    #[arg(long, value_name = "SIZE", env = "ORCHESTRATOR_QUOTA", hide_env_values = true)]
    pub(crate) quota: Option<ByteCount>,
    /// Cut the processor into N slices, one executor process each [default: 1]
    #[arg(long, value_name = "N", env = "ORCHESTRATOR_SLICES", hide_env_values = true,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) slices: Option<u32>,
    /// Name of this worker in the cluster, unlike any other's [default: the host's name]
    #[arg(long, value_name = "NAME", env = "ORCHESTRATOR_NAME", hide_env_values = true)]
    pub(crate) name: Option<NodeName>,
    /// A folder of data and its name: evaluations may read below it, as NAME:path or by the full
    /// path, and nowhere else; may repeat. In the environment, `;` stands between several
    #[arg(
        long = "data-root",
        value_name = "NAME=DIR",
        env = "ORCHESTRATOR_DATA_ROOT",
        hide_env_values = true,
        value_delimiter = ';'
    )]
    pub(crate) data_roots: Vec<DataRoot>,
    /// Folder of sockets and of blobs in transit; emptied at the start, with a short path
    /// [default: $XDG_CACHE_HOME/orchestrator/workers/NAME]
    #[arg(long, value_name = "DIR", env = "ORCHESTRATOR_SCRATCH", hide_env_values = true)]
    pub(crate) scratch: Option<PathBuf>,
    /// How long units in work may go on after SIGTERM [default: 25 s]
    #[arg(long, value_name = "TIME", env = "ORCHESTRATOR_GRACE", hide_env_values = true)]
    pub(crate) grace: Option<Time>,
    #[command(flatten)]
    pub(crate) service: Service,
}

/// What both services take.
#[derive(Args, Debug, Default)]
pub(crate) struct Service {
    /// YAML file with the same keys as these flags, `_` for `-`; flags and environment are
    /// stronger
    #[arg(long, value_name = "FILE", env = "ORCHESTRATOR_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Folder with tls.crt, tls.key and ca.crt, as `orchestrator certs init` makes them: both sides
    /// show a certificate, and everything is encrypted. Read again when it changes
    #[arg(long, value_name = "DIR", env = "ORCHESTRATOR_TLS", hide_env_values = true)]
    pub(crate) tls: Option<PathBuf>,
    /// Where the standard gRPC health service is, in plaintext, for probes: `liveness`, `readiness`
    /// [default: nowhere]
    #[arg(long, value_name = "ADDRESS", env = "ORCHESTRATOR_HEALTH", hide_env_values = true)]
    pub(crate) health: Option<String>,
    /// Let everything travel unencrypted and unauthenticated beyond this machine. Without this and
    /// without --tls, only loopback addresses are taken
    #[arg(long, env = "ORCHESTRATOR_INSECURE_PLAINTEXT", hide_env_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) insecure_plaintext: Option<bool>,
    /// How the log on stderr is written [default: text]
    #[arg(long, value_name = "FORMAT", env = "ORCHESTRATOR_LOG_FORMAT", hide_env_values = true)]
    pub(crate) log_format: Option<LogFormat>,
}
