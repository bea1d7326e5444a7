//! Does every flag and variable that a manifest uses exist? Read from the command line's source, so
//! that no binary has to be built first.

use super::pods::{arguments, list, template};
use anyhow::{Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const SOURCES: [&str; 2] = ["crates/cli/src/args.rs", "crates/cli/src/args/service.rs"];
const VARIABLE: &str = "ORCHESTRATOR_";

/// Flags by verb, and variables of the environment.
pub(super) struct Flags {
    verbs: BTreeMap<String, BTreeSet<String>>,
    variables: BTreeSet<String>,
}

/// One struct of arguments.
#[derive(Default)]
struct Group {
    flags: BTreeSet<String>,
    flattened: Vec<String>,
}

impl Flags {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let sources: Vec<String> =
            SOURCES.iter().map(|path| super::read(&root.join(path))).collect::<Result<_>>()?;
        let flags = Self::of_source(&sources.concat());
        for (verb, known) in
            [("coordinator", "listen"), ("worker", "data-root"), ("submit", "output")]
        {
            if !flags.verbs.get(verb).is_some_and(|flags| flags.contains(known)) {
                bail!(
                    "{} tell no --{known} of `{verb}`: read them differently",
                    SOURCES.join(", ")
                );
            }
        }
        Ok(flags)
    }

    fn of_source(source: &str) -> Self {
        let groups = groups(source);
        let verbs = verbs(source);
        let mut found = BTreeMap::new();
        for (verb, group) in verbs {
            let mut flags = BTreeSet::new();
            collect(&group, &groups, &mut flags);
            found.insert(verb, flags);
        }
        let variables = source.split('"').filter(|word| word.starts_with(VARIABLE));
        Self { verbs: found, variables: variables.map(str::to_owned).collect() }
    }

    pub(super) fn problems(&self, object: &Value) -> Vec<String> {
        let containers =
            template(object).into_iter().flat_map(|pod| list(&pod["spec"]["containers"]));
        containers.flat_map(|container| self.of_container(container)).collect()
    }

    fn of_container(&self, container: &Value) -> Vec<String> {
        let mut arguments = arguments(container);
        let verb = arguments.next().unwrap_or_default();
        let Some(known) = self.verbs.get(verb) else {
            return vec![format!("there is no verb `{verb}`")];
        };
        let used = arguments.filter_map(|argument| argument.strip_prefix("--"));
        let names = used.map(|flag| flag.split_once('=').map_or(flag, |(name, _)| name));
        let flags = names
            .filter(|name| !known.contains(*name))
            .map(|name| format!("`orchestrator {verb}` has no flag --{name}"));
        let set = list(&container["env"]).filter_map(|variable| variable["name"].as_str());
        let variables = set
            .filter(|name| name.starts_with(VARIABLE) && !self.variables.contains(*name))
            .map(|name| format!("nothing reads {name}"));
        flags.chain(variables).collect()
    }
}

fn collect(group: &str, groups: &BTreeMap<String, Group>, flags: &mut BTreeSet<String>) {
    let Some(found) = groups.get(group) else { return };
    flags.extend(found.flags.iter().cloned());
    for inner in &found.flattened {
        collect(inner, groups, flags);
    }
}

/// `Coordinator(service::Coordinator),` of `enum Verb`, as `coordinator` → `service::Coordinator`.
fn verbs(source: &str) -> BTreeMap<String, String> {
    let body = source.split("enum Verb {").nth(1).unwrap_or_default();
    let body = body.split("\n}").next().unwrap_or_default();
    let variant = |line: &str| {
        let (name, rest) = line.trim().strip_suffix("),")?.split_once('(')?;
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric());
        plain.then(|| (name.to_lowercase(), last_word(rest)))
    };
    body.lines().filter_map(variant).collect()
}

fn last_word(path: &str) -> String {
    path.rsplit("::").next().unwrap_or_default().to_owned()
}

/// Structs of arguments. An attribute goes before its field, over one or several lines.
fn groups(source: &str) -> BTreeMap<String, Group> {
    let mut groups = BTreeMap::new();
    let (mut name, mut group, mut attribute) = (String::new(), Group::default(), String::new());
    for line in source.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("pub(crate) struct ") {
            rest.split([' ', '{', '(']).next().unwrap_or_default().clone_into(&mut name);
            (group, attribute) = (Group::default(), String::new());
        } else if line == "}" {
            groups.insert(std::mem::take(&mut name), std::mem::take(&mut group));
        } else if line.starts_with("#[")
            || !attribute.is_empty() && !line.starts_with("pub(crate) ")
        {
            attribute.push_str(line);
        } else if let Some((field, kind)) =
            line.strip_prefix("pub(crate) ").and_then(|line| line.split_once(':'))
        {
            add(&mut group, &std::mem::take(&mut attribute), field, kind);
        }
    }
    groups
}

fn add(group: &mut Group, attribute: &str, field: &str, kind: &str) {
    if attribute.contains("flatten") {
        group.flattened.push(last_word(kind.trim().trim_end_matches(',')));
    } else if let Some((_, rest)) = attribute.split_once("long = \"") {
        group.flags.extend(rest.split('"').next().map(str::to_owned));
    } else if attribute.split([',', '(', ')', ' ']).any(|word| word == "long") {
        group.flags.insert(field.replace('_', "-"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SOURCE: &str = r#"
        pub(crate) enum Verb {
            /// Serve (or not)
            #[command(after_help = X)]
            Serve(inner::Serve),
            Other,
}
        pub(crate) struct Serve {
            /// Where
            #[arg(long, value_name = "ADDRESS", env = "ORCHESTRATOR_LISTEN")]
            pub(crate) listen: Option<String>,
            #[arg(
                long = "data-root",
                value_delimiter = ';'
            )]
            pub(crate) roots: Vec<Root>,
            /// A file
            pub(crate) file: PathBuf,
            #[command(flatten)]
            pub(crate) more: inner::More,
        }
        pub(crate) struct More {
            #[arg(long, num_args = 0..=1,
                  value_name = "BOOL")]
            pub(crate) log_format: Option<bool>,
        }
    "#;

    fn problems(arguments: &Value, variable: &str) -> Vec<String> {
        let container = json!({"args": arguments, "env": [{"name": variable}]});
        let template = json!({"spec": {"containers": [container]}});
        Flags::of_source(SOURCE).problems(&json!({"kind": "Job", "spec": {"template": template}}))
    }

    #[test]
    fn flags_of_a_verb_and_of_what_it_flattens_are_known() {
        let all = json!(["serve", "file", "--listen=a", "--data-root=a=b", "--log-format", "--",]);
        assert_eq!(problems(&all, "ORCHESTRATOR_LISTEN"), ["`orchestrator serve` has no flag --"]);
        assert_eq!(problems(&json!(["serve"]), "PATH"), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_there_is_told() {
        let found = problems(&json!(["serve", "--file=x", "--roots=x"]), "ORCHESTRATOR_LISTENS");
        assert_eq!(
            found,
            [
                "`orchestrator serve` has no flag --file",
                "`orchestrator serve` has no flag --roots",
                "nothing reads ORCHESTRATOR_LISTENS"
            ]
        );
        assert_eq!(problems(&json!(["other"]), "X"), ["there is no verb `other`"]);
    }

    #[test]
    fn our_own_source_is_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let flags = Flags::read(&root).unwrap();
        for (verb, flag) in
            [("coordinator", "log-format"), ("worker", "grace"), ("submit", "data-root")]
        {
            assert!(flags.verbs[verb].contains(flag), "{verb} --{flag}");
        }
        assert!(!flags.verbs["coordinator"].contains("grace"));
    }
}
