//! `cargo xtask bench tensors`: large blobs over loopback gRPC beside raw TCP.
//!
//! The measuring is tests/bench/tensors.rs: a worker's client and a coordinator in one process, with
//! files, digests and syncing as in a run. Files lie in memory unless a folder is named, so that
//! the figure is the way's and not a disk's.

use super::python::output;
use super::ratio::{median, sorted};
use super::results::{self, machine};
use super::say;
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::graph::Graph;
use crate::setup;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;

/// What the issue asks for.
const TARGET: f64 = 0.35;
/// Files in memory, on Linux.
const MEMORY: &str = "/dev/shm";

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Asked {
    /// Size of the blob
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    mib: u32,
    /// How often each way is taken
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Where blobs lie
    #[arg(long, value_name = "DIR", default_value = MEMORY)]
    folder: PathBuf,
}

pub(crate) fn run(checkout: &Checkout, asked: &Asked) -> Result<()> {
    setup::run(checkout, false)?;
    let cache = BuildCache::choose(checkout)?;
    cache.claim(&Graph::of_workspace(cache.cargo())?)?;
    let mut command = cache.cargo();
    command.args(["bench", "--package", "orchestrator-tests", "--bench", "tensors", "--"]);
    command.arg(asked.mib.to_string()).arg(asked.rounds.to_string()).arg(&asked.folder);
    let told = output(command.stderr(Stdio::inherit()))?;
    let figures = Figures::read(&told)?;
    let Asked { mib, rounds, folder } = asked;
    let body = format!(
        "{}; release build, blobs of {mib} MiB, {rounds} rounds, files in {}; MiB a second, medians \
         and ranges.\n\n{}",
        machine()?,
        folder.display(),
        figures.table()
    );
    say(&body)?;
    results::replace(checkout, "## `cargo xtask bench tensors`", &body)
}

/// MiB a second, by way and round; a way that is taken twice in a round has two figures there.
struct Figures(Vec<(String, u64, f64)>);

impl Figures {
    fn read(told: &str) -> Result<Self> {
        let figure = |line: &str| -> Result<(String, u64, f64)> {
            let line: Value = serde_json::from_str(line).context("the benchmark told no JSON")?;
            let of = |key: &str| line.get(key).with_context(|| format!("a figure without {key}"));
            let way = of("way")?.as_str().context("a way without a name")?.to_owned();
            let round = of("round")?.as_u64().context("a round without a number")?;
            Ok((way, round, of("mib_per_second")?.as_f64().context("a figure that is none")?))
        };
        told.lines().map(figure).collect::<Result<_>>().map(Self)
    }

    fn of(&self, way: &str, round: Option<u64>) -> Vec<f64> {
        let own = self
            .0
            .iter()
            .filter(|(name, at, _)| name == way && round.is_none_or(|round| round == *at));
        sorted(own.map(|(.., figure)| *figure))
    }

    /// Of each round, beside the median of raw TCP in the same round.
    fn ratios(&self, way: &str) -> Vec<f64> {
        let rounds = self.0.iter().filter(|(name, ..)| name == way);
        sorted(rounds.map(|(_, round, figure)| figure / median(&self.of("tcp", Some(*round)))))
    }

    fn table(&self) -> String {
        let ways = [
            ("tcp", "raw TCP, memory to memory"),
            ("stage", "`Stage`: file, gRPC, digest, file, sync"),
            ("fetch", "`Fetch`: file, digest, gRPC, digest, file"),
            ("memory", "`Fetch` into memory: file, gRPC"),
            ("stage-tls", "`Stage` inside TLS"),
            ("fetch-tls", "`Fetch` inside TLS"),
            ("digest", "the digest alone, one thread"),
            ("file", "the file alone, written and synced"),
        ];
        let mut lines = vec!["| way | MiB/s | of raw TCP |\n| --- | ---: | ---: |".to_owned()];
        for (way, what) in ways {
            let figures = self.of(way, None);
            let (Some(low), Some(high)) = (figures.first(), figures.last()) else { continue };
            let speed = format!("{:.0} ({low:.0}–{high:.0})", median(&figures));
            let ratios = self.ratios(way);
            let ratio = format!(
                "{:.2} ({:.2}–{:.2})",
                median(&ratios),
                ratios[0],
                ratios[ratios.len() - 1]
            );
            let goal = if matches!(way, "stage" | "fetch" | "memory") {
                format!(" (target ≥ {TARGET})")
            } else {
                String::new()
            };
            lines.push(format!("| {what} | {speed} | {ratio}{goal} |"));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_compared_with_raw_tcp_of_its_own_round() {
        let line = |way: &str, round: u32, figure: f64| {
            serde_json::json!({"way": way, "round": round, "mib_per_second": figure}).to_string()
        };
        let told = [
            line("tcp", 0, 100.0),
            line("stage", 0, 50.0),
            line("tcp", 0, 300.0),
            line("tcp", 1, 1000.0),
            line("stage", 1, 400.0),
            line("tcp", 1, 1000.0),
        ];
        let figures = Figures::read(&told.join("\n")).unwrap();
        let table = figures.table();
        let stage = "| `Stage`: file, gRPC, digest, file, sync | 225 (50–400) | 0.33 (0.25–0.40) \
                     (target ≥ 0.35) |";
        assert_eq!(table.lines().nth(3), Some(stage));
        assert_eq!(table.lines().count(), 4, "ways without a figure are left out");
        assert!(Figures::read("running 0 tests").is_err());
    }
}
