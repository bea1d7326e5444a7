//! `orchestrator-executor`: command line, logs, signals; the work is in the library.

mod lifeline;

use std::{
    io::{self, IsTerminal as _},
    num::NonZeroU16,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Parser;
use lifeline::Lifeline;
use orchestrator_executor::{Settings, serve};
use orchestrator_types::{ByteCount, DeviceId};
use tracing::error;
use tracing_subscriber::EnvFilter;

/// Computes what an orchestrator's worker hands it: one process for each slice of a device.
///
/// The worker's agent starts it, talks to it over a Unix socket, and ends it by closing its
/// standard input. People start `orchestrator submit` or `orchestrator worker` instead; started by
/// hand it waits for work that never comes, until Ctrl-D.
#[derive(Debug, Parser)]
#[command(name = "orchestrator-executor", version)]
struct Arguments {
    /// Where to listen: path of a Unix socket that does not exist yet.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Folder of results, shared with the agent; made if missing.
    #[arg(long, value_name = "DIR")]
    blobs: PathBuf,
    /// Folder of text embeddings, shared by all executors of this host; made if missing.
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Compute threads. Results do not depend on it.
    #[arg(long, value_name = "N")]
    threads: NonZeroU16,
    /// Where towers run: `cpu`, `GPU-<uuid>` or `MIG-<uuid>`
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceId,
    /// Most memory of the device that may be used, in bytes
    #[arg(long, value_name = "BYTES")]
    ceiling: u64,
    /// Told to the agent, which refuses an executor of another build.
    #[arg(long, value_name = "ID", default_value = env!("CARGO_PKG_VERSION"))]
    build: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // RUST_LOG in the usual syntax; the agent passes it on.
    let filter =
        EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { socket, blobs, cache, threads, device, ceiling, build } = arguments;
    let ceiling = ByteCount::bytes(ceiling);
    let threads = usize::from(threads.get());
    let settings = Settings { blobs, cache, threads, device, ceiling };
    let lifeline = Lifeline::new().context("cannot tie the process to its parent")?;
    let end = async {
        if let Err(error) = lifeline.ended().await {
            error!(%error, "cannot listen for signals");
        }
    };
    Ok(serve(settings, &socket, build, end)?)
}
