//! `cargo xtask setup`: libtorch in the shared cache, and a link to it in this checkout.
//!
//! Invariant: a folder with a stamp is complete. Wheels are unpacked beside the final folder and
//! moved in, stamp last, under a lock: two set-ups at once and a killed set-up are both harmless.
//! A second run with everything in place touches neither network nor Python.

use crate::cache::{self, Lock};
use crate::checkout::Checkout;
use anyhow::{Context, Result, bail};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

mod distribution;
mod installation;
mod pip;
mod unpack;
mod wheels;

pub(crate) use wheels::LIBTORCH_VERSION;
use wheels::{CPU, CUDA, WheelSet};

/// Makes `.torch/torch` of the checkout point at a libtorch of the right version.
pub(crate) fn run(checkout: &Checkout, cuda: bool) -> Result<()> {
    let store = Store::in_cache(&cache::root()?);
    let sets: &[&WheelSet] = if cuda { &[&CPU, &CUDA] } else { &[&CPU] };
    let existing = existing_installation(checkout, &store)?;
    let to_fetch = existing.is_none() && sets.iter().any(|set| !store.has(set));
    distribution::ensure(to_fetch)?;
    let torch = if let Some(torch) = existing {
        if cuda {
            eprintln!("--cuda has nothing to add to an installation that is not ours");
        }
        torch
    } else {
        refuse_other_platforms()?;
        for set in sets {
            store.complete(set)?;
        }
        store.torch()
    };
    installation::check(&torch, LIBTORCH_VERSION)?;
    installation::link(&checkout.torch_link(), &torch)
}

/// The real folder behind the checkout's link: the same for every checkout that shares the cache.
pub(crate) fn libtorch(checkout: &Checkout) -> Result<PathBuf> {
    let link = checkout.torch_link();
    link.canonicalize().with_context(|| format!("{} is missing; run setup", link.display()))
}

/// What the user named by `LIBTORCH`, now or at an earlier set-up.
fn existing_installation(checkout: &Checkout, store: &Store) -> Result<Option<PathBuf>> {
    if let Some(wish) = checkout.libtorch_wish(env::var_os("LIBTORCH")) {
        let torch = wish
            .canonicalize()
            .with_context(|| format!("LIBTORCH names {}, which is not there", wish.display()))?;
        return Ok(Some(torch));
    }
    let Ok(linked) = checkout.torch_link().canonicalize() else { return Ok(None) };
    let ours = store.torch().canonicalize().is_ok_and(|ours| ours == linked);
    if ours || installation::check(&linked, LIBTORCH_VERSION).is_err() {
        return Ok(None);
    }
    eprintln!("libtorch: {} (chosen earlier; remove .torch to change)", linked.display());
    Ok(Some(linked))
}

/// Programs and their packages; as root on Debian or Ubuntu, those that are missing are installed.
pub(crate) fn programs(needed: &[(&'static str, &'static str)]) -> Result<()> {
    distribution::ensure_programs(needed)
}

/// A Python with pip; as root on Debian or Ubuntu it is installed if there is none.
pub(crate) fn python_with_pip() -> Result<&'static str> {
    distribution::ensure(true)?;
    distribution::python_with_pip().context("python3 with pip is needed, and is not there")
}

fn refuse_other_platforms() -> Result<()> {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(());
    }
    bail!(
        "libtorch is fetched for Linux on x86-64 only; set LIBTORCH to the torch folder of a \
         PyTorch {LIBTORCH_VERSION}"
    )
}

/// The folder of one libtorch version in the cache, and the names beside it.
struct Store {
    home: PathBuf,
}

impl Store {
    fn in_cache(cache: &Path) -> Self {
        Self { home: cache.join(format!("libtorch-{LIBTORCH_VERSION}")) }
    }

    fn torch(&self) -> PathBuf {
        self.home.join("torch")
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.home.clone().into_os_string();
        path.push(suffix);
        path.into()
    }

    fn stamp_name(set: &WheelSet) -> String {
        format!(".complete-{}", set.name)
    }

    fn has(&self, set: &WheelSet) -> bool {
        fs::read_to_string(self.home.join(Self::stamp_name(set)))
            .is_ok_and(|stamp| stamp == set.stamp())
    }

    /// Fetches and unpacks a set, unless it is there.
    fn complete(&self, set: &WheelSet) -> Result<()> {
        if self.has(set) {
            return Ok(());
        }
        let _lock = Lock::wait(&self.beside(".lock"), "another set-up to finish")?;
        if self.has(set) {
            return Ok(());
        }
        let parts = Parts { wheels: self.beside(".wheels"), unpacked: self.beside(".partial") };
        parts.discard_unpacked()?;
        parts.fetch_and_unpack(set)?;
        fs::write(parts.unpacked.join(Self::stamp_name(set)), set.stamp())
            .context("cannot write the stamp")?;
        unpack::promote(&parts.unpacked, &self.home, &Self::stamp_name(set))?;
        fs::remove_dir_all(&parts.wheels).context("cannot remove the unpacked wheels")?;
        eprintln!("libtorch {LIBTORCH_VERSION} ({}): {}", set.name, self.home.display());
        Ok(())
    }
}

/// Work in progress beside the final folder. Wheels outlive a killed set-up, since their digests
/// prove them; half-unpacked files do not.
struct Parts {
    wheels: PathBuf,
    unpacked: PathBuf,
}

impl Parts {
    fn fetch_and_unpack(&self, set: &WheelSet) -> Result<()> {
        fs::create_dir_all(&self.wheels)
            .with_context(|| format!("cannot make {}", self.wheels.display()))?;
        unpack::require_space(&self.wheels, set.peak_bytes)?;
        for file in pip::fetch(set.wheels, &self.wheels)? {
            unpack::wheel(&file, &self.unpacked)?;
        }
        Ok(())
    }

    fn discard_unpacked(&self) -> Result<()> {
        if self.unpacked.exists() {
            fs::remove_dir_all(&self.unpacked)
                .with_context(|| format!("cannot remove {}", self.unpacked.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_stamp_of_these_pins_counts() {
        let cache = tempfile::tempdir().unwrap();
        let store = Store::in_cache(cache.path());
        assert!(!store.has(&CPU));
        fs::create_dir_all(&store.home).unwrap();
        let stamp = store.home.join(Store::stamp_name(&CPU));
        fs::write(&stamp, "torch==2.10.0 sha256:0\n").unwrap();
        assert!(!store.has(&CPU));
        fs::write(&stamp, CPU.stamp()).unwrap();
        assert!(store.has(&CPU) && !store.has(&CUDA));
    }

    #[test]
    fn working_folders_lie_beside_the_final_one() {
        let store = Store::in_cache(Path::new("/c"));
        assert_eq!(store.beside(".partial"), Path::new("/c/libtorch-2.11.0.partial"));
        assert_eq!(store.torch(), Path::new("/c/libtorch-2.11.0/torch"));
    }
}
