//! `cargo xtask bench …`: figures beside the reference implementation's, as ratios in one run.
//!
//! Invariant: both sides read the same files on the same cores, in turn, so that a ratio survives a
//! noisy machine; what is printed is the median over the rounds with its range. A benchmark never
//! passes or fails: the figures are kept, with their targets, in tests/bench/RESULTS.md.

mod chaos;
mod cpu;
mod memory;
mod planted;
mod python;
mod ratio;
mod results;
mod scheduler;
mod split;
mod start;
mod tensors;

use anyhow::{Context, Result};

pub(crate) use chaos::{Asked as AskedChaos, run as chaos};
pub(crate) use cpu::run as cpu;
pub(crate) use memory::{Asked, run as memory};
pub(crate) use planted::run as planted;
pub(crate) use scheduler::{Asked as AskedScheduler, run as scheduler};
pub(crate) use split::{Asked as AskedSplit, run as split};
pub(crate) use start::{Asked as AskedStart, run as start};
pub(crate) use tensors::{Asked as AskedTensors, run as tensors};

/// One line on stdout.
fn say(line: &str) -> Result<()> {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{line}").context("cannot write to stdout")
}
