//! The `orchestrator` binary: verbs, rendering and exit codes.
//!
//! Invariant: data goes to stdout, everything else to stderr; the process ends with one of the
//! documented exit codes. Absent on purpose: libtorch (this binary starts in milliseconds) and
//! anything worth a unit test elsewhere.

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod certs;
mod check;
mod cluster;
mod devices;
mod doctor;
mod duration;
mod embedded;
mod evaluation;
mod executor;
mod exit;
mod facts;
mod finish;
mod folder;
mod follow;
mod history;
mod host;
mod interrupt;
mod inventory;
mod local;
mod logs;
mod nodes;
mod pace;
mod plan;
mod profile;
mod progress;
mod runs;
mod runtime;
mod scratch;
mod service;
mod settings;
mod state;
mod status;
mod streams;
mod submit;
mod target;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::{
    args::{Arguments, Verb},
    exit::{Exit, Failure},
    streams::{print_line, say},
};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = run(arguments.verb, arguments.verbose);
    let exit = outcome.unwrap_or_else(|failure| {
        failure.print();
        failure.exit
    });
    exit.into()
}

fn run(verb: Verb, verbose: u8) -> Result<Exit, Failure> {
    // A service's configuration says how its log is written.
    if !matches!(verb, Verb::Coordinator(_) | Verb::Worker(_)) {
        logs::start(verbose);
    }
    match verb {
        Verb::Coordinator(coordinator) => service::coordinator::serve(coordinator, verbose),
        Verb::Worker(worker) => service::worker::serve(worker, verbose),
        Verb::Submit(submit) => submit::submit(&submit),
        Verb::Check(check) => check::check(&check),
        Verb::Plan(plan) => plan::plan(&plan),
        Verb::Profile(profile) => profile::profile(&profile),
        Verb::Nodes(nodes) => nodes::nodes(&nodes),
        Verb::Doctor(doctor) => doctor::doctor(&doctor),
        Verb::Resume(resume) => submit::resume(&resume),
        Verb::Watch(watch) => watch::watch(&watch),
        Verb::Logs(logs) => history::logs(&logs),
        Verb::Cancel(cancel) => watch::cancel(&cancel),
        Verb::Runs(runs) => runs::runs(&runs),
        Verb::Status(status) => status::status(&status),
        Verb::Report(report) => runs::report(&report),
        Verb::Certs(certs) => certs::certs(&certs),
        Verb::Schema => print_line(
            &serde_json::to_string_pretty(&orchestrator_spec::schema())
                .expect("a schema is always valid JSON"),
        ),
        Verb::Completion { shell } => {
            let mut command = Arguments::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "orchestrator", &mut script);
            print_line(String::from_utf8_lossy(&script).trim_end())
        }
        Verb::Version => print_line(&format!("orchestrator {}", orchestrator_proto::BUILD)),
    }
}
