//! `report.md`: the report to read, to mail and to put beside a pull request.

mod memory;

use crate::{
    report::{Report, Task, Trial},
    rows,
};

/// Problems of each kind that are listed; the rest is counted.
const LISTED: usize = 50;

/// The report as Markdown (tables as GitHub reads them).
pub fn write(report: &Report) -> String {
    let mut lines = Vec::new();
    header(&mut lines, report);
    tasks(&mut lines, report);
    problems(&mut lines, report);
    timing(&mut lines, report);
    memory::write(&mut lines, &report.nodes);
    provenance(&mut lines, report);
    lines.push(String::new());
    lines.join("\n")
}

fn header(lines: &mut Vec<String>, report: &Report) {
    lines.push(format!("# {}\n", escaped(&report.name)));
    lines.push(format!("Run `{}`.", report.run));
    let quarantined = match report.quarantined.len() {
        0 => None,
        some => Some(rows::counted(some, "sample", "quarantined")),
    };
    let problems: Vec<String> = quarantined.into_iter().chain(rows::unfinished(report)).collect();
    lines.push(match (report.complete, problems.is_empty()) {
        (true, _) => "Complete: every sample and every unit has its result.".to_owned(),
        (false, true) => "**Incomplete**: not every sample was evaluated.".to_owned(),
        (false, false) => format!("**Incomplete**: {}.", problems.join(", ")),
    });
}

/// One table per task of the evaluation, one row per trial.
fn tasks(lines: &mut Vec<String>, report: &Report) {
    let names = rows::trial_names(&report.trials);
    let most = report.trials.iter().map(|trial| trial.tasks.len()).max().unwrap_or(0);
    for index in 0..most {
        let rows: Vec<(String, &Task)> = report
            .trials
            .iter()
            .zip(&names)
            .filter_map(|(trial, name)| Some((name.join(" "), trial.tasks.get(index)?)))
            .collect();
        let Some((_, first)) = rows.first() else { continue };
        let captions = first.captions.map(|choice| format!(", {choice} captions"));
        let captions = captions.unwrap_or_default();
        lines.push(format!("\n## {} on {}{captions}\n", first.task, first.dataset));
        let figures = rows::headlines(&first.metrics).map(|(name, _)| name.to_owned());
        row(lines, ["trial".to_owned()].into_iter().chain(figures).chain(["samples".to_owned()]));
        let numbers = rows::headlines(&first.metrics).map(|_| "---:".to_owned());
        row(lines, ["---".to_owned()].into_iter().chain(numbers).chain(["---".to_owned()]));
        for (name, task) in &rows {
            let figures = rows::headlines(&task.metrics).map(|(_, value)| value);
            let samples = rows::samples(task.samples);
            row(lines, [escaped(name)].into_iter().chain(figures).chain([samples]));
        }
    }
}

fn problems(lines: &mut Vec<String>, report: &Report) {
    let samples = report.quarantined.iter().map(|sample| {
        vec![sample.dataset.to_string(), sample.sample.to_string(), sample.reason.clone()]
    });
    list(lines, "Quarantined samples", &["dataset", "sample", "reason"], samples);
    let units = report.unfinished.iter().map(|unit| {
        let class = unit.class.map_or("–", |class| class.name());
        let outcome = unit.outcome.name().to_owned();
        vec![
            unit.unit.to_string(),
            unit.what.clone(),
            outcome,
            class.to_owned(),
            unit.reason.clone(),
        ]
    });
    list(lines, "Unfinished units", &["unit", "work", "outcome", "class", "reason"], units);
}

fn list(
    lines: &mut Vec<String>,
    title: &str,
    columns: &[&str],
    problems: impl ExactSizeIterator<Item = Vec<String>>,
) {
    let count = problems.len();
    if count == 0 {
        return;
    }
    lines.push(format!("\n## {title} ({count})\n"));
    row(lines, columns.iter().map(|&column| column.to_owned()));
    row(lines, columns.iter().map(|_| "---".to_owned()));
    for problem in problems.take(LISTED) {
        row(lines, problem.iter().map(|cell| escaped(cell)));
    }
    if count > LISTED {
        lines.push(format!("\n… and {} more; `report.json` names all.", count - LISTED));
    }
}

fn timing(lines: &mut Vec<String>, report: &Report) {
    lines.push("\n## Time\n".to_owned());
    row(lines, ["trial", "batch (vision / text)", "time"].map(str::to_owned));
    row(lines, ["---", "---", "---"].map(str::to_owned));
    for (trial, name) in report.trials.iter().zip(rows::trial_names(&report.trials)) {
        let Trial { batch, .. } = trial;
        let batch = format!("{} / {}", batch.vision, batch.text);
        row(lines, [escaped(&name.join(" ")), batch, rows::timing(trial)]);
    }
    let images = rows::images(&report.nodes);
    if !images.is_empty() {
        lines.push("\n## Images\n".to_owned());
        lines.extend(images.iter().map(|line| format!("- {}", escaped(line))));
    }
}

fn provenance(lines: &mut Vec<String>, report: &Report) {
    let provenance = &report.provenance;
    lines.push("\n## Provenance\n".to_owned());
    row(lines, ["what", "identity"].map(str::to_owned));
    row(lines, ["---", "---"].map(str::to_owned));
    for (path, model) in &provenance.models {
        let path = escaped(path);
        row(lines, [format!("weights of {path}"), format!("`{}`", model.weights_blake3)]);
        row(lines, [format!("tokenizer of {path}"), format!("`{}`", model.tokenizer_blake3)]);
        row(lines, [format!("preprocessing of {path}"), escaped(&model.preprocess)]);
    }
    for (name, dataset) in &provenance.datasets {
        row(lines, [format!("dataset {name}"), format!("`{}`", dataset.dataset_blake3)]);
        if let Some(templates) = dataset.templates_blake3 {
            row(lines, [format!("labels and templates of {name}"), format!("`{templates}`")]);
        }
    }
    row(lines, ["orchestrator".to_owned(), escaped(&provenance.orchestrator)]);
    let or_dash = |version: &Option<String>| version.as_deref().map_or("–".to_owned(), escaped);
    row(lines, ["libtorch".to_owned(), or_dash(&provenance.libtorch)]);
    row(lines, ["driver".to_owned(), or_dash(&provenance.driver)]);
}

fn row(lines: &mut Vec<String>, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    lines.push(format!("| {} |", cells.join(" | ")));
}

/// Text of others as text: nothing in it ends the cell, opens a tag or a link, or sets a style.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in rows::printable(text).chars() {
        if matches!(c, '|' | '<' | '>' | '[' | ']' | '*' | '`' | '\\' | '&') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
