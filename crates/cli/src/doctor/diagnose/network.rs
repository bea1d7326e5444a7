//! Settings in the environment, certificates, and the coordinator.

use crate::doctor::{
    facts::{Certificates, Coordinator, Facts, Reached, TlsFolder},
    finding::{Finding, Role},
};

/// A certificate that ends sooner should be renewed by somebody now.
const SOON_DAYS: i64 = 7;

/// Our own variables, which count as flags do.
pub(crate) fn settings(facts: &Facts) -> Option<Finding> {
    let ours = facts.variables.iter().filter(|(name, _)| name.starts_with("ORCHESTRATOR_"));
    let ours: Vec<String> = ours.map(|(name, value)| format!("{name}={value}")).collect();
    (!ours.is_empty()).then(|| Finding::ok("settings", ours.join(" ")))
}

/// Whether the certificates can be used. Whether the other side believes them is found by whoever
/// connects.
pub(crate) fn certificates(facts: &Facts) -> Option<Finding> {
    const TOPIC: &str = "tls";
    let TlsFolder { path, content } = facts.tls.as_ref()?;
    let path = path.display();
    Some(match content {
        Certificates::Good { identity, until, days } => {
            let text = format!("{path}: the certificate of {identity}, valid until {until}");
            if *days < SOON_DAYS {
                Finding::note(TOPIC, text).fix("renew it (`orchestrator certs issue`)")
            } else {
                Finding::ok(TOPIC, text)
            }
        }
        Certificates::Bad { why } => {
            Finding::problem(TOPIC, why, &[Role::Worker, Role::Coordinator]).split()
        }
    })
}

/// Whether the coordinator answers.
pub(crate) fn coordinator(facts: &Facts) -> Option<Finding> {
    const TOPIC: &str = "coordinator";
    let Coordinator { url, reached } = facts.coordinator.as_ref()?;
    Some(match reached {
        Reached::Answers { workers, slices } => {
            Finding::ok(TOPIC, format!("{url} answers: workers {workers}, slices {slices}"))
        }
        Reached::Greets => Finding::ok(TOPIC, format!("{url} answers, and takes this certificate")),
        Reached::Fails { why, advice } => {
            let usual = "check the address, that the coordinator runs (`orchestrator coordinator`), \
                       and what lies between: firewalls, NetworkPolicy, certificates";
            let text = if why.contains(url) { why.clone() } else { format!("{url}: {why}") };
            let finding = Finding::problem(TOPIC, text, &[Role::Worker]).split();
            let fix = advice.clone().or(finding.fix.clone()).unwrap_or_else(|| usual.to_owned());
            finding.fix(fix)
        }
    })
}
