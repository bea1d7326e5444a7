//! `orchestrator runs` and `orchestrator report`.

use std::{fs, io};

use anyhow::{Context as _, anyhow};
use comfy_table::{Table, presets};
use jiff::{Timestamp, tz::TimeZone};
use orchestrator_report::{json, text};
use serde::Serialize;

use crate::{
    args,
    exit::{Exit, Failure},
    print_line, say,
    state::{State, Stored},
};

#[derive(Serialize)]
struct RunLine {
    run: String,
    name: String,
    state: &'static str,
    submitted: String,
    units: u32,
    committed: u32,
}

impl RunLine {
    fn of(stored: &Stored) -> Self {
        let summary = &stored.summary;
        Self {
            run: summary.id.to_string(),
            name: summary.name.clone(),
            state: stored.state_word(),
            submitted: moment(summary.created_unix_ms),
            units: summary.units,
            committed: summary.committed,
        }
    }
}

/// Local date and time, to the second.
pub(crate) fn moment(unix_ms: i64) -> String {
    let Ok(time) = Timestamp::from_millisecond(unix_ms) else { return unix_ms.to_string() };
    time.to_zoned_datetime(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

pub(crate) fn runs(arguments: &args::Runs) -> Result<Exit, Failure> {
    let stored = State::of_user()?.runs()?;
    let runs: Vec<RunLine> = stored.iter().map(RunLine::of).collect();
    if arguments.json {
        let document = serde_json::json!({"schema": "orchestrator.runs/1", "runs": runs});
        return print_line(&format!("{document:#}"));
    }
    if runs.is_empty() {
        say("there is no run yet; start one with `orchestrator submit eval.yaml`");
        return Ok(Exit::Complete);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["run", "name", "state", "submitted", "units"]);
    for run in runs {
        let units = format!("{}/{}", run.committed, run.units);
        table.add_row([run.run, run.name, run.state.to_owned(), run.submitted, units]);
    }
    print_line(&table.trim_fmt())
}

pub(crate) fn report(arguments: &args::Report) -> Result<Exit, Failure> {
    let state = State::of_user()?;
    let stored = state.find(&arguments.run)?;
    let (run, word) = (&stored.summary.id, stored.state_word());
    let file = orchestrator_coordinator::run_folder(&state.of_run(run), run).join("report.json");
    let document = fs::read_to_string(&file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow!(
            "run {run} is {word} and has no report yet; `orchestrator resume {run}` goes on with it"
        ),
        _ => anyhow::Error::new(error).context(format!("failed to read {}", file.display())),
    })?;
    if arguments.json {
        return print_line(document.trim_end());
    }
    let report = json::read(&document)
        .with_context(|| format!("{} is no report of this version", file.display()))?;
    print_line(text::render(&report).trim_end())
}
