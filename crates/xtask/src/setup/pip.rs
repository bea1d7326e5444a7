//! Fetching wheels. pip knows the user's index, mirrors, proxies and certificates; it only
//! downloads: nothing is installed, and no package's code runs.
//!
//! Invariant: a path that `fetch` returns is a file whose SHA-256 is the pinned one.

use super::distribution;
use super::wheels::Wheel;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Platform tags of the pinned wheels. With `--platform`, pip takes tags literally.
const PLATFORMS: &[&str] = &[
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_25_x86_64",
    "manylinux_2_18_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2010_x86_64",
    "manylinux_2_12_x86_64",
    "manylinux1_x86_64",
    "manylinux_2_5_x86_64",
];

/// Brings every wheel into `folder`; files already there with the right digest are kept.
pub(crate) fn fetch(wheels: &[Wheel], folder: &Path) -> Result<Vec<PathBuf>> {
    let mut missing = Vec::new();
    for wheel in wheels {
        if proven(wheel, folder)?.is_none() {
            missing.push(wheel);
        }
    }
    if !missing.is_empty() {
        download(&missing, folder)?;
    }
    wheels.iter().map(|wheel| require(wheel, folder)).collect()
}

fn require(wheel: &Wheel, folder: &Path) -> Result<PathBuf> {
    proven(wheel, folder)?.with_context(|| {
        format!(
            "what pip brought for {} is not the pinned file (SHA-256 {}); it was removed. Check \
             the index or mirror that pip uses",
            wheel.requirement(),
            wheel.sha256
        )
    })
}

fn download(wheels: &[&Wheel], folder: &Path) -> Result<()> {
    let python = distribution::python_with_pip()
        .context("python3 with pip is needed to fetch libtorch, and is not there")?;
    eprintln!("fetching {}", names(wheels));
    let mut command = Command::new(python);
    command
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"])
        .args(["--disable-pip-version-check", "--implementation", "cp"])
        .args(["--python-version", "3.12", "--abi", "cp312", "--abi", "none", "--abi", "abi3"])
        .args(PLATFORMS.iter().flat_map(|tag| ["--platform", tag]))
        .arg("--dest")
        .arg(folder)
        .args(wheels.iter().map(|wheel| wheel.requirement()))
        // pip collects downloads in its temporary folder first; /tmp may be small and in memory.
        .env("TMPDIR", folder);
    let status = command.status().with_context(|| format!("cannot start {python}"))?;
    if !status.success() {
        bail!(
            "pip could not fetch {} ({status}); its own message is above. Without a network, \
             set LIBTORCH to the torch folder of an installed PyTorch",
            names(wheels)
        );
    }
    Ok(())
}

fn names(wheels: &[&Wheel]) -> String {
    wheels.iter().map(|wheel| wheel.requirement()).collect::<Vec<_>>().join(", ")
}

/// The wheel's file, if it is there and is the pinned one. Any other file of that name is removed.
fn proven(wheel: &Wheel, folder: &Path) -> Result<Option<PathBuf>> {
    let Some(path) = find(wheel, folder)? else { return Ok(None) };
    if sha256(&path)? == wheel.sha256 {
        return Ok(Some(path));
    }
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(None)
}

fn find(wheel: &Wheel, folder: &Path) -> Result<Option<PathBuf>> {
    let prefix = wheel.file_prefix();
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_wheel = path.extension().is_some_and(|extension| extension == "whl");
        if is_wheel && name.starts_with(&prefix) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn sha256(path: &Path) -> Result<String> {
    let read = |path: &Path| -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let length = file.read(&mut buffer)?;
            if length == 0 {
                break;
            }
            hasher.update(&buffer[..length]);
        }
        Ok(hex(&hasher.finalize()))
    };
    read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHEEL: Wheel = Wheel {
        name: "some-thing",
        version: "1.0",
        // SHA-256 of "abc", FIPS 180-2 appendix B.1.
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    };
    const FILE: &str = "some_thing-1.0-py3-none-any.whl";

    #[test]
    fn a_pinned_file_is_kept_and_another_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(proven(&WHEEL, folder.path()).unwrap(), None);
        fs::write(&path, "abc").unwrap();
        assert_eq!(proven(&WHEEL, folder.path()).unwrap(), Some(path.clone()));
        fs::write(&path, "abd").unwrap();
        assert_eq!(proven(&WHEEL, folder.path()).unwrap(), None);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_is_downloaded_when_all_is_there() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "abc").unwrap();
        fs::write(folder.path().join("some_thing-1.0.1-py3-none-any.whl"), "other").unwrap();
        assert_eq!(fetch(&[WHEEL], folder.path()).unwrap(), [folder.path().join(FILE)]);
    }
}
