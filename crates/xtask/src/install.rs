//! `cargo xtask install`: both binaries under a prefix, with libtorch found by rpath.
//!
//! Layout: `bin/orchestrator`, `bin/orchestrator-executor`, and `lib/libtorch`, a link to the
//! libraries of the libtorch that this checkout was built with. The executor's rpath has
//! `$ORIGIN/../lib/libtorch`, so no variable is needed.

use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::{demo, setup};
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs};

const BINARIES: &[&str] = &["orchestrator", "orchestrator-executor"];

pub(crate) fn run(checkout: &Checkout, prefix: Option<PathBuf>) -> Result<()> {
    let prefix = choose_prefix(prefix)?;
    setup::run(checkout, false)?;
    let cache = BuildCache::choose(checkout)?;
    let built = demo::release_binaries(&cache)?;
    place(&built, &setup::libtorch(checkout)?, &prefix)?;
    let bin = prefix.join("bin");
    for name in BINARIES {
        eprintln!("installed {}", bin.join(name).display());
    }
    if !is_on_path(&bin, env::var_os("PATH").as_deref()) {
        eprintln!("{0} is not on PATH; add it with\n  export PATH=\"{0}:$PATH\"", bin.display());
    }
    Ok(())
}

fn choose_prefix(prefix: Option<PathBuf>) -> Result<PathBuf> {
    let Some(chosen) = prefix else {
        let Some(home) = env::var_os("HOME") else { bail!("HOME is not set; give --prefix DIR") };
        return Ok(Path::new(&home).join(".local"));
    };
    std::path::absolute(&chosen).with_context(|| format!("{} is no path", chosen.display()))
}

/// Puts files beside their final names and renames: a running binary is replaced, not overwritten.
fn place(built: &Path, libtorch: &Path, prefix: &Path) -> Result<()> {
    let (bin, lib) = (prefix.join("bin"), prefix.join("lib"));
    for folder in [&bin, &lib] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    for name in BINARIES {
        replace(&bin.join(name), |next| fs::copy(built.join(name), next).map(drop))?;
    }
    replace(&lib.join("libtorch"), |next| symlink(libtorch.join("lib"), next))
}

fn replace(target: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let mut next = target.as_os_str().to_owned();
    next.push(format!(".next-{}", std::process::id()));
    let next = PathBuf::from(next);
    let done = make(&next).and_then(|()| fs::rename(&next, target));
    done.with_context(|| format!("cannot write {}", target.display()))
}

fn is_on_path(folder: &Path, path: Option<&OsStr>) -> bool {
    path.is_some_and(|path| env::split_paths(path).any(|entry| entry == folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placing_twice_replaces_files_and_link() {
        let folder = tempfile::tempdir().unwrap();
        let (built, prefix) = (folder.path().join("built"), folder.path().join("prefix"));
        fs::create_dir_all(&built).unwrap();
        for round in ["one", "two"] {
            for name in BINARIES {
                fs::write(built.join(name), round).unwrap();
            }
            place(&built, &folder.path().join(round), &prefix).unwrap();
        }
        assert_eq!(fs::read(prefix.join("bin/orchestrator")).unwrap(), b"two");
        let link = fs::read_link(prefix.join("lib/libtorch")).unwrap();
        assert_eq!(link, folder.path().join("two/lib"));
        assert_eq!(fs::read_dir(prefix.join("bin")).unwrap().count(), 2);
    }

    #[test]
    fn the_path_hint_is_given_only_when_needed() {
        let path = OsStr::new("/usr/bin:/home/u/.local/bin");
        assert!(is_on_path(Path::new("/home/u/.local/bin"), Some(path)));
        assert!(!is_on_path(Path::new("/home/u/.local"), Some(path)));
        assert!(!is_on_path(Path::new("/x"), None));
    }
}
