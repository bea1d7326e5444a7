//! `orchestrator runs` and `orchestrator report`.

use std::{fs, io};

use anyhow::{Context as _, anyhow};
use comfy_table::{Table, presets};
use jiff::{Timestamp, tz::TimeZone};
use orchestrator_coordinator::RunLine;
use orchestrator_report::{json, text};
use orchestrator_types::wording::steers;
use serde::Serialize;

use crate::{
    args,
    cluster::{self, CallError, failed},
    exit::{Exit, Failure},
    print_line, say,
    state::{State, Stored},
};

/// One run of what `--json` prints.
#[derive(Serialize)]
struct Shown {
    submitted: String,
    #[serde(flatten)]
    line: RunLine,
}

/// Local date and time, to the second.
pub(crate) fn moment(unix_ms: i64) -> String {
    let Ok(time) = Timestamp::from_millisecond(unix_ms) else { return unix_ms.to_string() };
    time.to_zoned_datetime(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

pub(crate) fn runs(arguments: &args::Runs) -> Result<Exit, Failure> {
    let lines = match cluster::target(&arguments.cluster)? {
        Some(target) => {
            cluster::ask(&target, async |cluster| cluster.runs().await.map_err(failed))?
        }
        None => State::of_user()?.runs()?.iter().map(Stored::line).collect(),
    };
    let shown = |line: RunLine| Shown { submitted: moment(line.created_unix_ms), line };
    let runs: Vec<Shown> = lines.into_iter().map(shown).collect();
    if arguments.json {
        let document = serde_json::json!({"schema": "orchestrator.runs/1", "runs": runs});
        return print_line(&format!("{document:#}"));
    }
    if runs.is_empty() {
        say("there is no run yet; start one with `orchestrator submit eval.yaml`");
        return Ok(Exit::Complete);
    }
    print_line(&render(runs))
}

fn render(runs: Vec<Shown>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["run", "name", "state", "submitted", "units"]);
    for Shown { submitted, line } in runs {
        let units = format!("{}/{}", line.committed, line.units);
        let name = line.name.replace(steers, "\u{fffd}");
        table.add_row([line.run.to_string(), name, line.state, submitted, units]);
    }
    table.trim_fmt()
}

pub(crate) fn report(arguments: &args::Report) -> Result<Exit, Failure> {
    let document = if let Some(target) = cluster::target(&arguments.cluster)? {
        cluster::ask(&target, async |cluster| {
            let run = cluster.find(&arguments.run).await?;
            let report = cluster::report(&cluster, &run).await;
            report.map_err(|error| match error.downcast::<CallError>() {
                Ok(error) => failed(error),
                Err(error) => Failure::internal(error),
            })
        })?
    } else {
        let state = State::of_user()?;
        stored_report(&state, &state.find(&arguments.run)?)?
    };
    if arguments.json {
        return print_line(document.trim_end());
    }
    let report = json::read(&document).context("this is no report of this version")?;
    print_line(text::render(&report).trim_end())
}

/// `report.json` of an embedded run.
pub(crate) fn stored_report(state: &State, stored: &Stored) -> anyhow::Result<String> {
    let (run, word) = (&stored.summary.id, stored.state_word());
    let file = orchestrator_coordinator::run_folder(&state.of_run(run), run).join("report.json");
    fs::read_to_string(&file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow!(
            "run {run} is {word} and has no report yet; `orchestrator resume {run}` goes on with it"
        ),
        _ => anyhow::Error::new(error).context(format!("failed to read {}", file.display())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_one_line_each() {
        let line = |run: &str, state: &str, name: &str| Shown {
            submitted: "2026-11-30 14:00:00".to_owned(),
            line: RunLine {
                run: run.parse().unwrap(),
                name: name.to_owned(),
                state: state.to_owned(),
                created_unix_ms: 0,
                ended_unix_ms: None,
                units: 40,
                committed: 7,
            },
        };
        let runs = vec![line("01k0", "complete", "tiny-clip"), line("01k1", "running", "a\nb")];
        insta::assert_snapshot!(render(runs));
    }
}
