//! The worker agent: it leases units from a coordinator, has them computed by executors, and hands
//! the results back. A library, because `submit` without a coordinator runs it in its own process.
//!
//! ```text
//! Agent ── session: register, heartbeat
//!   └── slice (one each) ── lease → fetch inputs → execute → stage → commit, or fail
//!         └── supervisor ── executor process: start, describe, watch, restart, kill, reap
//! health ── one process that asks NVML: alarms for supervisors, readings for the next start
//! ```
//!
//! Invariants:
//! - an executor belongs to one slice, and lives no longer than the agent: it is killed and reaped
//!   on shutdown and when the [`Agent`] is dropped, the kernel kills it when the agent is killed, and
//!   it leaves by itself when its standard input ends;
//! - a slice runs one attempt at a time, and every attempt ends in a commit, in a failure with its
//!   class, or in silence: because the coordinator has taken it back, or because the agent stops;
//! - a slice is used again only when nothing of its dead executor is left; one that is not free, or
//!   whose GPU is at fault, is fenced, and one whose executor does not start any more is given up:
//!   the agent registers again without it, and ends when none is left;
//! - every call has a deadline, and every wait ends when it is no longer wanted.
//!
//! Absent on purpose: decisions (which unit, which batch, whether to retry), eval.yaml, libtorch.

mod agent;
mod attempt;
mod backoff;
mod blobs;
mod client;
mod config;
mod data_access;
mod death;
mod error;
mod executor;
mod failure;
mod health;
mod heartbeat;
mod host;
mod last_words;
mod launch;
mod locate;
mod pace;
mod process;
mod registration;
mod retry;
mod scratch;
mod session;
mod slice;
mod starter;
mod supervisor;
mod vacancy;

pub use agent::Agent;
pub use client::{Client, TransferError};
pub use config::{Config, Limits};
pub use data_access::{
    DataAccess, DataPathError, DataRoot, DataRootError, ParseDataRootError, Roots,
};
pub use error::{AgentError, ExecutorError, RegisterError, StartError};
pub use launch::{Child, Later, Launch, Processes, Recipe};
pub use locate::{EXECUTOR_NAME, FindError, find_executor};
pub use process::adopt_orphans;
