//! `cargo xtask bench chaos`: kill -9 of executors, agents and coordinators, again and again.
//!
//! The loop itself is `tests/bin/chaos.rs`. It notes every kill in a file and goes on from there
//! when it is started again, so that a thousand kills need not fit into one evening.

use super::python::output;
use super::results::{self, machine};
use super::say;
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::graph::Graph;
use crate::{demo, setup};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Asked {
    /// Kills in all, those of earlier calls with the same file included
    #[arg(long, default_value_t = 1000)]
    kills: u32,
    /// Decides delays and victims; printed, so that a loop can be repeated [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// Images of each run; 1593 are the whole set
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1593))]
    images: u32,
    /// Where the loop notes what it did [default: chaos.jsonl in the target folder]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Binaries that are there, instead of a release build; their figures are told as such
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
}

pub(crate) fn run(checkout: &Checkout, asked: &Asked) -> Result<()> {
    setup::run(checkout, false)?;
    let cache = BuildCache::choose(checkout)?;
    let binaries = match &asked.binaries {
        Some(folder) => folder.canonicalize().context("no such folder of binaries")?,
        None => demo::release_binaries(&cache)?,
    };
    let target = Graph::of_workspace(cache.cargo())?.target_folder;
    let program = build(&cache, &target)?;
    let file = asked.file.clone().unwrap_or_else(|| target.join("chaos.jsonl"));
    let mut command = Command::new(program);
    command.arg(asked.kills.to_string()).arg(seed(asked).to_string()).arg(file);
    command.arg(asked.images.to_string());
    command.env("ORCHESTRATOR_BIN", binaries.join("orchestrator"));
    command.env("ORCHESTRATOR_EXECUTOR", binaries.join("orchestrator-executor"));
    // Progress is for whoever waits; what is kept comes on stdout.
    let table = output(command.stderr(Stdio::inherit()))?;
    let build = asked.binaries.as_ref().map_or("release build", |_| "binaries that were given");
    say(&table)?;
    let body = format!("{}; {build}.\n\n{table}", machine()?);
    results::replace(checkout, "## `cargo xtask bench chaos`", &body)
}

/// By the same command as everything else here, so that no dependency is built anew.
fn build(cache: &BuildCache<'_>, target: &Path) -> Result<PathBuf> {
    let mut build = cache.cargo();
    let status = build.args(["build", "--workspace", "--bin", "chaos"]).status();
    let status = status.context("cannot start cargo")?;
    if !status.success() {
        bail!("the loop cannot be built ({status})");
    }
    Ok(target.join("debug/chaos"))
}

fn seed(asked: &Asked) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    asked.seed.unwrap_or(now)
}
