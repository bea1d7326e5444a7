//! Programs that come as Python packages with pinned digests, in the cache.

use crate::cache::{self, Lock};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Installs what `requirements` pins into the cache's folder `name`, unless it is there; that folder.
/// Programs lie in its `bin`. A stamp, written last, says that it is complete and for what.
pub(crate) fn install(python: &str, name: &str, requirements: &Path) -> Result<PathBuf> {
    let folder = cache::root()?.join(name);
    let _lock = Lock::wait(&cache::root()?.join(format!("{name}.lock")), "another installation")?;
    let wanted = fs::read_to_string(requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let stamp = folder.join("requirements");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(folder);
    }
    eprintln!("installing {name} into {}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"])
        .args(["--only-binary=:all:", "--require-hashes", "--no-deps", "--target"])
        .arg(&folder)
        .arg("--requirement")
        .arg(requirements);
    let status = pip.status().with_context(|| format!("cannot start {python}"))?;
    if !status.success() {
        bail!("pip could not install {name} ({status}); its own message is above");
    }
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(folder)
}
