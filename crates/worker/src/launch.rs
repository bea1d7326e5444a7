//! [`Launch`]: how an executor comes to life. The product has one way, [`Processes`]; a simulation,
//! which owns its only thread, brings another.

use std::{fmt, future::Future, io, path::PathBuf, pin::Pin, process::ExitStatus, time::Duration};

use orchestrator_proto::connect_unix;
use orchestrator_types::{ByteCount, DeviceId, SliceId};
use tonic::transport::Channel;

use crate::process::Process;

/// A future behind a trait.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How to start the executor of one slice.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The slice.
    pub slice: SliceId,
    /// The executor's program.
    pub program: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
    /// Blobs that it shares with the agent, each under its digest.
    pub blobs: PathBuf,
    /// What outlives it.
    pub cache: PathBuf,
    /// Decoded samples, which all executors of the node share.
    pub decoded: PathBuf,
    /// Most that they may take over all executors.
    pub decoded_limit: ByteCount,
    /// Compute threads.
    pub threads: u32,
    /// Where it computes.
    pub device: DeviceId,
    /// Most memory of the device that it may use.
    pub ceiling: ByteCount,
    /// Folders, without links, that it may read images from; none: any.
    pub roots: Vec<PathBuf>,
    /// The build that it must have.
    pub build: String,
}

/// Starts executors.
pub trait Launch: fmt::Debug + Send + Sync + 'static {
    /// Starts one.
    ///
    /// # Errors
    /// What the system says.
    fn spawn<'a>(&'a self, recipe: &'a Recipe) -> Later<'a, io::Result<Box<dyn Child>>>;

    /// A connection to the one that was started last; `None` while it does not listen.
    fn connect<'a>(&'a self, recipe: &'a Recipe) -> Later<'a, Option<Channel>>;
}

/// An executor's process. Dropping it ends the process.
pub trait Child: fmt::Debug + Send + Sync {
    /// Its pid, also when it is reaped and what it started is not gone.
    fn number(&self) -> Option<u32>;

    /// Whether nothing is left of it and of what it started.
    fn is_gone(&mut self) -> bool;

    /// How it ended, if it has.
    fn ended(&mut self) -> Option<ExitStatus>;

    /// Waits for its end; `None` if it is still there after `limit`.
    fn end_within(&mut self, limit: Duration) -> Later<'_, Option<ExitStatus>>;

    /// What it wrote last, to be put after a message: empty, or a colon and the lines.
    fn last_words(&mut self) -> Later<'_, String>;

    /// Asks it to leave, and kills it if it does not.
    fn end(&mut self) -> Later<'_, ()>;

    /// Kills it, and waits until it is gone.
    fn kill(&mut self) -> Later<'_, ()>;
}

/// Executors are processes of this host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Processes;

impl Launch for Processes {
    fn spawn<'a>(&'a self, recipe: &'a Recipe) -> Later<'a, io::Result<Box<dyn Child>>> {
        Box::pin(async {
            let process = Process::spawn(recipe.command(), recipe.slice.clone()).await?;
            Ok(Box::new(process) as Box<dyn Child>)
        })
    }

    fn connect<'a>(&'a self, recipe: &'a Recipe) -> Later<'a, Option<Channel>> {
        Box::pin(async {
            if !recipe.socket.exists() {
                return None;
            }
            connect_unix(recipe.socket.clone()).await.ok()
        })
    }
}

impl Child for Process {
    fn number(&self) -> Option<u32> {
        Self::number(self)
    }

    fn is_gone(&mut self) -> bool {
        Self::is_gone(self)
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        Self::ended(self)
    }

    fn end_within(&mut self, limit: Duration) -> Later<'_, Option<ExitStatus>> {
        Box::pin(Self::end_within(self, limit))
    }

    fn last_words(&mut self) -> Later<'_, String> {
        Box::pin(Self::last_words(self))
    }

    fn end(&mut self) -> Later<'_, ()> {
        Box::pin(Self::end(self))
    }

    fn kill(&mut self) -> Later<'_, ()> {
        Box::pin(Self::kill(self))
    }
}
