//! The packages of a build and what they depend on, from `cargo metadata`.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// The only platform that is built for; dependencies of other platforms are left out.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// One package; `id` tells two versions of a package apart.
#[derive(Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) member: bool,
    /// Ids of what it is built with: normal and build dependencies, no development ones.
    pub(crate) built_with: BTreeSet<String>,
    /// Ids of what ends up inside it: normal dependencies.
    pub(crate) contains: BTreeSet<String>,
}

/// Packages by id.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) packages: BTreeMap<String, Package>,
    pub(crate) target_folder: PathBuf,
}

impl Graph {
    /// Asks cargo. `command` is a bare `cargo` with its environment.
    pub(crate) fn of_workspace(mut command: Command) -> Result<Self> {
        command.args(["metadata", "--format-version", "1", "--filter-platform", PLATFORM]);
        command.stderr(std::process::Stdio::inherit());
        let output = command.output().context("cannot start cargo")?;
        if !output.status.success() {
            bail!("`cargo metadata` failed ({}); its own message is above", output.status);
        }
        let metadata =
            serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?;
        Self::from_metadata(&metadata).context("cargo metadata lacks a field")
    }

    fn from_metadata(metadata: &Value) -> Option<Self> {
        let members: BTreeSet<&str> =
            metadata["workspace_members"].as_array()?.iter().filter_map(Value::as_str).collect();
        let mut graph = Self {
            target_folder: metadata["target_directory"].as_str()?.into(),
            ..Self::default()
        };
        for package in metadata["packages"].as_array()? {
            let (id, name) = (package["id"].as_str()?, package["name"].as_str()?);
            let member = members.contains(id);
            let package = Package { name: name.to_owned(), member, ..Package::default() };
            graph.packages.insert(id.to_owned(), package);
        }
        for node in metadata["resolve"]["nodes"].as_array()? {
            let package = graph.packages.get_mut(node["id"].as_str()?)?;
            for link in node["deps"].as_array()? {
                let id = link["pkg"].as_str()?;
                for kind in link["dep_kinds"].as_array()? {
                    package.add(id, kind["kind"].as_str());
                }
            }
        }
        Some(graph)
    }

    /// Packages of the workspace, by id.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&str, &Package)> {
        let entries = self.packages.iter().filter(|(_, package)| package.member);
        entries.map(|(id, package)| (id.as_str(), package))
    }

    pub(crate) fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.packages.get(id).map_or(id, |package| package.name.as_str())
    }

    /// Names of everything inside the binary or library of `id`, however deep.
    pub(crate) fn contents<'a>(&'a self, id: &'a str) -> BTreeSet<&'a str> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![id]);
        while let Some(next) = open.pop() {
            let Some(package) = self.packages.get(next) else { continue };
            open.extend(package.contains.iter().map(String::as_str).filter(|id| seen.insert(*id)));
        }
        seen.into_iter().map(|id| self.name(id)).collect()
    }
}

impl Package {
    /// `kind` as cargo metadata has it: none for a normal dependency.
    pub(crate) fn add(&mut self, id: &str, kind: Option<&str>) {
        match kind {
            None => {
                self.contains.insert(id.to_owned());
                self.built_with.insert(id.to_owned());
            }
            Some("build") => {
                self.built_with.insert(id.to_owned());
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn metadata_becomes_a_graph_without_development_links() {
        let dep = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "workspace_members": ["a"], "target_directory": "/t",
            "packages": [
                {"id": "a", "name": "ours"}, {"id": "b", "name": "b"},
                {"id": "c", "name": "c"}, {"id": "d", "name": "d"}, {"id": "e", "name": "e"}],
            "resolve": {"nodes": [
                {"id": "a", "deps": [
                    dep("b", Value::Null), dep("c", json!("dev")), dep("d", json!("build"))]},
                {"id": "b", "deps": [dep("e", Value::Null)]}]}
        });
        let graph = Graph::from_metadata(&metadata).unwrap();
        assert_eq!(graph.contents("a"), BTreeSet::from(["b", "e"]));
        let (_, ours) = graph.members().next().unwrap();
        assert_eq!(ours.built_with, BTreeSet::from(["b".to_owned(), "d".to_owned()]));
    }
}
