//! What is known of this machine before anything is made of it. Written out by `doctor --json`, and
//! read back by tests.

use std::{collections::BTreeMap, path::PathBuf};

use orchestrator_host::HostMemory;
use orchestrator_types::ByteCount;
use serde::{Deserialize, Serialize};

use crate::devices::Answer;

/// Everything that was looked at.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Facts {
    /// Of this program.
    pub(crate) build: String,
    pub(crate) executor: Executor,
    /// Variables of the environment that we or CUDA read.
    pub(crate) variables: BTreeMap<String, String>,
    /// Whether an NVIDIA driver has left anything where it shows its devices.
    pub(crate) driver_traces: bool,
    pub(crate) processors: Processors,
    pub(crate) memory: HostMemory,
    pub(crate) folders: Vec<Folder>,
    /// The longest path of a socket that a worker would make, in bytes.
    pub(crate) socket_bytes: usize,
    /// If one was named.
    pub(crate) coordinator: Option<Coordinator>,
    /// If one was named.
    pub(crate) tls: Option<TlsFolder>,
}

/// The executor's program.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Executor {
    /// It is not where it should be.
    Missing { why: String },
    /// It is there and does not answer.
    Silent { path: PathBuf, why: String },
    /// What it says of itself and of GPUs.
    Answers { path: PathBuf, answer: Answer },
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Processors {
    /// Of the machine.
    pub(crate) online: u32,
    /// How many threads this process may run at once.
    pub(crate) usable: u32,
    /// What its cgroups let it have, in thousandths of a processor.
    pub(crate) cgroup_millis: Option<u64>,
}

/// A folder that something needs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Folder {
    pub(crate) purpose: Purpose,
    pub(crate) path: PathBuf,
    /// What the file system says, if it may not be written to.
    pub(crate) refused: Option<String>,
    /// Room on its volume, where told.
    pub(crate) free: Option<ByteCount>,
    pub(crate) total: Option<ByteCount>,
}

/// What a folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    /// Runs of `submit` on this machine.
    Runs,
    /// What `coordinator` keeps.
    Coordinator,
    /// Texts' embeddings and the best batches.
    Cache,
    /// Blobs and sockets of `worker`.
    Scratch,
    /// The same of `submit`.
    Temporary,
}

/// The coordinator that was named.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Coordinator {
    pub(crate) url: String,
    pub(crate) reached: Reached,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reached {
    Answers {
        workers: usize,
        slices: usize,
    },
    /// It lets us in, and this certificate may not ask for more.
    Greets,
    Fails {
        why: String,
        advice: Option<String>,
    },
}

/// The folder of certificates that was named.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct TlsFolder {
    pub(crate) path: PathBuf,
    pub(crate) content: Certificates,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Certificates {
    /// Whose certificate it is, until when, and how many days that is.
    Good { identity: String, until: String, days: i64 },
    /// It cannot be used.
    Bad { why: String },
}

impl Facts {
    /// A variable that is set to something.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.trim().is_empty())
    }

    /// What the executor tells, if it does.
    pub(crate) fn answer(&self) -> Option<&Answer> {
        match &self.executor {
            Executor::Answers { answer, .. } => Some(answer),
            Executor::Missing { .. } | Executor::Silent { .. } => None,
        }
    }

    /// Whether the worker of this machine is told to use a GPU.
    pub(crate) fn wants_gpu(&self) -> bool {
        let named = self.variable("ORCHESTRATOR_DEVICE").unwrap_or_default();
        named
            .split(',')
            .any(|name| name == "gpu" || name.starts_with("GPU-") || name.starts_with("MIG-"))
    }

    pub(crate) fn in_pod(&self) -> bool {
        self.variable("KUBERNETES_SERVICE_HOST").is_some()
    }
}
