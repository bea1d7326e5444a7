//! The reference implementation: an environment with pinned packages, made once.

use crate::cache;
use crate::checkout::Checkout;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PACKAGES: [&str; 8] = [
    "torch==2.11.0",
    "torchvision==0.26.0",
    "transformers==5.17.0",
    "numpy==2.4.6",
    "pillow==13.0.0",
    "safetensors==0.8.0",
    "scikit-image==0.26.0",
    "scikit-learn==1.9.1",
];

/// A Python with the packages that the benchmarks are compared with.
pub(crate) struct Python {
    interpreter: PathBuf,
    scripts: PathBuf,
}

impl Python {
    /// The reference implementation (several gigabytes).
    pub(crate) fn prepare(checkout: &Checkout) -> Result<Self> {
        Self::of(checkout, "bench-python", &PACKAGES)
    }

    /// Installs packages into the folder `name` of the cache unless they are there already.
    pub(crate) fn of(checkout: &Checkout, name: &str, packages: &[&str]) -> Result<Self> {
        let folder = cache::root()?.join(name);
        let interpreter = folder.join("bin/python");
        let stamp = folder.join("packages");
        let wanted = packages.join("\n");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(Self { interpreter, scripts: scripts(checkout) });
        }
        eprintln!("installing {} into {}", packages.join(", "), folder.display());
        succeed(Command::new("python3").arg("-m").arg("venv").arg("--clear").arg(&folder))?;
        let mut install = Command::new(&interpreter);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        succeed(install.args(packages))?;
        fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
        Ok(Self { interpreter, scripts: scripts(checkout) })
    }

    /// Runs a script of tests/bench and returns what it prints.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &self,
        script: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        let mut command = Command::new(&self.interpreter);
        command.arg(self.scripts.join(script)).args(arguments);
        command.env("HF_HUB_OFFLINE", "1").env("TOKENIZERS_PARALLELISM", "false");
        output(&mut command)
    }
}

fn scripts(checkout: &Checkout) -> PathBuf {
    checkout.root().join("tests/bench")
}

fn succeed(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// What a command prints on stdout; its stderr goes to the user only if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let program = Path::new(command.get_program()).display().to_string();
    command.stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed ({})\n{said}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed no text"))
}
