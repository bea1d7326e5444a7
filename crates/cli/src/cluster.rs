//! What a cluster needs and is not built yet: accepted by the parser, refused by name.

use std::env;

use anyhow::anyhow;

use crate::{args::Verb, exit::Failure};

const VARIABLE: &str = "ORCHESTRATOR_COORDINATOR";

/// Refuses a verb that is meant for a cluster; embedded it would do something else.
pub(crate) fn refuse(verb: &Verb) -> Result<(), Failure> {
    let (cluster, detach) = match verb {
        Verb::Submit(submit) => (&submit.cluster, submit.detach),
        Verb::Resume(resume) => (&resume.cluster, false),
        Verb::Runs(runs) => (&runs.cluster, false),
        Verb::Status(status) => (&status.cluster, false),
        Verb::Report(report) => (&report.cluster, false),
        Verb::Nodes(nodes) => (&nodes.cluster, false),
        Verb::Check(_)
        | Verb::Plan(_)
        | Verb::Profile(_)
        | Verb::Schema
        | Verb::Completion { .. }
        | Verb::Version => {
            return Ok(());
        }
    };
    let set = env::var_os(VARIABLE).is_some_and(|url| !url.is_empty());
    refusal(cluster.coordinator.is_some(), set, detach)
        .map_or(Ok(()), |text| Err(Failure::usage(anyhow!(text))))
}

fn refusal(flag: bool, variable: bool, detach: bool) -> Option<String> {
    let (what, cure) = match (flag, variable, detach) {
        (true, ..) => ("`--coordinator`", "leave it out".to_owned()),
        (_, true, _) => ("`--coordinator`", format!("unset {VARIABLE}")),
        (.., true) => ("`--detach`", "leave it out".to_owned()),
        (false, false, false) => return None,
    };
    Some(format!("{what} is not built yet: everything runs embedded, on this machine; {cure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_asks_for_a_cluster_is_refused_by_name() {
        assert_eq!(refusal(false, false, false), None);
        assert!(refusal(true, true, true).unwrap().starts_with("`--coordinator` is not built"));
        assert!(refusal(false, true, false).unwrap().ends_with("unset ORCHESTRATOR_COORDINATOR"));
        assert!(refusal(false, false, true).unwrap().starts_with("`--detach`"));
    }
}
