//! `cargo xtask bench cpu`: preprocessing and a whole job on the processor.

use super::python::{self, Python};
use super::ratio::Rounds;
use super::say;
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::{cache, demo, setup};
use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

const ROUNDS: usize = 3;
const STAGES: [&str; 4] = ["decode", "crop", "normalise", "whole"];
const PHOTOGRAPHS: &str = "96";
/// How a CLIP at 224 pixels prepares its images.
const PREPROCESS_224: &str = r#"{
    "image_processor_type": "CLIPImageProcessor", "resample": 3,
    "do_resize": true, "size": {"shortest_edge": 224},
    "do_center_crop": true, "crop_size": {"height": 224, "width": 224},
    "do_rescale": true, "rescale_factor": 0.00392156862745098, "do_normalize": true,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711]
}"#;

/// Images, and the model folder whose preprocessing they go through.
struct Set {
    name: &'static str,
    images: PathBuf,
    model: PathBuf,
    side: &'static str,
}

pub(crate) fn run(checkout: &Checkout) -> Result<()> {
    setup::run(checkout, false)?;
    let cache = BuildCache::choose(checkout)?;
    let binaries = demo::release_binaries(&cache)?;
    let mut build = cache.cargo();
    build.args(["build", "--release", "--package", "orchestrator-data", "--example"]);
    if !build.arg("preprocess_rate").status().context("cannot start cargo")?.success() {
        bail!("the release build failed");
    }
    let python = Python::prepare(checkout)?;
    let data = checkout.root().join("tests/data");
    let sets = [
        photographs(&python)?,
        Set {
            name: "drawings 224 × 224 → 112",
            images: data.join("fluent/imagefolder"),
            model: data.join("models/tiny-clip"),
            side: "112",
        },
    ];
    say("| preprocessing, images per CPU-second, one core | ours | Pillow | ratio |")?;
    say("| --- | --- | --- | --- |")?;
    for set in &sets {
        preprocessing(set, &binaries.join("examples/preprocess_rate"), &python)?;
    }
    say("\n| zero-shot job, tiny-clip on 1,593 images | ours | transformers | ratio |")?;
    say("| --- | --- | --- | --- |")?;
    whole_job(&data, &binaries, &python)
}

/// Photographs from pictures that packages ship, made once.
fn photographs(python: &Python) -> Result<Set> {
    let folder = cache::root()?.join("bench-photographs");
    let (images, model, done) = (folder.join("images"), folder.join("model"), folder.join("done"));
    if !done.is_file() {
        fs::create_dir_all(&model).context("cannot make a folder")?;
        fs::write(model.join("preprocessor_config.json"), PREPROCESS_224)
            .context("cannot write the preprocessing")?;
        python.run("make_photos.py", [images.as_os_str(), PHOTOGRAPHS.as_ref()])?;
        fs::write(done, "").context("cannot write the photographs")?;
    }
    Ok(Set { name: "photographs 500 × 375 → 224", images, model, side: "224" })
}

fn preprocessing(set: &Set, ours: &Path, python: &Python) -> Result<()> {
    let mut rounds: BTreeMap<&str, Rounds> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mine = python::output(Command::new(ours).arg(&set.images).arg(&set.model))?;
        let theirs = python.run("pillow_rate.py", [set.images.as_os_str(), set.side.as_ref()])?;
        let (mine, theirs) = (parse(&mine)?, parse(&theirs)?);
        for stage in STAGES {
            let rate = |document: &Value| figure(&document["per_cpu_second"], stage);
            rounds.entry(stage).or_default().add(rate(&mine)?, rate(&theirs)?);
        }
    }
    for stage in STAGES {
        say(&rounds[stage].row(&format!("{}: {stage}", set.name)))?;
    }
    Ok(())
}

fn whole_job(data: &Path, binaries: &Path, python: &Python) -> Result<()> {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get).to_string();
    let [mut process, mut processor, mut steady] = [(); 3].map(|()| Rounds::default());
    for _ in 0..ROUNDS {
        let mine = submit(data, binaries)?;
        let theirs = transformers(data, python, &cores)?;
        process.add(mine.images / mine.seconds, theirs.images / theirs.seconds);
        processor.add(mine.images / mine.cpu_seconds, theirs.images / theirs.cpu_seconds);
        steady.add(mine.images / mine.inner_seconds, theirs.images / theirs.inner_seconds);
    }
    say(&process.row("images per second, from process start to its end"))?;
    say(&processor.row("images per CPU-second, whole process"))?;
    say(&steady.row("images per second, without start-up (ours: the run, theirs: the loop)"))?;
    Ok(())
}

struct Job {
    images: f64,
    seconds: f64,
    cpu_seconds: f64,
    inner_seconds: f64,
}

/// Runs a command and returns its output, wall seconds, and CPU seconds with its children.
fn timed(run: impl FnOnce() -> Result<String>) -> Result<(String, f64, f64)> {
    let spent = || -> Result<f64> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot read the usage")?;
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Ok(micros as f64 / 1e6)
    };
    let (start, before) = (Instant::now(), spent()?);
    let output = run()?;
    Ok((output, start.elapsed().as_secs_f64(), spent()? - before))
}

fn submit(data: &Path, binaries: &Path) -> Result<Job> {
    let home = tempfile::tempdir().context("cannot make a folder")?;
    let mut command = Command::new(binaries.join("orchestrator"));
    command.arg("submit").arg(data.join("eval.yaml")).arg("--json");
    command.args(["--set", "tasks=[{zero_shot: {dataset: fluent, top_k: [1, 5]}}]"]);
    command.arg("--output").arg(home.path().join("runs"));
    command.env("XDG_STATE_HOME", home.path()).env("XDG_CACHE_HOME", home.path());
    let (output, seconds, cpu_seconds) = timed(|| python::output(&mut command))?;
    let trial = &parse(&output)?["report"]["trials"][0];
    let images = trial["tasks"][0]["samples"]["evaluated"].as_f64().context("no count")?;
    let inner_seconds = figure(trial, "seconds")?;
    Ok(Job { images, seconds, cpu_seconds, inner_seconds })
}

fn transformers(data: &Path, python: &Python, cores: &str) -> Result<Job> {
    let path = |name: &str| data.join(name).display().to_string();
    let (images, classes) = (path("fluent/imagefolder"), path("fluent/classes.json"));
    let model = path("models/tiny-clip");
    let arguments = [
        "--images",
        &images,
        "--classes",
        &classes,
        "--model",
        &model,
        "--threads",
        cores,
        "--workers",
        cores,
    ];
    let (output, seconds, cpu_seconds) = timed(|| python.run("transformers_job.py", arguments))?;
    let report = parse(&output)?;
    let inner_seconds = figure(&report, "seconds")?;
    Ok(Job { images: figure(&report, "images")?, seconds, cpu_seconds, inner_seconds })
}

fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(text).context("a benchmark printed no JSON")
}

fn figure(document: &Value, name: &str) -> Result<f64> {
    document[name].as_f64().with_context(|| format!("a benchmark printed no `{name}`"))
}
