//! `cargo xtask bench memory`: predicted beside measured peaks, random jobs, flat memory.
//!
//! Figures here are bytes of a counting allocator: they do not depend on how busy the machine is.

use super::python::output;
use super::results::{self, machine};
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::graph::Graph;
use crate::setup;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What one profile may use.
const QUOTA_BYTES: u64 = 12 << 30;
/// Depth adds weights alone, so two layers show what there is to see.
const LAYERS: &str = "2";
const MODELS: [(&str, Option<&str>); 4] = [
    ("tiny-clip", None),
    ("B/32", Some("vit_b32")),
    ("B/16", Some("vit_b16")),
    ("L/14", Some("vit_l14")),
];
const PRECISIONS: [(&str, &str); 3] =
    [("fp32", "1,2,4,8,16,32,64"), ("bf16", "1,2,4,8"), ("fp16", "1,2,4,8")];

/// What to run; the grid, where nothing is asked for.
#[derive(clap::Args)]
pub(crate) struct Asked {
    /// Run this many random jobs on small quotas instead of the grid
    #[arg(long, value_name = "N")]
    jobs: Option<u32>,
    /// Run this many batches of varying size through one process instead of the grid
    #[arg(long, value_name = "N")]
    flat: Option<u32>,
}

pub(crate) fn run(checkout: &Checkout, asked: &Asked) -> Result<()> {
    setup::run(checkout, false)?;
    let cache = BuildCache::choose(checkout)?;
    let graph = Graph::of_workspace(cache.cargo())?;
    cache.claim(&graph)?;
    if let Some(jobs) = asked.jobs {
        let test = Test { name: "jobs::many_random_jobs", variable: "ORCHESTRATOR_BENCH_JOBS" };
        test.run(checkout, &cache, jobs, "--jobs N", "| what | measured |\n| --- | --- |\n")?;
    }
    if let Some(batches) = asked.flat {
        let test = Test { name: "flat::memory_stays_flat", variable: "ORCHESTRATOR_BENCH_BATCHES" };
        let head = "| what | slope after warm-up | |\n| --- | --- | --- |\n";
        test.run(checkout, &cache, batches, "--flat N", head)?;
    }
    if asked.jobs.is_none() && asked.flat.is_none() {
        let folder = build(&cache, &graph)?;
        let grid = Grid::measure(checkout, &folder)?;
        results::replace(checkout, &heading(""), &grid.section()?)?;
    }
    Ok(())
}

fn heading(options: &str) -> String {
    format!("## `cargo xtask bench memory{}{options}`", if options.is_empty() { "" } else { " " })
}

/// One after the other: together they would be built with each other's features.
fn build(cache: &BuildCache<'_>, graph: &Graph) -> Result<PathBuf> {
    for package in ["orchestrator-executor", "orchestrator-tests"] {
        let mut build = cache.cargo();
        build.args(["build", "--release", "--bins", "--package", package]);
        if !build.status().context("cannot start cargo")?.success() {
            bail!("the release build failed");
        }
    }
    Ok(graph.target_folder.join("release"))
}

/// An ignored test of the executor, whose lines that start with `BENCH` are rows of a table.
struct Test {
    name: &'static str,
    variable: &'static str,
}

impl Test {
    fn run(
        &self,
        checkout: &Checkout,
        cache: &BuildCache<'_>,
        count: u32,
        options: &str,
        head: &str,
    ) -> Result<()> {
        let mut command = cache.cargo();
        command.args(["test", "--release", "--package", "orchestrator-executor", "--test", "it"]);
        command.args(["--", "--ignored", "--nocapture", self.name]);
        command.env(self.variable, count.to_string()).stderr(Stdio::inherit());
        // What was measured is kept even where it is not as it should be.
        let ended = command.stdin(Stdio::null()).output().context("cannot start cargo")?;
        let said = String::from_utf8_lossy(&ended.stdout);
        let rows: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("BENCH ")).collect();
        if rows.is_empty() {
            bail!("{} measured nothing ({})\n{said}", self.name, ended.status);
        }
        let table = format!("{}\n\n{head}{}\n", machine()?, rows.join("\n"));
        super::say(&table)?;
        results::replace(checkout, &heading(options), &table)?;
        if !ended.status.success() {
            bail!("{} failed ({})\n{said}", self.name, ended.status);
        }
        Ok(())
    }
}

/// One prediction beside its measurement.
struct Point {
    what: String,
    rows: u64,
    predicted: u64,
    measured: u64,
    weights: u64,
}

impl Point {
    /// In per cent of the measured peak.
    fn error(&self) -> f64 {
        100.0 * (self.predicted as f64 - self.measured as f64) / self.measured as f64
    }

    fn row(&self) -> String {
        let Self { what, rows, predicted, measured, .. } = self;
        let (error, alone) = (self.error(), self.error_without_weights());
        format!("| {what} | {rows} | {predicted} | {measured} | {error:+.2} % | {alone:+.2} % |")
    }

    /// In per cent of the measured peak without weights, which nobody has to predict.
    fn error_without_weights(&self) -> f64 {
        let measured = self.measured.saturating_sub(self.weights).max(1) as f64;
        100.0 * (self.predicted as f64 - self.measured as f64) / measured
    }
}

#[derive(Default)]
struct Grid {
    points: Vec<Point>,
}

impl Grid {
    fn measure(checkout: &Checkout, folder: &Path) -> Result<Self> {
        let mut grid = Self::default();
        for (name, shape) in MODELS {
            let parent = tempfile::tempdir().context("cannot make a folder")?;
            let model = match shape {
                None => checkout.root().join("tests/data/models/tiny-clip"),
                Some(shape) => {
                    let mut make = Command::new(folder.join("make_model"));
                    output(make.args([shape, LAYERS]).arg(parent.path()).arg("bf16"))?;
                    parent.path().to_owned()
                }
            };
            let executor = folder.join("orchestrator-executor");
            for component in ["vision", "text"] {
                for (precision, rows) in PRECISIONS {
                    let profile =
                        Profile { executor: &executor, model: &model, component, precision };
                    let what = format!("{name} {component} | {precision}");
                    let points = profile.points(&what, rows)?;
                    // Minutes pass until the last one; whoever stops it keeps what was measured.
                    for point in &points {
                        eprintln!("{}", point.row());
                    }
                    grid.points.extend(points);
                }
            }
        }
        Ok(grid)
    }

    fn section(&self) -> Result<String> {
        let mut section = machine()?;
        section.push_str(
            ". Models with two layers at full width; predicted after three\nprobes, measured by \
             the counting allocator, both with weights. The last column leaves the weights out.\n\n\
             | tower | precision | rows | predicted, bytes | measured, bytes | error | of activations |\n\
             | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for point in &self.points {
            writeln!(section, "{}", point.row())?;
        }
        let summary = self.summary();
        writeln!(section, "\n{summary}")?;
        super::say(&section)?;
        Ok(section)
    }

    fn summary(&self) -> String {
        let errors = || self.points.iter().map(|point| point.error().abs());
        let largest = errors().fold(0.0, f64::max);
        let mean = errors().sum::<f64>() / self.points.len().max(1) as f64;
        format!(
            "{} points: error at most {largest:.2} % (target 5), mean {mean:.2} % (target 3).",
            self.points.len()
        )
    }
}

struct Profile<'a> {
    executor: &'a Path,
    model: &'a Path,
    component: &'a str,
    precision: &'a str,
}

impl Profile<'_> {
    /// The points of a curve. A batch that the profile had no patience for gets a run of its own.
    fn points(&self, what: &str, rows: &str) -> Result<Vec<Point>> {
        let profile = self.run(rows)?;
        let mut points = Vec::new();
        for point in profile["curve"].as_array().context("a profile without a curve")? {
            let rows = figure(point, "rows")?;
            let alone;
            let (point, profile) = if point["measured_bytes"].is_null() {
                alone = self.run(&rows.to_string())?;
                (&alone["curve"][0], &alone)
            } else {
                (point, &profile)
            };
            points.push(Point {
                what: what.to_owned(),
                rows,
                predicted: figure(point, "predicted_bytes")?,
                measured: figure(point, "measured_bytes")?,
                weights: figure(profile, "weights_bytes")?,
            });
        }
        Ok(points)
    }

    fn run(&self, rows: &str) -> Result<Value> {
        let mut command = Command::new(self.executor);
        command.args(["profile", "--device", "cpu", "--component", self.component]);
        command.args(["--precision", self.precision, "--rows", rows]);
        command.args(["--quota", &QUOTA_BYTES.to_string()]).arg("--model").arg(self.model);
        serde_json::from_str(&output(&mut command)?).context("a profile is no JSON")
    }
}

fn figure(document: &Value, name: &str) -> Result<u64> {
    document[name].as_u64().with_context(|| format!("a profile without `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_shares_of_what_was_measured() {
        let point = |predicted, measured| Point {
            what: "x | fp32".to_owned(),
            rows: 1,
            predicted,
            measured,
            weights: 100,
        };
        let grid = Grid { points: vec![point(204, 200), point(198, 200)] };
        let summary = "2 points: error at most 2.00 % (target 5), mean 1.50 % (target 3).";
        assert_eq!(grid.summary(), summary);
        assert!((grid.points[1].error_without_weights() + 2.0).abs() < 1e-9);
    }
}
