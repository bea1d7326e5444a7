//! Building without a network: downloads prepared once, and an image with the compiler.

use super::engine::{Built, Engine, OFFLINE_BASE, Stages, succeed};
use crate::checkout::Checkout;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the Dockerfile installs where it is missing.
const PACKAGES: [&str; 7] =
    ["g++", "cmake", "make", "nasm", "python3", "python3-pip", "ca-certificates"];
const IMAGE: &str = "localhost/rust";

/// Puts crates and libtorch where the Dockerfile's build context `cache` expects them.
pub(super) fn prepare(checkout: &Checkout, folder: &Path) -> Result<()> {
    setup::run(checkout, false)?;
    let folder = std::path::absolute(folder).context("no usable path")?;
    let cargo = folder.join("cargo");
    fs::create_dir_all(&cargo).with_context(|| format!("cannot make {}", cargo.display()))?;
    let mut fetch = checkout.cargo();
    fetch.args(["fetch", "--locked", "--quiet"]).env("CARGO_HOME", &cargo);
    if let Some(configured) = cargo_home().map(|home| home.join("config.toml"))
        && configured.exists()
    {
        // Which registry, or which mirror of it, this machine uses.
        fs::copy(&configured, cargo.join("config.toml"))?;
    }
    let status = fetch.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo fetch` failed ({status})");
    }
    let torch = setup::libtorch(checkout)?;
    let home = torch.parent().context("libtorch lies in a folder")?;
    copy(home, &folder.join(format!("libtorch-{}", setup::LIBTORCH_VERSION)))?;
    eprintln!("prepared {}: docker build … --build-context cache={0}", folder.display());
    Ok(())
}

/// The whole Dockerfile, build stages and all, with the network cut off.
pub(super) fn build(checkout: &Checkout, engine: &Engine, work: &Path) -> Result<Built> {
    let downloads = work.join("downloads");
    prepare(checkout, &downloads)?;
    engine.image_of_packages(OFFLINE_BASE, &["ca-certificates", "libstdc++6"])?;
    compiler(engine, work)?;
    engine.build(checkout, &Stages::Compile { image: IMAGE, downloads: &downloads })
}

/// An image with this machine's compiler, since none can be pulled.
fn compiler(engine: &Engine, work: &Path) -> Result<()> {
    engine.image_of_packages("rust-packages", &PACKAGES)?;
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    let output = output.context("cannot start rustc")?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let context = work.join("compiler");
    fs::create_dir_all(&context)?;
    let steps = "FROM localhost/rust-packages\nCOPY --from=sysroot bin /usr/local/bin\n\
                 COPY --from=sysroot lib /usr/local/lib\n";
    fs::write(context.join("Dockerfile"), steps)?;
    let mut build = engine.buildah();
    build.args(["bud", "--quiet", "--pull-never", "--layers", "--tag", IMAGE]);
    build.args(["--build-context", &format!("sysroot={}", sysroot.display())]);
    succeed(build.arg(&context))
}

/// The contents of one folder into another.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    succeed(Command::new("cp").args(["--archive", "--update"]).arg(from.join(".")).arg(to))
}

fn cargo_home() -> Option<PathBuf> {
    let named = env::var_os("CARGO_HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
}
