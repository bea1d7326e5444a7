//! `orchestrator logs`: what happened in a run.

use anyhow::Context as _;
use orchestrator_coordinator::{Recorded, RunEvent};
use orchestrator_types::wording::steers;

use crate::{
    args,
    cluster::{self, failed},
    exit::{Exit, Failure},
    print_line,
    runs::moment,
    state::State,
};

/// Events read from an embedded store at once.
const PAGE: u32 = 1_000;

pub(crate) fn logs(arguments: &args::Logs) -> Result<Exit, Failure> {
    if let Some(target) = cluster::target(&arguments.cluster)? {
        return cluster::ask(&target, async |cluster| {
            let run = cluster.find(&arguments.run).await?;
            let mut after = 0;
            loop {
                let page = cluster.events(&run, after).await.map_err(failed)?;
                let Some(last) = page.last() else { return Ok(Exit::Complete) };
                after = last.sequence;
                print(&page, arguments.json)?;
            }
        });
    }
    let stored = State::of_user()?.find(&arguments.run)?;
    let mut after = 0;
    loop {
        let page = stored.reader.events(&stored.summary.id, after, PAGE);
        let page = page.context("failed to read the run's events")?;
        let Some(last) = page.last() else { return Ok(Exit::Complete) };
        after = last.sequence;
        print(&page, arguments.json)?;
    }
}

fn print(events: &[Recorded], as_json: bool) -> Result<(), Failure> {
    for event in events {
        if as_json {
            print_line(&serde_json::to_string(event).context("failed to encode")?)?;
        } else {
            print_line(&line(event))?;
        }
    }
    Ok(())
}

/// One event on one line, whatever is in it.
fn line(Recorded { sequence: _, at_unix_ms, event }: &Recorded) -> String {
    let told = told(event).replace(steers, "\u{fffd}");
    format!("{}  {told}", moment(*at_unix_ms))
}

fn told(event: &RunEvent) -> String {
    match event {
        RunEvent::StateChanged { state } => format!("run is {}", state.name()),
        RunEvent::UnitLeased { unit, attempt, slice, token } => {
            format!("unit {unit} leased to {slice}, attempt {attempt}, token {token}")
        }
        RunEvent::UnitCommitted { unit, slice, rows, total_ms, cached } => {
            let cached = if *cached { ", from the cache" } else { "" };
            format!("unit {unit} committed by {slice}: {rows} rows in {total_ms} ms{cached}")
        }
        RunEvent::UnitFailed { unit, attempt: 0, class, message, .. } => {
            format!("unit {unit} given up untried ({class}): {message}")
        }
        RunEvent::UnitFailed { unit, attempt, slice, class, message, last } => {
            let place = slice.as_ref().map(|slice| format!(" on {slice}")).unwrap_or_default();
            let next = if *last { "given up" } else { "will be retried" };
            format!("unit {unit} failed{place}, attempt {attempt}, {next} ({class}): {message}")
        }
        RunEvent::SampleQuarantined { dataset, sample, reason } => {
            format!("quarantined {sample} of {dataset}: {reason}")
        }
        RunEvent::WorkerLost { node, reason } => format!("worker on {node} lost: {reason}"),
        RunEvent::Divergence { unit, token, committed, late } => format!(
            "unit {unit}: a late result, token {token}, has the digest {late}, and {committed} \
             counts: some hardware or build computes something else"
        ),
        RunEvent::LateResult { unit, token } => {
            format!("late result of unit {unit} refused, token {token}")
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_run::RunState;
    use orchestrator_types::{FailureClass, FencingToken, UnitId};

    use super::*;

    #[test]
    fn every_event_is_one_line() {
        let (unit, token) = (UnitId(3), FencingToken(7));
        let failed = |attempt, slice, last| RunEvent::UnitFailed {
            unit,
            attempt,
            slice,
            class: FailureClass::Crash,
            message: "two\nlines".to_owned(),
            last,
        };
        let slice = || "a.0".parse().unwrap();
        let events = [
            RunEvent::StateChanged { state: RunState::Running },
            RunEvent::UnitLeased { unit, attempt: 1, slice: slice(), token },
            RunEvent::UnitCommitted { unit, slice: slice(), rows: 9, total_ms: 20, cached: true },
            failed(2, Some(slice()), false),
            failed(0, None, true),
            RunEvent::SampleQuarantined {
                dataset: "d".parse().unwrap(),
                sample: orchestrator_types::SampleId("x.jpg".to_owned()),
                reason: "cut".to_owned(),
            },
            RunEvent::WorkerLost { node: "a".parse().unwrap(), reason: "silent".to_owned() },
            RunEvent::Divergence {
                unit,
                token,
                committed: orchestrator_types::Digest::of(b"a"),
                late: orchestrator_types::Digest::of(b"b"),
            },
            RunEvent::LateResult { unit, token },
        ];
        let shown = events.map(|event| told(&event).replace(steers, "\u{fffd}"));
        insta::assert_snapshot!(shown.join("\n"));
    }
}
