//! `cargo xtask images`: both images built and tried where no container engine runs.
//!
//! The Dockerfile's own steps are executed by buildah in a chroot, on a root file system that is made
//! from Debian's packages; the build stages are replaced by binaries that this machine compiles,
//! unless `--compile` asks for them too. Then the containers run as Kubernetes would run them, with
//! the arguments that stand in the manifests.
//! Needs root on Debian or Ubuntu. Absent on purpose: pushing images anywhere.

use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::{cache, demo, libtorch, setup};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod asks;
mod container;
mod engine;
mod offline;
mod proof;

use engine::Engine;

/// Of our own files in the image of the coordinator.
const COORDINATOR_LIMIT_BYTES: u64 = 60_000_000;

#[derive(clap::Args)]
pub(crate) struct Asked {
    /// Only prepare DIR with the downloads that building without a network needs
    #[arg(long, value_name = "DIR", exclusive = true)]
    prepare: Option<PathBuf>,
    /// Take these release binaries instead of compiling
    #[arg(long, value_name = "DIR", conflicts_with = "compile")]
    binaries: Option<PathBuf>,
    /// Execute the Dockerfile's build stages too, without a network (half an hour on two cores)
    #[arg(long)]
    compile: bool,
}

pub(crate) fn run(checkout: &Checkout, asked: &Asked) -> Result<()> {
    if let Some(folder) = &asked.prepare {
        return offline::prepare(checkout, folder);
    }
    setup::run(checkout, false)?;
    let work = cache::root()?.join("images");
    let engine = Engine::prepare(&work)?;
    let built = if asked.compile {
        offline::build(checkout, &engine, &work)?
    } else {
        let parts = work.join("parts");
        lay_out(checkout, asked.binaries.as_deref(), &parts)?;
        engine.build(checkout, &engine::Stages::Parts(&parts))?
    };
    for image in [&built.coordinator, &built.worker] {
        eprintln!(
            "{}: {} of ours on a base of {}",
            image.name,
            megabytes(image.ours_bytes),
            megabytes(image.base_bytes)
        );
    }
    proof::run(checkout, &built, &work)?;
    if built.coordinator.ours_bytes > COORDINATOR_LIMIT_BYTES {
        bail!("the coordinator's image holds more than {}", megabytes(COORDINATOR_LIMIT_BYTES));
    }
    Ok(())
}

fn megabytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let megabytes = bytes as f64 / 1e6;
    format!("{megabytes:.1} MB")
}

/// What the Dockerfile's two build stages leave behind.
fn lay_out(checkout: &Checkout, binaries: Option<&Path>, parts: &Path) -> Result<()> {
    let folder = match binaries {
        Some(folder) => folder.to_path_buf(),
        None => demo::distributed_binaries(&BuildCache::choose(checkout)?)?,
    };
    if parts.exists() {
        fs::remove_dir_all(parts).with_context(|| format!("cannot remove {}", parts.display()))?;
    }
    for (stage, names) in [
        ("build-coordinator", &["orchestrator"][..]),
        ("build-worker", &["orchestrator", "orchestrator-executor"]),
    ] {
        for name in names {
            let target = parts.join(stage).join("image/opt/orchestrator/bin").join(name);
            let mut install = Command::new("install");
            install.args(["-D", "--strip"]).arg(folder.join(name)).arg(target);
            engine::succeed(&mut install)?;
        }
    }
    libtorch::copy(checkout, &parts.join("build-worker/image/opt/orchestrator/lib"))
}
