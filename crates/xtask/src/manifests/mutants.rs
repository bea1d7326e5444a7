//! A check that finds nothing may be blind. Each is shown objects with one fault and must find it.

use super::tools::{Rendered, Tools};
use super::{Flags, VERSIONS, compare, files, problems_of_set};
use crate::checkout::Checkout;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;

/// Who must find a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finder {
    /// The schemas, in every version.
    Schemas,
    /// Our own rules, whose message holds this.
    Rules(&'static str),
    /// The comparison with Helm's objects.
    Comparison,
}
use Finder::{Comparison, Rules, Schemas};

/// Sets a value at a place, or removes it, in one object of an overlay.
struct Mutant {
    overlay: &'static str,
    object: &'static str,
    place: &'static str,
    value: Option<Value>,
    finder: Finder,
}

const TABLE: &str = include_str!("mutants.txt");

/// The table beside this file.
fn mutants() -> Result<Vec<Mutant>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| mutant(line).with_context(|| format!("mutants.txt: {line}"))).collect()
}

fn mutant(line: &'static str) -> Result<Mutant> {
    let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
    let [overlay, object, place, value, finder] = cells[..] else { bail!("not five cells") };
    let value = if value == "-" { None } else { Some(serde_json::from_str(value)?) };
    let finder = match finder.split_once(": ") {
        Some(("rules", message)) => Rules(message),
        None if finder == "schemas" => Schemas,
        None if finder == "comparison" => Comparison,
        _ => bail!("`{finder}` finds nothing"),
    };
    Ok(Mutant { overlay, object, place, value, finder })
}

/// How many there are, for the closing line: the table's, a Dockerfile and a compose file.
pub(super) fn count() -> usize {
    TABLE.lines().filter(|line| !line.starts_with('#')).count() + 2
}

pub(super) fn check(
    checkout: &Checkout,
    tools: &Tools,
    rendered: &Rendered,
    flags: &Flags,
) -> Result<Vec<String>> {
    let mut blind = Vec::new();
    let mut for_schemas = Vec::new();
    for mutant in mutants()? {
        let told = format!("{} with a fault at {}", mutant.object, mutant.place);
        let Some(set) = mutant.apply(rendered) else {
            blind.push(format!("{told}: there is no such object or place"));
            continue;
        };
        match mutant.finder {
            Schemas => for_schemas
                .push((told, set.into_iter().find(|object| super::named(object) == mutant.object))),
            Rules(message) => {
                if !problems_of_set(&set, flags).iter().any(|found| found.contains(message)) {
                    blind.push(format!("{told}: the rules do not see it"));
                }
            }
            Comparison => {
                let helm = rendered.helm.get(mutant.overlay).context("overlays have values")?;
                if compare::differences(&set, helm).is_empty() {
                    blind.push(format!("{told}: the comparison does not see it"));
                }
            }
        }
    }
    blind.extend(unseen_by_schemas(tools, &for_schemas)?);
    blind.extend(unseen_files(checkout, tools)?);
    Ok(blind.into_iter().map(|text| format!("a check is blind: {text}")).collect())
}

fn unseen_by_schemas(tools: &Tools, mutants: &[(String, Option<Value>)]) -> Result<Vec<String>> {
    let objects: Vec<&Value> =
        mutants.iter().map(|(_, object)| object.as_ref().unwrap_or(&Value::Null)).collect();
    let mut blind = Vec::new();
    for version in VERSIONS {
        let errors = tools.validate(&[version], &objects)?;
        let unseen = mutants.iter().zip(errors).filter(|(_, errors)| errors.is_empty());
        blind.extend(unseen.map(|((told, _), _)| format!("{told}: not seen by {version}")));
    }
    Ok(blind)
}

/// A Dockerfile and a compose file of ours, each with one fault.
fn unseen_files(checkout: &Checkout, tools: &Tools) -> Result<Vec<String>> {
    let ours = checkout.root().join("deploy/docker");
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut blind = Vec::new();
    let dockerfile = folder.path().join("Dockerfile");
    let text = super::read(&ours.join("Dockerfile"))?;
    fs::write(&dockerfile, format!("{text}\nUSER root\nRUN sudo apt-get install x\n"))?;
    if files::dockerfile(tools, &dockerfile)?.is_none() {
        blind.push("hadolint does not see `sudo`".to_owned());
    }
    let compose = folder.path().join("compose.yaml");
    let text = super::read(&ours.join("compose.yaml"))?;
    fs::write(&compose, text.replace("read_only:", "readonly:"))?;
    if files::compose(tools, &compose)?.is_none() {
        blind.push("the compose schema does not see a misspelt `read_only`".to_owned());
    }
    Ok(blind)
}

impl Mutant {
    /// The overlay's objects with the fault in them.
    fn apply(&self, rendered: &Rendered) -> Option<Vec<Value>> {
        self.plant(rendered.kustomize.get(self.overlay)?)
    }

    fn plant(&self, objects: &[Value]) -> Option<Vec<Value>> {
        let mut set = objects.to_vec();
        let object = set.iter_mut().find(|object| super::named(object) == self.object)?;
        let (parent, key) = self.place.rsplit_once('/')?;
        let key = key.replace("~1", "/");
        match (object.pointer_mut(parent)?, self.value.clone()) {
            (Value::Object(fields), Some(value)) => _ = fields.insert(key, value),
            (Value::Object(fields), None) => _ = fields.remove(&key)?,
            (Value::Array(items), Some(value)) => {
                *items.get_mut(key.parse::<usize>().ok()?)? = value;
            }
            (Value::Array(items), None) => {
                let index = key.parse::<usize>().ok().filter(|index| *index < items.len())?;
                items.remove(index);
            }
            _ => return None,
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_table_is_understood() {
        assert_eq!(mutants().unwrap().len() + 2, count());
        for line in
            ["cpu | a b | /x | 1", "cpu | a b | /x | {1 | schemas", "cpu | a b | /x | 1 | me"]
        {
            assert!(mutant(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_fault_is_planted_only_where_its_place_is() {
        let object = json!({"kind": "a", "metadata": {"name": "b"}, "list": [1, 2], "field": 3});
        let planted = |place, value| {
            let mutant = Mutant { overlay: "o", object: "a b", place, value, finder: Schemas };
            mutant.plant(std::slice::from_ref(&object)).map(|set| set[0].clone())
        };
        assert_eq!(planted("/list/1", None).unwrap()["list"], json!([1]));
        assert_eq!(planted("/list/0", Some(json!(7))).unwrap()["list"], json!([7, 2]));
        assert_eq!(planted("/new", Some(json!(7))).unwrap()["new"], json!(7));
        assert!(planted("/fields", None).is_none() && planted("/list/2", None).is_none());
        assert!(planted("/none/x", Some(json!(1))).is_none());
    }
}
