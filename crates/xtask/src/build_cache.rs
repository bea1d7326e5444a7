//! A target folder that checkouts share, so that a fresh clone finds its dependencies compiled.
//!
//! Invariants: one checkout uses it at a time (another one builds in its own `target/`), and one
//! checkout never takes another's crates for its own. The second needs work: cargo names the
//! artefacts of workspace crates by their path inside the workspace and compares file times, so an
//! older clone would find a newer clone's build "fresh".
//! Absent on purpose: anything that a build needs. Without the cache the results are the same.

use crate::cache::{self, Lock};
use crate::checkout::Checkout;
use crate::graph::Graph;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

pub(crate) struct BuildCache<'a> {
    checkout: &'a Checkout,
    shared: Option<Shared>,
}

struct Shared {
    target: PathBuf,
    /// By its real path: the link inside each checkout would rebuild torch-sys for each checkout.
    libtorch: PathBuf,
    lock: Lock,
}

impl<'a> BuildCache<'a> {
    /// The shared folder, unless `CARGO_TARGET_DIR` names one or it cannot be had. Needs setup.
    pub(crate) fn choose(checkout: &'a Checkout) -> Result<Self> {
        if env::var_os("CARGO_TARGET_DIR").is_some_and(|value| !value.is_empty()) {
            return Ok(Self { checkout, shared: None });
        }
        let libtorch = setup::libtorch(checkout)?;
        let target = cache::root()?.join("target");
        let shared = Lock::try_take(&target.join(".in-use")).map(|lock| Shared {
            target: target.clone(),
            libtorch,
            lock,
        });
        if shared.is_none() {
            eprintln!("build cache {}: in use or not writable, so not used", target.display());
        }
        Ok(Self { checkout, shared })
    }

    /// `cargo` in this checkout, building in the chosen folder.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = self.checkout.cargo();
        if let Some(shared) = &self.shared {
            command.env("CARGO_TARGET_DIR", &shared.target).env("LIBTORCH", &shared.libtorch);
        }
        command
    }

    /// Makes the folder this checkout's. Call once, before the first build.
    pub(crate) fn claim(&self, graph: &Graph) -> Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let note = shared.target.join(".last-checkout");
        if is_owned_by(&note, self.checkout.root()) {
            return Ok(());
        }
        for profile in ["dev", "release"] {
            let mut clean = self.cargo();
            clean.args(["clean", "--quiet", "--profile", profile]);
            clean.args(graph.members().flat_map(|(_, package)| ["--package", &package.name]));
            if !clean.status().context("cannot start cargo")?.success() {
                bail!("cannot clean the build cache; remove {}", shared.target.display());
            }
        }
        fs::write(&note, self.checkout.root().as_os_str().as_encoded_bytes())
            .with_context(|| format!("cannot write {}", note.display()))
    }

    /// Lets the program that takes this process's place hold the folder.
    pub(crate) fn keep_over_exec(&self) -> Result<()> {
        self.shared.as_ref().map_or(Ok(()), |shared| shared.lock.keep_over_exec())
    }
}

fn is_owned_by(note: &Path, root: &Path) -> bool {
    fs::read(note).is_ok_and(|owner| owner == root.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_note_belongs_to_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join(".last-checkout");
        assert!(!is_owned_by(&note, Path::new("/a")));
        fs::write(&note, "/a").unwrap();
        assert!(is_owned_by(&note, Path::new("/a")));
        assert!(!is_owned_by(&note, Path::new("/ab")));
    }
}
