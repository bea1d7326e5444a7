//! What an agent is told by whoever starts it. Nothing in this crate reads the environment.

use std::{path::PathBuf, sync::Arc, time::Duration};

use orchestrator_proto::{Blocking, Dial, domain::SliceOffer};
use orchestrator_types::{ByteCount, NodeName, SessionId};

use crate::{DataAccess, launch::Launch};

/// Everything that an [`Agent`](crate::Agent) needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the coordinator listens, for example `http://127.0.0.1:7070`.
    pub coordinator: String,
    /// How it is reached.
    pub dial: Dial,
    /// This life of the agent: a name that no other one has or had, for example a ULID.
    pub session: SessionId,
    /// This host's name in the cluster.
    pub node: NodeName,
    /// What this host offers; one executor each, at least one.
    pub slices: Vec<SliceOffer>,
    /// The executor's program; see [`find_executor`](crate::find_executor).
    pub executor: PathBuf,
    /// How executors are started: [`Processes`](crate::Processes), but in a simulation.
    pub launch: Arc<dyn Launch>,
    /// Where file work is done.
    pub blocking: Blocking,
    /// A folder for sockets and blobs. It belongs to one agent at a time, what an earlier agent
    /// left in it is removed, and its path must be short: a socket's path has at most 107 bytes.
    pub scratch: PathBuf,
    /// A folder that outlives the agent: text embeddings by the hash of what they are made from.
    pub cache: PathBuf,
    /// Which paths evaluations may name.
    pub data: DataAccess,
    /// Identity of this build; the executor's must be the same.
    pub build: String,
    /// How long things may take, and how much may be kept.
    pub limits: Limits,
}

/// Bounds on an agent's patience and on its disk.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long the first contact with the coordinator may take before the start fails.
    pub first_contact: Duration,
    /// How long heartbeats may go without an answer before the session is over, and how long the
    /// agent then tries to register again before it gives up.
    pub reconnect: Duration,
    /// How long running attempts may go on after [`Agent::shutdown`](crate::Agent::shutdown).
    pub grace: Duration,
    /// An executor whose attempt makes no progress for so long is killed.
    pub silence: Duration,
    /// Blobs in the scratch folder that no attempt needs are removed beyond this.
    pub blobs: ByteCount,
    /// Decoded samples in the scratch folder, which all executors share, never take more; zero
    /// keeps none. Their pages are host memory, and where the folder is a tmpfs all of them are.
    pub decoded: ByteCount,
}

impl Default for Limits {
    /// 5 s for the first contact, 10 min to reconnect, no grace, 10 min without progress, 2 GiB of
    /// blobs, 1 GiB of decoded samples: 7,000 crops of 224 × 224, which is what several shards need,
    /// and little beside what a node offers. Who knows the node's memory says better.
    fn default() -> Self {
        Self {
            first_contact: Duration::from_secs(5),
            reconnect: Duration::from_mins(10),
            grace: Duration::ZERO,
            silence: Duration::from_mins(10),
            blobs: ByteCount::gib(2),
            decoded: ByteCount::gib(1),
        }
    }
}
