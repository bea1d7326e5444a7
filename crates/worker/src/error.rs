//! Why an agent cannot start or go on.

use std::{io, path::PathBuf, time::Duration};

use orchestrator_proto::{ConnectError, Refusal};
use orchestrator_types::SliceId;

/// Why there is no agent.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Nothing is offered.
    #[error("there is no slice to offer; give the worker at least one")]
    NoSlice,
    /// The scratch or cache folder cannot be used.
    #[error("cannot {action} {path}; choose a folder that this user can write to")]
    Folder {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Another agent uses the scratch folder.
    #[error("{path} is in use by another worker; give each worker a scratch folder of its own")]
    ScratchInUse {
        /// The folder.
        path: PathBuf,
    },
    /// A Unix socket's path is too long for the kernel.
    #[error(
        "the socket {path} has {length} bytes in its path, and Linux takes at most 107; choose a \
         scratch folder with a shorter path"
    )]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// Its length.
        length: usize,
    },
    /// An executor does not come up.
    #[error("the executor of slice {slice} does not start")]
    Executor {
        /// Its slice.
        slice: SliceId,
        /// Why.
        #[source]
        source: Box<ExecutorError>,
    },
    /// The coordinator does not take this worker.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Why an agent that was at work has ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is no coordinator that would take it.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// No slice has an executor any more.
    #[error("no slice is left to work on: slice {slice} has no executor and gets none")]
    NoSlice {
        /// The last slice that was given up.
        slice: SliceId,
        /// Why its last start failed.
        #[source]
        source: Box<ExecutorError>,
    },
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Nobody answers.
    #[error(
        "no coordinator answered at {address} within {} s; is it running, and is the address right?",
        .waited.as_secs_f64()
    )]
    Unreachable {
        /// Where it should be.
        address: String,
        /// For how long it was tried.
        waited: Duration,
        /// The last answer.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The address is none.
    #[error(transparent)]
    Address(ConnectError),
    /// It answers, and says no.
    #[error("the coordinator at {address} refuses this worker")]
    Refused {
        /// Where it is.
        address: String,
        /// What it says.
        #[source]
        source: Refusal,
    },
}

/// Why an executor is not up. Messages end with what it wrote to its standard error, if anything.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The system does not start it.
    #[error("cannot start {program}")]
    Spawn {
        /// Its program.
        program: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// It ended before it answered.
    #[error("{program} {how} before it answered{last_words}")]
    Ended {
        /// Its program.
        program: PathBuf,
        /// Exit code or signal.
        how: String,
        /// Its last lines.
        last_words: String,
    },
    /// It runs and does not answer.
    #[error("{program} did not answer within {} s{last_words}", .waited.as_secs())]
    Silent {
        /// Its program.
        program: PathBuf,
        /// How long it had.
        waited: Duration,
        /// Its last lines.
        last_words: String,
    },
    /// None may be started: the slice is not free, or its device not to be trusted.
    #[error("the slice is fenced: {why}")]
    Fenced {
        /// What keeps it.
        why: String,
    },
    /// It is not of this build.
    #[error("{program} is {found}, and this is {expected}; install both programs from one build")]
    OtherBuild {
        /// Its program.
        program: PathBuf,
        /// What it says it is.
        found: String,
        /// What it should be.
        expected: String,
    },
}
