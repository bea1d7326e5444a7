//! The arrows of the architecture: which crate may depend on which.
//!
//! Edge → processes → wire → decisions → facts → words, and executor → hardware → words. Pure
//! crates stay free of runtimes; `tch`, `torch-sys` and `nvml-wrapper` each have one home and stay
//! out of the `orchestrator` binary, which must start on a machine without libtorch.
//! Development dependencies are free: tests may look anywhere.

use crate::graph::{Graph, Package};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Words,
    Facts,
    Decisions,
    Hardware,
    Wire,
    Processes,
    Edge,
    Tools,
}

use Layer::{Decisions, Edge, Facts, Hardware, Processes, Tools, Wire, Words};

/// Every crate of the workspace and its layer. A new crate is added here first.
const LAYERS: &[(&str, Layer)] = &[
    ("orchestrator-types", Words),
    ("orchestrator-files", Facts),
    ("orchestrator-model", Facts),
    ("orchestrator-spec", Decisions),
    ("orchestrator-plan", Decisions),
    ("orchestrator-ledger", Decisions),
    ("orchestrator-footprint", Decisions),
    ("orchestrator-run", Decisions),
    ("orchestrator-tasks", Decisions),
    ("orchestrator-report", Decisions),
    ("orchestrator-torch", Hardware),
    ("orchestrator-engine", Hardware),
    ("orchestrator-data", Hardware),
    ("orchestrator-host", Hardware),
    ("orchestrator-device", Hardware),
    ("orchestrator-proto", Wire),
    ("orchestrator-tls", Wire),
    ("orchestrator-executor", Processes),
    ("orchestrator-worker", Processes),
    ("orchestrator-coordinator", Processes),
    ("orchestrator-cli", Edge),
    ("orchestrator-tests", Tools),
    ("xtask", Tools),
];

/// The crate behind the `orchestrator` binary.
const CLI: &str = "orchestrator-cli";

/// What a layer may depend on.
fn below(layer: Layer) -> &'static [Layer] {
    match layer {
        Words | Tools => &[],
        Facts => &[Words, Facts],
        Decisions => &[Words, Facts, Decisions],
        Wire => &[Words, Facts, Decisions, Wire],
        Hardware => &[Words, Facts, Hardware],
        Processes => &[Words, Facts, Decisions, Hardware, Wire],
        Edge => &[Words, Facts, Decisions, Hardware, Wire, Processes],
    }
}

/// Arrows that the layers would allow, and why they are wrong all the same.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("orchestrator-data", "orchestrator-torch", "images are decoded without libtorch"),
    ("orchestrator-data", "orchestrator-engine", "images are decoded without libtorch"),
    ("orchestrator-device", "orchestrator-torch", "NVML needs no libtorch"),
    ("orchestrator-spec", "orchestrator-files", "an evaluation is text; its reader opens nothing"),
    ("orchestrator-plan", "orchestrator-files", "a plan follows from facts, not from files"),
    ("orchestrator-executor", "orchestrator-spec", "the executor decides nothing"),
    ("orchestrator-executor", "orchestrator-plan", "the executor decides nothing"),
    ("orchestrator-executor", "orchestrator-run", "the executor decides nothing"),
    ("orchestrator-worker", "orchestrator-spec", "the agent decides nothing"),
    ("orchestrator-worker", "orchestrator-plan", "the agent decides nothing"),
    ("orchestrator-worker", "orchestrator-run", "the agent decides nothing"),
    ("orchestrator-cli", "orchestrator-executor", "executors are processes of their own"),
];

/// A library that only these members may name as a dependency.
const HOMES: &[(&str, &str)] = &[
    ("tch", "orchestrator-engine"),
    ("torch-sys", "orchestrator-torch"),
    ("nvml-wrapper", "orchestrator-device"),
];

/// What no pure crate contains, however deep.
const IMPURE: &[&str] = &["tokio", "tonic", "tch", "torch-sys", "nvml-wrapper"];

/// Every broken rule, one line each, in a fixed order.
pub(crate) fn violations(graph: &Graph) -> Vec<String> {
    let mut found = Vec::new();
    for (id, package) in graph.members() {
        match layer_of(&package.name) {
            None => found.push(format!("{} has no layer: add it to xtask's table", package.name)),
            Some(layer) => {
                found.extend(wrong_arrows(graph, package, layer));
                found.extend(wrong_contents(graph, id, package, layer));
            }
        }
    }
    found
}

fn layer_of(name: &str) -> Option<Layer> {
    LAYERS.iter().find(|(known, _)| *known == name).map(|(_, layer)| *layer)
}

fn wrong_arrows(graph: &Graph, package: &Package, layer: Layer) -> Vec<String> {
    let from = package.name.as_str();
    let names: BTreeSet<&str> = package.built_with.iter().map(|id| graph.name(id)).collect();
    names
        .into_iter()
        .filter_map(|to| Some(format!("{from} → {to}: {}", wrong(from, layer, to)?)))
        .collect()
}

/// Why `from` must not depend on `to`, if so.
fn wrong(from: &str, layer: Layer, to: &str) -> Option<String> {
    if let Some((_, _, why)) = FORBIDDEN.iter().find(|(a, b, _)| (*a, *b) == (from, to)) {
        return Some((*why).to_owned());
    }
    if let Some((_, home)) = HOMES.iter().find(|(library, home)| *library == to && *home != from) {
        return Some(format!("only {home} may use it"));
    }
    let target = layer_of(to)?;
    (!below(layer).contains(&target)).then(|| format!("{layer:?} may not depend on {target:?}"))
}

fn wrong_contents(graph: &Graph, id: &str, package: &Package, layer: Layer) -> Vec<String> {
    let banned: Vec<(&str, &str)> = match layer {
        Words | Facts | Decisions => IMPURE.iter().map(|name| (*name, "pure")).collect(),
        Edge if package.name == CLI => {
            HOMES.iter().map(|(library, _)| (*library, "free of libtorch and NVML")).collect()
        }
        _ => return Vec::new(),
    };
    let contents = graph.contents(id);
    let inside = banned.into_iter().filter(|(library, _)| contents.contains(library));
    let name = &package.name;
    inside.map(|(library, must)| format!("{name} must be {must}, but contains {library}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph whose ids are names; packages that start with a letter of ours are members.
    fn graph(links: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        for (from, to) in links {
            for name in [from, to] {
                let package = graph.packages.entry((*name).to_owned()).or_default();
                (*name).clone_into(&mut package.name);
                package.member = layer_of(name).is_some() || name.starts_with("orchestrator-");
            }
            graph.packages.get_mut(*from).unwrap().add(to, None);
        }
        graph
    }

    #[test]
    fn the_straight_line_is_allowed() {
        let line = [
            ("orchestrator-cli", "orchestrator-coordinator"),
            ("orchestrator-coordinator", "orchestrator-proto"),
            ("orchestrator-coordinator", "orchestrator-run"),
            ("orchestrator-run", "orchestrator-plan"),
            ("orchestrator-plan", "orchestrator-types"),
            ("orchestrator-executor", "orchestrator-engine"),
            ("orchestrator-engine", "orchestrator-torch"),
            ("orchestrator-engine", "tch"),
            ("orchestrator-torch", "torch-sys"),
            ("tch", "torch-sys"),
        ];
        assert_eq!(violations(&graph(&line)), Vec::<String>::new());
    }

    #[test]
    fn planted_violations_are_found() {
        for (from, to, message) in [
            ("orchestrator-plan", "orchestrator-worker", "Decisions may not depend on Processes"),
            ("orchestrator-types", "orchestrator-spec", "Words may not depend on Decisions"),
            ("orchestrator-data", "orchestrator-torch", "decoded without libtorch"),
            ("orchestrator-executor", "tch", "only orchestrator-engine may use it"),
            ("orchestrator-engine", "torch-sys", "only orchestrator-torch may use it"),
            ("orchestrator-worker", "nvml-wrapper", "only orchestrator-device may use it"),
            ("xtask", "orchestrator-types", "Tools may not depend on Words"),
            ("orchestrator-stray", "orchestrator-types", "has no layer"),
        ] {
            let found = violations(&graph(&[(from, to)]));
            assert!(found.len() == 1 && found[0].contains(message), "{from} → {to}: {found:?}");
        }
    }

    #[test]
    fn what_hides_deep_inside_is_found() {
        let deep = [("orchestrator-report", "parquet"), ("parquet", "tokio")];
        assert_eq!(
            violations(&graph(&deep)),
            ["orchestrator-report must be pure, but contains tokio"]
        );
        let linked = [
            ("orchestrator-cli", "orchestrator-engine"),
            ("orchestrator-engine", "tch"),
            ("tch", "torch-sys"),
        ];
        assert_eq!(
            violations(&graph(&linked)),
            [
                "orchestrator-cli must be free of libtorch and NVML, but contains tch",
                "orchestrator-cli must be free of libtorch and NVML, but contains torch-sys"
            ]
        );
    }
}
