//! Dockerfiles by hadolint, compose files by the schema of the Compose specification, and the values in
//! the documentation.

use super::tools::Tools;
use crate::checkout::Checkout;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) fn check(checkout: &Checkout, tools: &Tools) -> Result<Vec<String>> {
    let folder = checkout.root().join("deploy/docker");
    let mut found = Vec::new();
    for path in sorted(&folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with("Dockerfile") {
            found.extend(dockerfile(tools, &path)?);
        } else if name.starts_with("compose") {
            found.extend(compose(tools, &path)?);
        }
    }
    found.extend(example(checkout)?);
    Ok(found)
}

/// The values that the documentation shows are rendered like all others.
fn example(checkout: &Checkout) -> Result<Option<String>> {
    let folder = checkout.root().join("deploy");
    let values = super::read(&folder.join("helm/orchestrator/ci/readme.yaml"))?;
    let shown = super::read(&folder.join("README.md"))?.contains(&values);
    Ok((!shown).then(|| "deploy/README.md does not show ci/readme.yaml as it is".to_owned()))
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// What hadolint says of a Dockerfile, if it is not content.
pub(super) fn dockerfile(tools: &Tools, path: &Path) -> Result<Option<String>> {
    complaint(tools.program("hadolint").arg("--no-color").arg(path))
}

/// What the schema says of a compose file, if it is not content.
pub(super) fn compose(tools: &Tools, path: &Path) -> Result<Option<String>> {
    let mut command = tools.module("check_jsonschema");
    command.args(["--builtin-schema", "vendor.compose-spec", "--color", "never"]);
    complaint(command.arg(path))
}

fn complaint(command: &mut Command) -> Result<Option<String>> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().replace('\n', "\n    ");
    Ok((!output.status.success()).then_some(said))
}
