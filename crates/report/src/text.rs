//! The result table of the terminal.
//!
//! Plain text without colour, so that `NO_COLOR`, a file and a terminal get the same. Names and
//! reasons that came from outside are cleared of control characters.

mod memory;

use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};

use crate::{
    report::{Report, Task},
    rows,
};

/// Problems of each kind that are listed by name; the rest is counted.
const LISTED: usize = 5;

/// Columns of a terminal that nobody asked for its width.
pub const WIDTH: u16 = 80;

/// [`render_within`] the usual [`WIDTH`].
pub fn render(report: &Report) -> String {
    render_within(report, WIDTH)
}

/// The table, one row per trial and task, at most `width` columns wide; below it samples, timing,
/// memory and what is missing (a long path or reason there is not cut). No line feed at the end.
pub fn render_within(report: &Report, width: u16) -> String {
    let mut lines = Vec::new();
    lines.push(table(report, width).trim_fmt());
    samples(&mut lines, report);
    timing(&mut lines, report);
    memory::write(&mut lines, &report.nodes, width);
    missing(&mut lines, report);
    lines.join("\n")
}

fn table(report: &Report, width: u16) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width)
        .set_header(["trial", "task", "result"]);
    for (trial, name) in report.trials.iter().zip(rows::trial_names(&report.trials)) {
        for task in &trial.tasks {
            // On a line of its own: beside the dataset it would cost the figures their width.
            let captions = task.captions.map(|choice| format!("\n({choice})"));
            table.add_row([
                name.join("\n"),
                format!("{}\n{}{}", task.task, task.dataset, captions.unwrap_or_default()),
                result(task).join("\n"),
            ]);
        }
    }
    table
}

/// The figures in a few short lines: `acc1 0.7081 acc5 0.9083`, one line per direction.
fn result(task: &Task) -> Vec<String> {
    // What a name starts with, and what the line says in its place.
    let groups = [
        ("acc", None),
        ("mean_per_class_recall", None),
        ("image_to_text_", Some("image→text")),
        ("text_to_image_", Some("text→image")),
    ];
    let mut lines = Vec::new();
    for (prefix, label) in groups {
        let figures = rows::headlines(&task.metrics).filter_map(|(name, value)| {
            let rest = name.strip_prefix(prefix)?;
            let short = if label.is_some() { rest.trim_end_matches("_rank") } else { name };
            Some(format!("{short} {value}"))
        });
        let figures: Vec<String> = figures.collect();
        if !figures.is_empty() {
            lines.push(
                label.into_iter().map(str::to_owned).chain(figures).collect::<Vec<_>>().join(" "),
            );
        }
    }
    lines
}

fn samples(lines: &mut Vec<String>, report: &Report) {
    let datasets = rows::samples_by_dataset(report).into_iter();
    let each = datasets.map(|(name, samples)| format!("{name} {}", rows::samples(samples)));
    lines.push(format!("samples: {}", each.collect::<Vec<_>>().join("; ")));
}

fn timing(lines: &mut Vec<String>, report: &Report) {
    for (trial, name) in report.trials.iter().zip(rows::trial_names(&report.trials)) {
        lines.push(format!("time: {} {}", name.join(" "), rows::timing(trial)));
    }
    lines.extend(rows::images(&report.nodes).into_iter().map(|line| format!("images: {line}")));
}

fn missing(lines: &mut Vec<String>, report: &Report) {
    if report.complete {
        return;
    }
    let mut what: Vec<String> = rows::unfinished(report).into_iter().collect();
    if !report.quarantined.is_empty() {
        what.insert(0, rows::counted(report.quarantined.len(), "sample", "quarantined"));
    }
    let why =
        if what.is_empty() { "not every sample was evaluated".to_owned() } else { what.join(", ") };
    lines.push(format!("incomplete: {why}"));
    let samples = report
        .quarantined
        .iter()
        .map(|sample| format!("{}: {}: {}", sample.dataset, sample.sample, sample.reason));
    list(lines, samples);
    let units = report.unfinished.iter().map(|unit| {
        format!("unit {} ({}): {}: {}", unit.unit, unit.what, unit.outcome.name(), unit.reason)
    });
    list(lines, units);
}

fn list(lines: &mut Vec<String>, problems: impl ExactSizeIterator<Item = String>) {
    let more = problems.len().saturating_sub(LISTED);
    for problem in problems.take(LISTED) {
        lines.push(format!("  {}", rows::printable(&problem)));
    }
    if more > 0 {
        lines.push(format!("  … and {more} more; report.json names all"));
    }
}
