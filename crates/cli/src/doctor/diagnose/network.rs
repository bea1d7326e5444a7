//! Settings in the environment, certificates, and the coordinator.

use crate::doctor::{
    facts::{Coordinator, Facts, Reached, TlsFile, TlsFolder},
    finding::{Finding, Role},
};

const KEY: &str = "tls.key";
/// Bits of a key's mode by which everybody on the machine may read or change it.
const FOR_OTHERS: u32 = 0o007;

/// Our own variables, which count as flags do.
pub(crate) fn settings(facts: &Facts) -> Option<Finding> {
    let ours = facts.variables.iter().filter(|(name, _)| name.starts_with("ORCHESTRATOR_"));
    let ours: Vec<String> = ours.map(|(name, value)| format!("{name}={value}")).collect();
    (!ours.is_empty()).then(|| Finding::ok("settings", ours.join(" ")))
}

/// Whether the certificates are there. Whether they are good is found by whoever connects.
pub(crate) fn certificates(facts: &Facts) -> Vec<Finding> {
    const TOPIC: &str = "tls";
    let Some(TlsFolder { path, files }) = &facts.tls else { return Vec::new() };
    let mut findings = Vec::new();
    for (name, TlsFile { unreadable, mode }) in files {
        let file = path.join(name);
        let file = file.display();
        if let Some(why) = unreadable {
            let fix = "mount the certificate's secret there and let this user read it, or make one \
                       (`orchestrator certs init`)";
            let stops = [Role::Worker, Role::Coordinator];
            findings.push(Finding::problem(TOPIC, format!("{file}: {why}"), &stops).fix(fix));
        } else if name == KEY && mode.is_some_and(|mode| mode & FOR_OTHERS != 0) {
            let text = format!("{file} can be read by everybody on this machine");
            findings.push(Finding::note(TOPIC, text).fix(format!("chmod 600 {file}")));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(TOPIC, format!("{}: complete and readable", path.display())));
    }
    findings
}

/// Whether the coordinator answers.
pub(crate) fn coordinator(facts: &Facts) -> Option<Finding> {
    const TOPIC: &str = "coordinator";
    let Coordinator { url, reached } = facts.coordinator.as_ref()?;
    Some(match reached {
        Reached::Answers { workers, slices } => {
            Finding::ok(TOPIC, format!("{url} answers: workers {workers}, slices {slices}"))
        }
        Reached::Fails { why } => {
            let fix = "check the address, that the coordinator runs (`orchestrator coordinator`), \
                       and what lies between: firewalls, NetworkPolicy, certificates";
            let text = if why.contains(url) { why.clone() } else { format!("{url}: {why}") };
            Finding::problem(TOPIC, text, &[Role::Worker]).fix(fix)
        }
    })
}
