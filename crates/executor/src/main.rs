//! `orchestrator-executor`: command line, logs, signals; the work is in the library.

mod lifeline;

use std::{
    io::{self, IsTerminal as _},
    num::NonZeroU16,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use clap::Parser;
use lifeline::Lifeline;
use orchestrator_engine::Attention;
use orchestrator_executor::{
    DecodedFolder, ProfileError, Request, Settings, devices, health, profile, serve,
};
use orchestrator_types::{AllocatorSettings, ByteCount, Component, DeviceId, Precision};
use tracing::error;
use tracing_subscriber::EnvFilter;

/// Computes what an orchestrator's worker hands it: one process for each slice of a device.
///
/// The worker's agent starts it, talks to it over a Unix socket, and ends it by closing its
/// standard input. People start `orchestrator submit` or `orchestrator worker` instead; started by
/// hand it waits for work that never comes, until Ctrl-D.
#[derive(Debug, Parser)]
#[command(name = "orchestrator-executor", version)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    serve: Option<Serve>,
}

/// The build of this program.
const BUILD: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Print the GPUs and MIG instances that can be used, as JSON
    Devices,
    /// Print news of GPUs, one JSON object a line, until standard input ends; a line on it asks for
    /// a reading
    Health(Health),
    /// Measure where the bytes of one tower go, and print that as JSON
    Profile(Profile),
}

/// The agent calls it, once for all GPUs that it offers.
#[derive(Debug, clap::Args)]
struct Health {
    /// `GPU-<uuid>` or `MIG-<uuid>`; may be repeated
    #[arg(long = "device", value_name = "DEVICE", required = true)]
    devices: Vec<DeviceId>,
}

/// `orchestrator profile` calls it, for each tower.
#[derive(Debug, clap::Args)]
struct Profile {
    /// The model's folder
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// `text` or `vision`
    #[arg(long, value_parser = component)]
    component: Component,
    /// `fp32`, `fp16` or `bf16`
    #[arg(long, default_value = "fp32")]
    precision: Precision,
    /// `cpu`, `GPU-<uuid>` or `MIG-<uuid>`
    #[arg(long, default_value = "cpu")]
    device: DeviceId,
    /// Most memory of the device that may be used, in bytes; 8 GiB unless given
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 30)]
    quota: u64,
    /// Settings of the allocator, as PYTORCH_ALLOC_CONF spells them
    #[arg(long, value_name = "SETTINGS")]
    allocator: Option<AllocatorSettings>,
    /// Batches of the curve
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = clap::value_parser!(u32).range(1..))]
    rows: Vec<u32>,
    /// Write attention out instead of using fused kernels
    #[arg(long)]
    math_attention: bool,
}

fn component(text: &str) -> Result<Component, String> {
    [Component::Text, Component::Vision]
        .into_iter()
        .find(|component| component.name() == text)
        .ok_or_else(|| "expected `text` or `vision`".to_owned())
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Where to listen: path of a Unix socket that does not exist yet.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Folder of results, shared with the agent; made if missing.
    #[arg(long, value_name = "DIR")]
    blobs: PathBuf,
    /// Folder of text embeddings, shared by all executors of this host; made if missing.
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Folder of decoded images, shared by all executors of this host; made if missing.
    #[arg(long, value_name = "DIR", requires = "decoded_bytes")]
    decoded: Option<PathBuf>,
    /// Most that this folder may hold, in bytes, over all executors; 0 decodes every image anew.
    #[arg(long, value_name = "BYTES", requires = "decoded")]
    decoded_bytes: Option<u64>,
    /// Compute threads. Results do not depend on it.
    #[arg(long, value_name = "N")]
    threads: NonZeroU16,
    /// Where towers run: `cpu`, `GPU-<uuid>` or `MIG-<uuid>`
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceId,
    /// Most memory of the device that may be used, in bytes
    #[arg(long, value_name = "BYTES")]
    ceiling: u64,
    /// A folder that images are read from, without links; may be repeated. None: from anywhere.
    #[arg(long = "data-root", value_name = "DIR")]
    roots: Vec<PathBuf>,
    /// Told to the agent, which refuses an executor of another build.
    #[arg(long, value_name = "ID", default_value = BUILD)]
    build: String,
    /// Process that this one shall not outlive, its parent: the kernel kills it then
    #[arg(long, value_name = "PID")]
    agent: Option<i32>,
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
    let outcome = match (arguments.verb, arguments.serve) {
        (Some(Verb::Devices), _) => print(&devices(BUILD)),
        (Some(Verb::Health(Health { devices })), _) => health(devices).map_err(Into::into),
        (Some(Verb::Profile(request)), _) => return profiled(request),
        (None, Some(arguments)) => run(arguments),
        (None, None) => unreachable!("clap asks for one of both"),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Exit code where the quota is too small, as everywhere in this project.
const DOES_NOT_FIT: u8 = 5;

fn profiled(request: Profile) -> ExitCode {
    if let Some(error) = alone_with(&request.device) {
        error!("cannot start anew with {} alone in sight: {error}", request.device);
        return ExitCode::FAILURE;
    }
    let Profile { model, component, precision, device, quota, allocator, rows, .. } = request;
    let attention = if request.math_attention { Attention::Math } else { Attention::Fused };
    let ceiling = ByteCount::bytes(quota);
    let request =
        Request { model, component, precision, device, ceiling, allocator, rows, attention };
    let told = match profile(&request) {
        Ok(profile) => serde_json::to_value(profile).map_err(Into::into).and_then(|p| print(&p)),
        Err(error @ ProfileError::DoesNotFit(_)) => {
            error!("{error}");
            return ExitCode::from(DOES_NOT_FIT);
        }
        Err(error) => Err(error.into()),
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Starts this program anew where CUDA would show it other devices than this one, which is read when
/// CUDA is loaded. Comes back if there is no need to, or with an error.
fn alone_with(device: &DeviceId) -> Option<io::Error> {
    const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
    let name = device.to_string();
    if *device == DeviceId::Cpu || std::env::var(VISIBLE).is_ok_and(|visible| visible == name) {
        return None;
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Some(error),
    };
    Some(Command::new(program).args(std::env::args_os().skip(1)).env(VISIBLE, name).exec())
}

fn print(document: &serde_json::Value) -> anyhow::Result<()> {
    use std::io::Write as _;
    Ok(writeln!(io::stdout(), "{document}")?)
}

fn run(arguments: Serve) -> anyhow::Result<()> {
    let Serve {
        socket,
        blobs,
        cache,
        decoded,
        decoded_bytes,
        threads,
        device,
        ceiling,
        roots,
        build,
        agent,
    } = arguments;
    agent.map_or(Ok(()), lifeline::follow)?;
    let decoded = decoded
        .zip(decoded_bytes)
        .map(|(folder, limit)| DecodedFolder { folder, limit: ByteCount::bytes(limit) });
    let ceiling = ByteCount::bytes(ceiling);
    let threads = usize::from(threads.get());
    let settings = Settings { blobs, cache, decoded, threads, device, ceiling, roots };
    let lifeline = Lifeline::new().context("cannot watch standard input")?;
    let end = async {
        if let Err(error) = lifeline.ended().await {
            error!(%error, "cannot listen for signals");
        }
    };
    Ok(serve(settings, &socket, build, end)?)
}
