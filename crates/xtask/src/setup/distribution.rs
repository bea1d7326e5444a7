//! What the build needs from the Linux distribution.
//!
//! Invariant: nothing is installed if everything is there; as root on Debian or Ubuntu the missing
//! packages are installed, anywhere else one message names all of them and the command.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A program, and the Debian packages that bring it. Installed without recommended packages, so
/// `make`, which cmake drives, has to be named.
const PROGRAMS: &[(&[&str], &[&str])] = &[
    (&["c++", "g++", "clang++"], &["g++"]),
    (&["cmake"], &["cmake"]),
    (&["make"], &["make"]),
    (&["nasm"], &["nasm"]),
];

/// Makes sure of a C++ compiler, cmake, make and nasm (libjpeg-turbo's SIMD), and of pip if
/// `pip_needed`.
pub(crate) fn ensure(pip_needed: bool) -> Result<()> {
    install(&missing_packages(on_path, pip_needed && python_with_pip().is_none()))
}

/// The same for other programs, each with the package that brings it.
pub(crate) fn ensure_programs(needed: &[(&'static str, &'static str)]) -> Result<()> {
    let missing = needed.iter().filter(|(program, _)| !on_path(program));
    install(&missing.map(|(_, package)| *package).collect::<Vec<_>>())
}

fn install(missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !(is_debian_like(&os_release) && nix::unistd::geteuid().is_root()) {
        bail!("{}", advice(missing, is_debian_like(&os_release)));
    }
    eprintln!("installing from the distribution: {}", missing.join(" "));
    apt_get(&["update", "--quiet"])?;
    let mut install = vec!["install", "--yes", "--quiet", "--no-install-recommends"];
    install.extend(missing);
    apt_get(&install)
}

/// The first Python on this machine that has pip. A virtual environment may lack it where the
/// distribution's own Python has it.
pub(crate) fn python_with_pip() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let probe = Command::new(python).args(["-m", "pip", "--version"]).output();
        probe.is_ok_and(|output| output.status.success())
    })
}

fn missing_packages(present: impl Fn(&str) -> bool, pip_missing: bool) -> Vec<&'static str> {
    let mut missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(names, _)| !names.iter().any(|name| present(name)))
        .flat_map(|(_, packages)| packages.iter().copied())
        .collect();
    if pip_missing {
        missing.extend(["python3", "python3-pip"]);
    }
    missing
}

fn on_path(program: &str) -> bool {
    if program == "c++" && env::var_os("CXX").is_some_and(|value| !value.is_empty()) {
        return true;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder: PathBuf| folder.join(program)).any(|file| is_file(&file))
}

fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Reads `ID` and `ID_LIKE` of os-release(5).
fn is_debian_like(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(key, _)| matches!(*key, "ID" | "ID_LIKE"))
        .flat_map(|(_, value)| value.trim_matches(['"', '\'']).split_whitespace())
        .any(|id| matches!(id, "debian" | "ubuntu"))
}

fn advice(missing: &[&str], debian_like: bool) -> String {
    let list = missing.join(" ");
    if debian_like {
        format!(
            "this machine lacks packages that the build needs; install them with\n  \
             sudo apt-get update && sudo apt-get install --yes --no-install-recommends {list}\n\
             and run the command again"
        )
    } else {
        format!(
            "this machine lacks what the build needs (names of Debian's packages): {list}\n\
             install it with your distribution's package manager and run the command again"
        )
    }
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("cannot start apt-get")?;
    if !status.success() {
        bail!("`apt-get {}` failed ({status}); its own message is above", arguments.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_machine_needs_nothing() {
        assert!(missing_packages(|_| true, false).is_empty());
    }

    #[test]
    fn any_compiler_will_do_and_a_bare_machine_gets_everything() {
        let clang_only = missing_packages(|name| name == "clang++", false);
        assert_eq!(clang_only, ["cmake", "make", "nasm"]);
        let bare = missing_packages(|_| false, true);
        assert_eq!(bare, ["g++", "cmake", "make", "nasm", "python3", "python3-pip"]);
    }

    #[test]
    fn debian_and_its_children_are_known() {
        assert!(is_debian_like("NAME=x\nID=debian\n"));
        assert!(is_debian_like("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian_like("ID=fedora\nHOME_URL=\"https://debian/\"\n"));
        assert!(!is_debian_like(""));
    }

    #[test]
    fn the_message_names_every_package_and_the_command() {
        let text = advice(&["cmake", "nasm"], true);
        assert!(text.contains("--no-install-recommends cmake nasm"), "{text}");
        assert!(advice(&["nasm"], false).contains("nasm"));
    }
}
