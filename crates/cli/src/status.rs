//! `orchestrator status`.

use std::collections::BTreeMap;

use anyhow::Context as _;
use orchestrator_coordinator::{Documents, UnitRow, UnitStage};
use orchestrator_types::Component;
use serde::Serialize;

use crate::{
    args,
    exit::{Exit, Failure},
    print_line,
    runs::moment,
    state::{State, Stored},
};

/// What `--json` prints.
#[derive(Serialize)]
struct Status {
    schema: &'static str,
    run: String,
    name: String,
    state: &'static str,
    submitted: String,
    components: BTreeMap<Component, Count>,
    failures: Vec<Failed>,
    quarantined: Vec<Quarantined>,
}

#[derive(Default, Serialize)]
struct Count {
    units: u32,
    committed: u32,
    rows: u64,
    committed_rows: u64,
}

#[derive(Serialize)]
struct Failed {
    unit: u32,
    class: &'static str,
    message: String,
}

#[derive(Serialize)]
struct Quarantined {
    sample: String,
    reason: String,
}

pub(crate) fn status(arguments: &args::Status) -> Result<Exit, Failure> {
    let stored = State::of_user()?.find(&arguments.run)?;
    let run = &stored.summary.id;
    let documents = stored.reader.documents(run).context("failed to read the run's plan")?;
    let documents = documents.context("the run's plan is missing from its store")?;
    let units = stored.reader.units(run).context("failed to read the run's units")?;
    let status = collect(&stored, &documents, &units);
    if arguments.json {
        let json = serde_json::to_string_pretty(&status).context("failed to encode")?;
        return print_line(&json);
    }
    print_line(&render(&status))
}

fn collect(stored: &Stored, documents: &Documents, units: &[UnitRow]) -> Status {
    let mut components: BTreeMap<Component, Count> = BTreeMap::new();
    for unit in &documents.plan.units {
        let count = components.entry(unit.component()).or_default();
        count.units += 1;
        count.rows += u64::from(unit.rows);
    }
    let (mut failures, mut quarantined) = (Vec::new(), BTreeMap::new());
    for row in units {
        let Some(unit) = documents.plan.unit(row.unit) else { continue };
        if row.stage == UnitStage::Committed {
            let count = components.entry(unit.component()).or_default();
            count.committed += 1;
            count.committed_rows += u64::from(unit.rows);
        }
        if let (UnitStage::Failed, Some((class, message))) = (row.stage, &row.failure) {
            let (class, message) = (class.name(), message.clone());
            failures.push(Failed { unit: row.unit.0, class, message });
        }
        for sample in row.result.iter().flat_map(|result| &result.quarantined) {
            quarantined.insert(sample.sample.to_string(), sample.reason.clone());
        }
    }
    Status {
        schema: "orchestrator.status/1",
        run: stored.summary.id.to_string(),
        name: stored.summary.name.clone(),
        state: stored.state_word(),
        submitted: moment(stored.summary.created_unix_ms),
        components,
        failures,
        quarantined: quarantined
            .into_iter()
            .map(|(sample, reason)| Quarantined { sample, reason })
            .collect(),
    }
}

fn render(status: &Status) -> String {
    let mut lines = vec![
        format!("run {} ({})", status.run, status.name),
        format!("{}, submitted {}", status.state, status.submitted),
    ];
    for (component, count) in &status.components {
        let Count { units, committed, rows, committed_rows } = count;
        lines.push(format!(
            "  {:<7}{committed}/{units} units, {committed_rows}/{rows} rows",
            component.name()
        ));
    }
    for Failed { unit, class, message } in &status.failures {
        lines.push(format!("failed: unit {unit} ({class}): {message}"));
    }
    for Quarantined { sample, reason } in &status.quarantined {
        lines.push(format!("quarantined: {sample}: {reason}"));
    }
    lines.extend(advice(status));
    lines.join("\n")
}

/// What helps a run that is not complete. Going on with it does not read bad samples again.
fn advice(status: &Status) -> Vec<String> {
    let mut advice = Vec::new();
    if !status.quarantined.is_empty() {
        advice.push("mend or remove the quarantined files, then submit again".to_owned());
    }
    let count = |count: fn(&Count) -> u32| status.components.values().map(count).sum::<u32>();
    let unfinished = count(|all| all.committed) < count(|all| all.units);
    if unfinished && matches!(status.state, "interrupted" | "cancelled" | "incomplete") {
        advice.push(format!("go on with: orchestrator resume {}", status.run));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_what_is_missing() {
        let advice = |state, committed, bad: bool| {
            let count = Count { units: 2, committed, rows: 2, committed_rows: 0 };
            let sample = Quarantined { sample: "a.jpg".to_owned(), reason: "cut".to_owned() };
            advice(&Status {
                schema: "orchestrator.status/1",
                run: "r".to_owned(),
                name: String::new(),
                state,
                submitted: String::new(),
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
