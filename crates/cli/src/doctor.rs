//! `orchestrator doctor`: what this machine offers, what is missing, and what to do.
//!
//! Facts are gathered first, and what follows from them is a function: a diagnosis of another
//! machine can be made from its facts. Nothing is changed, made or kept.

mod diagnose;
mod facts;
mod finding;
mod gather;
mod render;

use anyhow::Context as _;
use facts::{Coordinator, Facts, Reached};
use finding::{Finding, Role};
use render::Look;
use serde::Serialize;

use crate::{
    args,
    exit::{Exit, Failure},
    print_line,
};

/// What `--json` prints.
#[derive(Serialize)]
struct Diagnosis<'a> {
    schema: &'static str,
    /// What can be done here.
    possible: &'a [Role],
    findings: &'a [Finding],
    facts: &'a Facts,
}

pub(crate) fn doctor(arguments: &args::Doctor) -> Result<Exit, Failure> {
    let facts = gather::gather(arguments);
    let findings = diagnose::diagnose(&facts);
    let possible = diagnose::possible(&findings);
    if arguments.json {
        let schema = "orchestrator.doctor/1";
        let diagnosis =
            Diagnosis { schema, possible: &possible, findings: &findings, facts: &facts };
        print_line(&serde_json::to_string_pretty(&diagnosis).context("failed to encode")?)?;
    } else {
        print_line(&render::render(&findings, &possible, Look::of_stdout()))?;
    }
    Ok(exit(&facts, &possible))
}

/// Good where anything can be computed, if only on the processor; where a GPU is asked for by name,
/// only if the worker can have one.
fn exit(facts: &Facts, possible: &[Role]) -> Exit {
    let Facts { coordinator, .. } = facts;
    let unreached = |it: &Coordinator| matches!(it.reached, Reached::Fails { .. });
    let enough = |role: &Role| match role {
        Role::Submit => !facts.wants_gpu(),
        Role::Worker => true,
        Role::Coordinator => false,
    };
    if coordinator.as_ref().is_some_and(unreached) {
        Exit::Unreachable
    } else if possible.iter().any(enough) {
        Exit::Complete
    } else {
        Exit::Internal
    }
}
