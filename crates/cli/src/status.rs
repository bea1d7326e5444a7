//! `orchestrator status`.

use anyhow::Context as _;
use orchestrator_coordinator::{AttemptView, Count, FailedUnit, RunStatus, SetAside};
use orchestrator_types::wording::steers;
use serde::Serialize;

use crate::{
    args,
    cluster::{self, failed},
    exit::{Exit, Failure},
    print_line,
    runs::moment,
    state::{State, Stored},
};

/// What `--json` prints.
#[derive(Serialize)]
struct Status {
    schema: &'static str,
    submitted: String,
    #[serde(flatten)]
    run: RunStatus,
}

pub(crate) fn status(arguments: &args::Status) -> Result<Exit, Failure> {
    let status = match cluster::target(&arguments.cluster)? {
        Some(target) => cluster::ask(&target, async |cluster| {
            let run = cluster.find(&arguments.run).await?;
            cluster.status(&run).await.map_err(failed)
        })?,
        None => embedded(&State::of_user()?.find(&arguments.run)?)?,
    };
    if arguments.json {
        let submitted = moment(status.line.created_unix_ms);
        let status = Status { schema: "orchestrator.status/1", submitted, run: status };
        let json = serde_json::to_string_pretty(&status).context("failed to encode")?;
        return print_line(&json);
    }
    print_line(&render(&status))
}

fn embedded(stored: &Stored) -> anyhow::Result<RunStatus> {
    let status = RunStatus::read(&stored.reader, &stored.summary.id, stored.reader.is_live());
    status.context("failed to read the run")?.context("the run's plan is missing from its store")
}

fn render(status: &RunStatus) -> String {
    let line = &status.line;
    let plain = |text: &str| text.replace(steers, "\u{fffd}");
    let mut lines = vec![
        format!("run {} ({})", line.run, plain(&line.name)),
        format!("{}, submitted {}", line.state, moment(line.created_unix_ms)),
    ];
    for (component, count) in &status.components {
        let Count { units, committed, rows, committed_rows } = count;
        lines.push(format!(
            "  {:<7}{committed}/{units} units, {committed_rows}/{rows} rows",
            component.name()
        ));
    }
    for attempt in &status.attempts {
        let AttemptView { unit, component, slice, attempt, done, rows, .. } = attempt;
        lines.push(format!(
            "in work: unit {unit} ({component}) on {slice}, attempt {attempt}: {done}/{rows} rows"
        ));
    }
    lines.extend(status.waits.iter().map(|why| format!("waits: {why}")));
    for FailedUnit { unit, class, message } in &status.failures {
        lines.push(format!("failed: unit {unit} ({class}): {}", plain(message)));
    }
    for SetAside { sample, reason } in &status.quarantined {
        lines.push(format!("quarantined: {}: {}", plain(sample), plain(reason)));
    }
    lines.extend(advice(status));
    lines.join("\n")
}

/// What helps a run that is not complete. Going on with it does not read bad samples again.
fn advice(status: &RunStatus) -> Vec<String> {
    let mut advice = Vec::new();
    if !status.quarantined.is_empty() {
        advice.push("mend or remove the quarantined files, then submit again".to_owned());
    }
    let count = |count: fn(&Count) -> u32| status.components.values().map(count).sum::<u32>();
    let unfinished = count(|all| all.committed) < count(|all| all.units);
    if unfinished
        && matches!(status.line.state.as_str(), "interrupted" | "cancelled" | "incomplete")
    {
        advice.push(format!("go on with: orchestrator resume {}", status.line.run));
    }
    advice
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use orchestrator_coordinator::RunLine;
    use orchestrator_types::Component;

    use super::*;

    fn line(state: &str) -> RunLine {
        RunLine {
            run: "r".parse().unwrap(),
            name: "title".to_owned(),
            state: state.to_owned(),
            created_unix_ms: 0,
            ended_unix_ms: None,
            units: 2,
            committed: 1,
        }
    }

    #[test]
    fn a_run_at_work_tells_who_works_on_what() {
        let attempt = AttemptView {
            run: "r".parse().unwrap(),
            unit: orchestrator_types::UnitId(3),
            component: Component::Vision,
            attempt: 2,
            token: orchestrator_types::FencingToken(7),
            slice: "a.0".parse().unwrap(),
            done: 64,
            rows: 256,
        };
        let failed = FailedUnit {
            unit: orchestrator_types::UnitId(1),
            class: orchestrator_types::FailureClass::Invalid,
            message: "bad\u{1b}[31m".to_owned(),
        };
        let count = Count { units: 4, committed: 1, rows: 1000, committed_rows: 256 };
        let status = RunStatus {
            line: RunLine { name: "title\nof it".to_owned(), ..line("running") },
            begun: 1,
            components: BTreeMap::from([(Component::Vision, count)]),
            attempts: vec![attempt],
            waits: Some("no slice can hold the text tower".to_owned()),
            failures: vec![failed],
            quarantined: vec![SetAside { sample: "x.jpg".to_owned(), reason: "cut".to_owned() }],
        };
        let told = render(&status).replace(&moment(0), "MOMENT");
        insta::assert_snapshot!(told);
    }

    #[test]
    fn advice_fits_what_is_missing() {
        let advice = |state, committed, bad: bool| {
            let count = Count { units: 2, committed, rows: 2, committed_rows: 0 };
            let sample = SetAside { sample: "a.jpg".to_owned(), reason: "cut".to_owned() };
            advice(&RunStatus {
                line: line(state),
                begun: 1,
                attempts: Vec::new(),
                waits: None,
                components: BTreeMap::from([(Component::Vision, count)]),
                failures: Vec::new(),
                quarantined: bad.then_some(sample).into_iter().collect(),
            })
            .join("; ")
        };
        let (mend, resume) = (
            "mend or remove the quarantined files, then submit again",
            "go on with: orchestrator resume r",
        );
        assert_eq!(advice("incomplete", 2, true), mend);
        assert_eq!(advice("incomplete", 1, false), resume);
        assert_eq!(advice("interrupted", 1, true), format!("{mend}; {resume}"));
        assert_eq!(advice("running", 1, false), "");
        assert_eq!(advice("complete", 2, false), "");
    }
}
