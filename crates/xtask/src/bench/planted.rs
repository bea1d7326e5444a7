//! `cargo xtask bench planted`: bugs on purpose, and the seeds with which the simulation finds them.

use super::results::{self, machine};
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// They are planted in every crate that has one.
const FEATURES: &str = "orchestrator-types/planted,orchestrator-tests/planted";

/// Plants each bug and notes which seed finds it.
pub(crate) fn run(checkout: &Checkout) -> Result<()> {
    setup::run(checkout, false)?;
    let cache = BuildCache::choose(checkout)?;
    lint(&cache)?;
    let mut command = simulation(&cache);
    command.args(["--features", FEATURES]);
    command.args(["--", "--ignored", "--nocapture", "planted_bugs_are_found"]);
    // Each seed that finds a bug panics, and says so.
    let ended = command.stderr(Stdio::null()).output().context("cannot start cargo")?;
    let said = String::from_utf8_lossy(&ended.stdout);
    let found: Vec<&str> =
        said.lines().filter(|line| line.contains(": found with seed ")).collect();
    if found.is_empty() {
        bail!("the simulation found nothing ({})\n{said}", ended.status);
    }
    let body = format!("{}\n\n- {}\n", machine()?, found.join("\n- "));
    super::say(&body)?;
    results::replace(checkout, "## `cargo xtask bench planted`", &body)?;
    if !ended.status.success() {
        bail!("a bug was not found ({})\n{said}", ended.status);
    }
    Ok(())
}

/// The code of the bugs is in no other build, so nothing else looks at it.
fn lint(cache: &BuildCache<'_>) -> Result<()> {
    let mut command = cache.cargo();
    command.args(["clippy", "--workspace", "--all-targets", "--features", FEATURES]);
    let status = command.args(["--", "--deny", "warnings"]).status();
    let status = status.context("cannot start cargo")?;
    if !status.success() {
        bail!("clippy finds something in the code of the planted bugs ({status})");
    }
    Ok(())
}

/// By the same selection as everything else here, so that no dependency is built anew.
fn simulation(cache: &BuildCache<'_>) -> Command {
    let mut command = cache.cargo();
    command.args(["test", "--workspace", "--test", "simulation"]);
    command
}
