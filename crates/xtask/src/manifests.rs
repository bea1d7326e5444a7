//! `cargo xtask manifests`: what is shipped for Docker and Kubernetes, rendered and checked.
//!
//! Invariants: every check here is proved to find something in each run (`mutants`); no cluster and
//! no container engine is needed; after the first run, no network either.

use crate::checkout::Checkout;
use crate::tally::Tally;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

mod compare;
mod files;
mod flags;
mod mutants;
mod pods;
mod refusals;
mod sets;
mod tools;

use flags::Flags;
use tools::{Rendered, Tools};

/// The oldest and the newest Kubernetes that the manifests are written for.
const VERSIONS: [&str; 2] = ["1.33", "1.37"];

/// Renders and checks everything; with `update`, keeps the messages of refused values as they are.
pub(crate) fn run(checkout: &Checkout, update: bool) -> Result<Tally> {
    let tools = Tools::prepare(checkout)?;
    let rendered = tools.render()?;
    let flags = Flags::read(checkout.root())?;
    let mut found = problems(&rendered, &flags);
    found.extend(invalid(&tools, &rendered)?);
    found.extend(differences(&rendered));
    found.extend(refusals::check(checkout, &rendered, update)?);
    found.extend(rendered.lint_problems());
    found.extend(files::check(checkout, &tools)?);
    found.extend(mutants::check(checkout, &tools, &rendered, &flags)?);
    if !found.is_empty() {
        bail!("{} problems\n  {}", found.len(), found.join("\n  "));
    }
    tell(&rendered);
    Ok(Tally::default())
}

/// Each problem once, with the sets that have it.
fn problems(rendered: &Rendered, flags: &Flags) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, objects) in rendered.sets() {
        for problem in problems_of_set(objects, flags) {
            places.entry(problem).or_default().push(name.clone());
        }
    }
    let told = places.into_iter();
    told.map(|(problem, sets)| format!("{problem} (in {})", sets.join(", "))).collect()
}

/// Everything that we ask of a set of objects that is applied together, beyond Kubernetes' schemas.
fn problems_of_set(objects: &[Value], flags: &Flags) -> Vec<String> {
    let each = objects.iter().flat_map(|object| {
        let pod = pods::problems(object).into_iter().chain(flags.problems(object));
        pod.map(|problem| format!("{}: {problem}", named(object))).collect::<Vec<_>>()
    });
    each.chain(sets::problems(objects)).collect()
}

/// Objects that Kubernetes' own schemas, or ours for custom resources, refuse.
fn invalid(tools: &Tools, rendered: &Rendered) -> Result<Vec<String>> {
    let mut distinct: BTreeMap<String, &Value> = BTreeMap::new();
    let all = rendered.sets().flat_map(|(_, objects)| objects);
    for object in all.chain(rendered.examples.values().flatten()) {
        distinct.insert(object.to_string(), object);
    }
    let objects: Vec<&Value> = distinct.into_values().collect();
    let errors = tools.validate(&VERSIONS, &objects)?;
    let each = objects.iter().zip(errors).flat_map(|(object, errors)| {
        errors.into_iter().map(|error| format!("{}: {error}", named(object))).collect::<Vec<_>>()
    });
    Ok(each.collect())
}

/// An overlay and the values file of its name must give the same objects.
fn differences(rendered: &Rendered) -> Vec<String> {
    let mut found = Vec::new();
    for (name, kustomize) in &rendered.kustomize {
        match rendered.helm.get(name) {
            Some(helm) => {
                let all = compare::differences(kustomize, helm);
                found.extend(all.into_iter().map(|difference| format!("{name}: {difference}")));
            }
            None => found.push(format!("overlay {name} has no values file of its name")),
        }
    }
    found
}

fn named(object: &Value) -> String {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}", text("/kind"), text("/metadata/name"))
}

fn tell(rendered: &Rendered) {
    let distinct: BTreeSet<String> =
        rendered.sets().flat_map(|(_, objects)| objects).map(Value::to_string).collect();
    eprintln!(
        "{} overlays and {} sets of values; {} distinct objects valid for Kubernetes {}",
        rendered.kustomize.len(),
        rendered.helm.len(),
        distinct.len(),
        VERSIONS.join(" and ")
    );
    eprintln!(
        "Helm's objects equal Kustomize's for all {} overlays; {} wrong values refused; {} mutants found",
        rendered.kustomize.len(),
        rendered.refused.len(),
        mutants::count()
    );
}

/// Of a text file of the checkout.
fn read(path: &std::path::Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// What the manifests start, word for word.
pub(crate) struct Shipped {
    pub(crate) coordinator: Vec<String>,
    pub(crate) worker: Vec<String>,
    pub(crate) submit: Vec<String>,
    /// The text of eval.yaml.
    pub(crate) evaluation: String,
}

/// The arguments of the overlay with an evaluation.
pub(crate) fn shipped(checkout: &Checkout) -> Result<Shipped> {
    let rendered = Tools::prepare(checkout)?.render()?;
    let objects = rendered.kustomize.get("evaluation").map_or(&[][..], |set| &set[..]);
    let arguments = |kind: &str| -> Result<Vec<String>> {
        let object = objects.iter().find(|object| object["kind"] == kind);
        let pod = object.and_then(pods::template).context("the overlay has all kinds")?;
        let container = pod.pointer("/spec/containers/0").context("a pod has a container")?;
        Ok(pods::arguments(container).map(str::to_owned).collect())
    };
    let map = objects.iter().find(|object| object["kind"] == "ConfigMap");
    let text = map.and_then(|map| map["data"]["eval.yaml"].as_str());
    Ok(Shipped {
        coordinator: arguments("StatefulSet")?,
        worker: arguments("Deployment")?,
        submit: arguments("Job")?,
        evaluation: text.context("the overlay has an eval.yaml")?.to_owned(),
    })
}
