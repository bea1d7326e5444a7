//! `cargo xtask bench split`: jobs on one slice, on two, and as the planner chooses.
//!
//! Seconds are those of the whole `submit`, start and end included: what a person waits for. The
//! three ways take turns in every round, and a ratio is formed within its round.

use super::python::output;
use super::ratio::{median, sorted};
use super::results::{self, machine};
use super::say;
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::{demo, setup};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// How many images a job has; the last is the whole set.
const JOBS: [usize; 2] = [40, 1593];
/// As `placement.split` names them; the planner's own choice is the last.
const WAYS: [&str; 3] = ["never", "always", "auto"];

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Asked {
    /// How often each job runs each way
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Binaries that are there, instead of a release build; their figures are told as such
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
}

pub(crate) fn run(checkout: &Checkout, asked: &Asked) -> Result<()> {
    let binaries = if let Some(folder) = &asked.binaries {
        folder.canonicalize().context("no such folder of binaries")?
    } else {
        setup::run(checkout, false)?;
        demo::release_binaries(&BuildCache::choose(checkout)?)?
    };
    let build = asked.binaries.as_ref().map_or("release build", |_| "binaries that were given");
    let head = "| images | one slice, s | two slices, s | planner, s | planner / one | planner / two \
                | slices it used |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |";
    let mut lines = vec![format!("{}; {build}, {} rounds.\n\n{head}", machine()?, asked.rounds)];
    for images in JOBS {
        let job = Job::new(checkout, images)?;
        let mut rounds = Vec::new();
        for _ in 0..asked.rounds {
            rounds.push([
                job.run(&binaries, WAYS[0])?,
                job.run(&binaries, WAYS[1])?,
                job.run(&binaries, WAYS[2])?,
            ]);
        }
        lines.push(row(images, &rounds));
        say(&lines[lines.len() - 1])?;
    }
    results::replace(checkout, "## `cargo xtask bench split`", &lines.join("\n"))
}

/// Seconds, and the slices that did the work.
type Ran = (f64, usize);

fn row(images: usize, rounds: &[[Ran; 3]]) -> String {
    let seconds = |way: usize| median(&sorted(rounds.iter().map(|round| round[way].0)));
    let ratio = |way: usize| {
        let ratios = sorted(rounds.iter().map(|round| round[2].0 / round[way].0));
        let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
        format!("{:.2} ({low:.2}–{high:.2})", median(&ratios))
    };
    let used: Vec<usize> = rounds.iter().map(|round| round[2].1).collect();
    let (least, most) = (used.iter().min().unwrap_or(&0), used.iter().max().unwrap_or(&0));
    let used = if least == most { format!("{most}") } else { format!("{least}–{most}") };
    format!(
        "| {images} | {:.1} | {:.1} | {:.1} | {} | {} | {used} |",
        seconds(0),
        seconds(1),
        seconds(2),
        ratio(0),
        ratio(1)
    )
}

/// Retrieval on the first images of the set.
struct Job {
    folder: tempfile::TempDir,
}

impl Job {
    fn new(checkout: &Checkout, images: usize) -> Result<Self> {
        let data = checkout.root().join("tests/data");
        let folder = tempfile::tempdir().context("cannot make a folder")?;
        let captions = captions(&data.join("fluent"), images)?;
        fs::write(folder.path().join("captions.jsonl"), captions).context("cannot write")?;
        let evaluation = json!({
            "version": 1, "name": format!("{images} images"),
            "models": [{ "path": data.join("models/tiny-clip") }],
            "datasets": { "captions": { "format": "captions", "path": "captions.jsonl" } },
            "tasks": [{ "retrieval": { "dataset": "captions" } }],
        });
        let file = folder.path().join("eval.yaml");
        fs::write(file, evaluation.to_string()).context("cannot write")?;
        Ok(Self { folder })
    }

    fn run(&self, binaries: &Path, way: &str) -> Result<Ran> {
        let home = tempfile::tempdir().context("cannot make a folder")?;
        let mut command = Command::new(binaries.join("orchestrator"));
        command.arg("submit").arg(self.folder.path().join("eval.yaml")).arg("--json");
        command.args(["--local-slices", "2", "--set", &format!("placement.split={way}")]);
        command.arg("--output").arg(home.path().join("runs"));
        command.env("XDG_STATE_HOME", home.path()).env("XDG_CACHE_HOME", home.path());
        let started = Instant::now();
        let document = output(&mut command)?;
        let seconds = started.elapsed().as_secs_f64();
        let document: Value = serde_json::from_str(&document).context("submit printed no JSON")?;
        let nodes = document["report"]["nodes"].as_array().context("a report without slices")?;
        Ok((seconds, nodes.len()))
    }
}

fn captions(fluent: &Path, images: usize) -> Result<String> {
    let file = fluent.join("captions.jsonl");
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let absolute = |line: &str| -> Result<String> {
        let mut object: Value = serde_json::from_str(line).context("a caption line is no JSON")?;
        let image = object["image"].as_str().context("a caption line without an image")?;
        object["image"] = json!(fluent.join(image));
        Ok(format!("{object}\n"))
    };
    text.lines().take(images).map(absolute).collect()
}
