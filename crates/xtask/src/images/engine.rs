//! buildah in a chroot: no daemon, no registry, a storage folder of its own.

use crate::checkout::Checkout;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs, and the packages that bring them.
const NEEDED: [(&str, &str); 3] =
    [("buildah", "buildah"), ("mmdebstrap", "mmdebstrap"), ("ip", "iproute2")];
/// What the Dockerfile's `BASE` stands for, made from packages.
const SUITE: &str = "trixie";
/// Layers lie over each other; without, each step would copy a whole image.
const DRIVER: &str = "overlay";

/// The same with what the Dockerfile would install.
pub(super) const OFFLINE_BASE: &str = "base-offline";

pub(super) struct Engine {
    storage: PathBuf,
    work: PathBuf,
}

/// Where the Dockerfile's build stages come from.
pub(super) enum Stages<'a> {
    /// A folder with one folder a stage.
    Parts(&'a Path),
    /// The Dockerfile, with an image that has a compiler, and prepared downloads.
    Compile { image: &'a str, downloads: &'a Path },
}

pub(super) struct Built {
    pub(super) coordinator: Image,
    pub(super) worker: Image,
}

pub(super) struct Image {
    pub(super) name: &'static str,
    pub(super) root: PathBuf,
    pub(super) ours_bytes: u64,
    pub(super) base_bytes: u64,
    pub(super) config: Config,
}

/// What an engine would do by itself.
pub(super) struct Config {
    pub(super) user: String,
    pub(super) environment: Vec<String>,
    pub(super) entry_point: Vec<String>,
    pub(super) stop_signal: String,
}

impl Engine {
    pub(super) fn prepare(work: &Path) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            bail!("making root file systems needs root");
        }
        setup::programs(&NEEDED)?;
        fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
        let engine = Self { storage: work.join("storage"), work: work.to_path_buf() };
        engine.image_of_packages("base", &[])?;
        Ok(engine)
    }

    pub(super) fn buildah(&self) -> Command {
        self.storage_of(Command::new("buildah"))
    }

    /// In a network that has nothing in it: `--network none` does not bind in a chroot.
    fn buildah_cut_off(&self) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--net", "buildah"]);
        self.storage_of(command)
    }

    fn storage_of(&self, mut command: Command) -> Command {
        command.env("BUILDAH_ISOLATION", "chroot");
        command.args(["--storage-driver", DRIVER, "--root"]).arg(self.storage.join("root"));
        command.arg("--runroot").arg(self.storage.join("run"));
        command
    }

    fn has(&self, image: &str) -> bool {
        let mut inspect = self.buildah();
        inspect.args(["inspect", "--type", "image", image]);
        inspect.output().is_ok_and(|output| output.status.success())
    }

    /// An image of a minimal Debian and more packages, made once.
    pub(super) fn image_of_packages(&self, name: &str, packages: &[&str]) -> Result<()> {
        if self.has(&format!("localhost/{name}")) {
            return Ok(());
        }
        eprintln!("making a root file system from Debian's packages: {name}");
        let archive = self.work.join(format!("{name}.tar"));
        let mut make = Command::new("mmdebstrap");
        make.args(["--quiet", "--variant=minbase"]);
        if !packages.is_empty() {
            make.arg(format!("--include={}", packages.join(",")));
        }
        succeed(make.arg(SUITE).arg(&archive))?;
        let container = said(self.buildah().args(["from", "scratch"]))?;
        succeed(self.buildah().args(["add", "--quiet", &container]).arg(&archive).arg("/"))?;
        succeed(self.buildah().args(["commit", "--quiet", &container, name]))?;
        succeed(self.buildah().args(["rm", &container]))?;
        fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))
    }

    /// Both targets of the Dockerfile.
    pub(super) fn build(&self, checkout: &Checkout, stages: &Stages<'_>) -> Result<Built> {
        Ok(Built {
            coordinator: self.target(checkout, stages, "coordinator")?,
            worker: self.target(checkout, stages, "worker")?,
        })
    }

    fn target(
        &self,
        checkout: &Checkout,
        stages: &Stages<'_>,
        name: &'static str,
    ) -> Result<Image> {
        eprintln!("building {name} by the Dockerfile");
        let (mut build, base) = match stages {
            Stages::Parts(_) => (self.buildah(), "base"),
            Stages::Compile { .. } => (self.buildah_cut_off(), OFFLINE_BASE),
        };
        build.args(["bud", "--quiet", "--pull-never", "--layers", "--target", name]);
        build.args(["--tag", name, "--build-arg", &format!("BASE=localhost/{base}")]);
        let docker = checkout.root().join("deploy/docker");
        build.arg("--file").arg(docker.join("Dockerfile"));
        build.arg("--ignorefile").arg(docker.join("Dockerfile.dockerignore"));
        match stages {
            Stages::Parts(parts) => {
                // Stages that are not needed are built all the same by old versions; from nothing.
                build.args(["--build-arg", "RUST=localhost/base"]);
                for stage in ["build-coordinator", "build-worker"] {
                    let context = format!("{stage}={}", parts.join(stage).display());
                    build.args(["--build-context", &context]);
                }
            }
            Stages::Compile { image, downloads } => {
                build.args(["--build-arg", &format!("RUST={image}"), "--build-arg", "CUDA="]);
                build.args(["--build-context", &format!("cache={}", downloads.display())]);
            }
        }
        succeed(build.arg(checkout.root()))?;
        self.image(name)
    }

    fn image(&self, name: &'static str) -> Result<Image> {
        let container = said(self.buildah().args(["from", "--pull-never", name]))?;
        let root = PathBuf::from(said(self.buildah().args(["mount", &container]))?);
        let ours_bytes = size(&root.join("opt/orchestrator"))?;
        let all_bytes = size(&root)?;
        let config = self.config(name)?;
        Ok(Image { name, root, ours_bytes, base_bytes: all_bytes - ours_bytes, config })
    }

    fn config(&self, name: &str) -> Result<Config> {
        let said = said(self.buildah().args(["inspect", "--type", "image", name]))?;
        let all: serde_json::Value = serde_json::from_str(&said).context("buildah tells JSON")?;
        let config = &all["OCIv1"]["config"];
        let words = |key: &str| -> Vec<String> {
            let list = config[key].as_array().into_iter().flatten();
            list.filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let text = |key: &str| config[key].as_str().unwrap_or_default().to_owned();
        Ok(Config {
            user: text("User"),
            environment: words("Env"),
            entry_point: words("Entrypoint"),
            stop_signal: text("StopSignal"),
        })
    }
}

impl Drop for Engine {
    /// Working containers are copies of whole images.
    fn drop(&mut self) {
        _ = self.buildah().args(["rm", "--all"]).output();
    }
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot start buildah")?;
    if !output.status.success() {
        bail!("buildah failed\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub(super) fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("{program} failed ({})\n{}", output.status, String::from_utf8_lossy(&said));
    }
    Ok(())
}

/// Bytes of all files below a folder.
fn size(folder: &Path) -> Result<u64> {
    let mut command = Command::new("du");
    command.args(["--summarize", "--bytes", "--one-file-system"]).arg(folder);
    let output = command.output().context("cannot start du")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let bytes = said.split_whitespace().next().and_then(|word| word.parse().ok());
    bytes.with_context(|| format!("cannot measure {}", folder.display()))
}
