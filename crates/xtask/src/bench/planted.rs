//! `cargo xtask bench planted`: bugs on purpose, and the seeds with which the simulation finds them.

use super::results::{self, machine};
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Plants each bug and notes which seed finds it.
pub(crate) fn run(checkout: &Checkout) -> Result<()> {
    setup::run(checkout, false)?;
    let cache = BuildCache::choose(checkout)?;
    let mut command = simulation(&cache);
    command.args(["--features", "orchestrator-types/planted,orchestrator-tests/planted"]);
    command.args(["--", "--ignored", "--nocapture", "planted_bugs_are_found"]);
    // Each bug that is found panics once, and says so.
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

/// By the same selection as everything else here, so that no dependency is built anew.
fn simulation(cache: &BuildCache<'_>) -> Command {
    let mut command = cache.cargo();
    command.args(["test", "--workspace", "--test", "simulation"]);
    command
}
