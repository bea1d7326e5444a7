//! This checkout: where it lies, and how its cargo is called.
//!
//! Invariant: a nested cargo sees the environment that the user's shell gave, without the
//! `CARGO_PKG_…` variables that the outer `cargo run` added (they would rebuild what watches them).

use anyhow::{Context, Result};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Link inside a checkout that `.cargo/config.toml` names as `LIBTORCH`.
const TORCH_LINK: &str = ".torch/torch";

pub(crate) struct Checkout {
    root: PathBuf,
}

impl Checkout {
    /// The checkout whose `cargo xtask` this is. Read at run time: a binary in a shared target
    /// folder may have been compiled for another checkout.
    pub(crate) fn from_cargo() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .context("start this as `cargo xtask …`, inside the checkout")?;
        let root = Path::new(&manifest)
            .ancestors()
            .nth(2)
            .context("crates/xtask does not lie inside a checkout")?
            .to_path_buf();
        Ok(Self { root })
    }

    #[cfg(test)]
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn torch_link(&self) -> PathBuf {
        self.root.join(TORCH_LINK)
    }

    /// `LIBTORCH` as the user gave it. Cargo also sets it, from `.cargo/config.toml`, to the link
    /// inside the checkout: that is our own answer, not the user's wish.
    pub(crate) fn libtorch_wish(&self, variable: Option<OsString>) -> Option<PathBuf> {
        variable
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
            .filter(|path| *path != self.torch_link())
    }

    /// `cargo` in the checkout's root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        for (name, _) in env::vars_os() {
            if is_added_by_cargo_run(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        command
    }
}

fn is_added_by_cargo_run(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_link_is_not_a_wish() {
        let checkout = Checkout::at("/src/orchestrator".into());
        let wish = |value: &str| checkout.libtorch_wish(Some(value.into()));
        assert_eq!(wish("/src/orchestrator/.torch/torch"), None);
        assert_eq!(wish(""), None);
        assert_eq!(wish("/opt/torch"), Some("/opt/torch".into()));
        assert_eq!(checkout.libtorch_wish(None), None);
    }

    #[test]
    fn only_variables_of_the_outer_run_are_dropped() {
        assert!(is_added_by_cargo_run("CARGO_PKG_NAME"));
        assert!(!is_added_by_cargo_run("CARGO_TARGET_DIR"));
        assert!(!is_added_by_cargo_run("CARGO_HOME"));
    }
}
