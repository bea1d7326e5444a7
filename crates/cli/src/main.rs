//! The `orchestrator` binary: verbs, rendering and exit codes.
//!
//! Invariant: data goes to stdout, everything else to stderr; the process ends with one of the
//! documented exit codes. Absent on purpose: libtorch (this binary starts in milliseconds) and
//! anything worth a unit test elsewhere.

mod args;
mod check;
mod embedded;
mod evaluation;
mod exit;
mod facts;
mod folder;
mod follow;
mod local;
mod plan;
mod progress;
mod runs;
mod state;
mod status;
mod submit;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::{
    args::{Arguments, Verb},
    exit::{Exit, Failure},
};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logs(arguments.verbose);
    let outcome = run(arguments.verb);
    let exit = outcome.unwrap_or_else(|failure| {
        failure.print();
        failure.exit
    });
    exit.into()
}

fn run(verb: Verb) -> Result<Exit, Failure> {
    match verb {
        Verb::Submit(submit) => submit::submit(&submit),
        Verb::Check(check) => check::check(&check),
        Verb::Plan(plan) => plan::plan(&plan),
        Verb::Resume(resume) => submit::resume(&resume),
        Verb::Runs(runs) => runs::runs(&runs),
        Verb::Status(status) => status::status(&status),
        Verb::Report(report) => runs::report(&report),
        Verb::Schema => print_line(
            &serde_json::to_string_pretty(&orchestrator_spec::schema())
                .expect("a schema is always valid JSON"),
        ),
        Verb::Completion { shell } => {
            let mut command = Arguments::command();
            clap_complete::generate(shell, &mut command, "orchestrator", &mut std::io::stdout());
            Ok(Exit::Complete)
        }
        Verb::Version => print_line(&format!("orchestrator {}", orchestrator_proto::BUILD)),
    }
}

/// Prints to stdout. A reader that has gone away (`| head`) is not an error.
fn print_line(text: &str) -> Result<Exit, Failure> {
    use std::io::Write as _;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::internal(anyhow::Error::new(error).context("failed to write to stdout")))
        }
        _ => Ok(Exit::Complete),
    }
}

/// Logs go to stderr: warnings by default, more with `-v`, all of it with `ORCHESTRATOR_LOG`.
fn start_logs(verbose: u8) {
    let default = match verbose {
        0 => "error",
        1 => "info",
        _ => "debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("ORCHESTRATOR_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
