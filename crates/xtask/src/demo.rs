//! `cargo xtask demo`: from a fresh clone to the numbers of a real evaluation.

use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::graph::Graph;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The evaluation that the demonstration runs, from the checkout's root.
const EVALUATION: &str = "tests/data/eval.yaml";

/// Sets up, builds, and turns into `orchestrator submit`: its output, signals and exit code are
/// the demonstration's own.
pub(crate) fn run(checkout: &Checkout, submit: &[OsString]) -> Result<ExitCode> {
    setup::run(checkout, false)?;
    let cache = BuildCache::choose(checkout)?;
    let folder = release_binaries(&cache)?;
    eprintln!("binaries: {0}/orchestrator and {0}/orchestrator-executor", folder.display());
    eprintln!("running: orchestrator submit {EVALUATION}");
    eprintln!("the report will be report.md in the run folder that the last line names\n");
    cache.keep_over_exec()?;
    let error = Command::new(folder.join("orchestrator"))
        .current_dir(checkout.root())
        .arg("submit")
        .arg(EVALUATION)
        .args(submit)
        .exec();
    Err(error).context("cannot start orchestrator")
}

/// Builds both binaries in release mode; returns the folder that holds them.
pub(crate) fn release_binaries(cache: &BuildCache<'_>) -> Result<PathBuf> {
    build(cache, cache.cargo())
}

/// The same for another machine: without a path of this one inside.
pub(crate) fn distributed_binaries(cache: &BuildCache<'_>) -> Result<PathBuf> {
    let mut cargo = cache.cargo();
    cargo.env("ORCHESTRATOR_DIST", "1");
    build(cache, cargo)
}

fn build(cache: &BuildCache<'_>, mut build: Command) -> Result<PathBuf> {
    let graph = Graph::of_workspace(cache.cargo())?;
    cache.claim(&graph)?;
    build.args(["build", "--release"]);
    build.args(["--package", "orchestrator-cli", "--package", "orchestrator-executor"]);
    let status = build.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the release build failed ({status})");
    }
    Ok(graph.target_folder.join("release"))
}
