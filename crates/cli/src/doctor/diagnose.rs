//! What follows from the facts. Pure.

mod gpus;
mod host;
mod network;

use super::{
    facts::{Executor, Facts},
    finding::{Finding, Role},
};

/// Every finding, in the order in which a machine is looked at.
pub(crate) fn diagnose(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![executor(facts)];
    findings.extend(host::processor(facts));
    findings.extend(gpus::gpus(facts));
    findings.extend(gpus::sharing(facts));
    findings.extend(gpus::pod(facts));
    findings.extend(host::folders(facts));
    findings.extend(host::socket(facts));
    findings.extend(network::settings(facts));
    findings.extend(network::certificates(facts));
    findings.extend(network::coordinator(facts));
    findings
}

/// What can be done in spite of the findings.
pub(crate) fn possible(findings: &[Finding]) -> Vec<Role> {
    let stopped = |role| findings.iter().any(|finding| finding.stops.contains(&role));
    Role::ALL.into_iter().filter(|role| !stopped(*role)).collect()
}

const COMPUTING: [Role; 2] = [Role::Submit, Role::Worker];

fn executor(facts: &Facts) -> Finding {
    const TOPIC: &str = "executor";
    match &facts.executor {
        Executor::Missing { why } => Finding::problem(TOPIC, why, &COMPUTING).split(),
        Executor::Silent { path, why } => {
            let text = format!("{} does not answer: {why}", path.display());
            let fix = format!("run `{} devices` to see what it says", path.display());
            Finding::problem(TOPIC, text, &COMPUTING).fix(fix)
        }
        Executor::Answers { path, answer } if answer.build != facts.build => {
            let (theirs, ours) = (&answer.build, &facts.build);
            let text = format!("{} is build {theirs}, and this is build {ours}", path.display());
            let fix = "install both programs of one build (`cargo xtask install`)";
            Finding::problem(TOPIC, text, &COMPUTING).fix(fix)
        }
        Executor::Answers { path, answer } => {
            let cuda = &answer.cuda;
            let cuda = if cuda.loaded {
                format!("with CUDA {}", cuda.bundled)
            } else {
                "without CUDA".to_owned()
            };
            let (path, build, libtorch) = (path.display(), &answer.build, &answer.libtorch);
            Finding::ok(TOPIC, format!("{path}, build {build}, libtorch {libtorch} {cuda}"))
        }
    }
}

#[cfg(test)]
mod tests;
