//! `cargo xtask bench scheduler`: units a second through the coordinator's gRPC and store, beside
//! `dask.distributed`.
//!
//! The measuring process is `tests/bench/scheduler.rs`. Dask keeps nothing on disk and slows down with
//! the number of tasks, so it gets a smaller job of the same shape, which favours it.

use super::python::{Python, output};
use super::results::{self, machine};
use super::say;
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::graph::Graph;
use crate::setup;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Asked {
    /// Data sets of the evaluation, each with 8,193 units; 123 are a million
    #[arg(long, default_value_t = 123, value_parser = clap::value_parser!(u32).range(25..))]
    datasets: u32,
    /// Workers, each one connection
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    workers: u32,
    /// Shards that dask gets, each with two tasks
    #[arg(long, default_value_t = 10_000)]
    dask_shards: u32,
    /// Workers that dask gets: with a hundred it is many times slower
    #[arg(long, default_value_t = 8)]
    dask_workers: u32,
    /// Binaries that are there, instead of a release build; their figures are told as such
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
}

pub(crate) fn run(checkout: &Checkout, asked: &Asked) -> Result<()> {
    setup::run(checkout, false)?;
    let cache = BuildCache::choose(checkout)?;
    let graph = Graph::of_workspace(cache.cargo())?;
    cache.claim(&graph)?;
    let program = match &asked.binaries {
        Some(folder) => folder.canonicalize().context("no such folder of binaries")?,
        None => build(&cache, &graph)?,
    };
    let program = program.join("orchestrator");
    let python = Python::of(checkout, "bench-dask", &["distributed==2026.8.0"])?;
    let mut command = cache.cargo();
    command.args(["bench", "--package", "orchestrator-tests", "--bench", "scheduler", "--"]);
    command.args([asked.datasets.to_string(), asked.workers.to_string()]);
    // No executor is ever started.
    command.env("ORCHESTRATOR_BIN", &program).env("ORCHESTRATOR_EXECUTOR", &program);
    let ours = json(&output(command.stderr(Stdio::inherit()))?)?;
    let shape = [asked.dask_shards.to_string(), asked.dask_workers.to_string()];
    let dask = json(&python.run("dask_rate.py", shape)?)?;
    let table = table(&ours, &dask);
    say(&table)?;
    let build = asked.binaries.as_ref().map_or("release build", |_| "binaries that were given");
    let body = format!("{}; {build}.\n\n{table}", machine()?);
    results::replace(checkout, "## `cargo xtask bench scheduler`", &body)
}

fn build(cache: &BuildCache<'_>, graph: &Graph) -> Result<PathBuf> {
    let mut build = cache.cargo();
    build.args(["build", "--release", "--package", "orchestrator-cli"]);
    if !build.status().context("cannot start cargo")?.success() {
        bail!("the coordinator cannot be built");
    }
    Ok(graph.target_folder.join("release"))
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text.trim()).context("a benchmark printed no JSON")
}

fn table(ours: &Value, dask: &Value) -> String {
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or(f64::NAN);
    let own = |key: &str| number(ours, key);
    let mib = |key: &str| own(key) / f64::from(1 << 20);
    let dask_rate = number(dask, "per_second");
    [
        "| figure | measured | target |".to_owned(),
        "| --- | ---: | ---: |".to_owned(),
        format!(
            "| completions a second: {} units, {} workers, leases and commits of {} | {:.0} | ≥ 50,000 |",
            ours["units"], ours["workers"], ours["batch"], own("per_second")
        ),
        format!(
            "| the same beside dask.distributed {} ({:.0}/s: {} tasks, {} workers, nothing on disk) \
             | {:.0} × | ≥ 10 × |",
            dask["version"].as_str().unwrap_or("?"),
            dask_rate,
            dask["units"],
            dask["workers"],
            own("per_second") / dask_rate
        ),
        format!(
            "| coordinator's memory, bytes a unit above a busy coordinator ({:.0} MiB) with 197 thousand \
             | {:.0} | ≤ 100 |",
            mib("base_bytes"),
            own("bytes_per_unit")
        ),
        format!("| restart after a clean stop, s | {:.2} | ≤ 3 |", own("restart_seconds")),
        format!(
            "| restart after kill -9, s: every page of {:.0} MiB is checked | {:.2} | – |",
            mib("store_bytes"),
            own("restart_after_kill_seconds")
        ),
    ]
    .join("\n")
}
