//! A diagnosis for people: a line for each finding, and what can be done at the end.

use std::io::{IsTerminal as _, stdout};

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};

use super::finding::{Finding, Level, Role};

/// How a diagnosis looks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// Folded to the terminal's width.
    folded: bool,
    coloured: bool,
}

impl Look {
    /// Coloured only where a person looks who has not declined it.
    pub(crate) fn of_stdout() -> Self {
        let folded = stdout().is_terminal();
        let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { folded, coloured: folded && !declined }
    }
}

/// As it is printed.
pub(crate) fn render(findings: &[Finding], possible: &[Role], look: Look) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if look.folded {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    for finding in findings {
        let Finding { level, topic, text, fix, .. } = finding;
        let fix = fix.as_ref().map(|fix| format!("\n→ {fix}")).unwrap_or_default();
        let text =
            format!("{text}{fix}").replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
        table.add_row([mark(*level, look.coloured), Cell::new(topic), Cell::new(text)]);
    }
    format!("{}\n\n{}", table.trim_fmt(), verdict(findings, possible))
}

fn mark(level: Level, coloured: bool) -> Cell {
    let cell = Cell::new(level.name());
    if !coloured {
        return cell;
    }
    match level {
        Level::Ok => cell.fg(Color::Green),
        Level::Note => cell.fg(Color::Yellow),
        Level::Problem => cell.fg(Color::Red).add_attribute(Attribute::Bold),
    }
}

/// What this machine is good for.
fn verdict(findings: &[Finding], possible: &[Role]) -> String {
    let verbs = |roles: &[Role]| {
        let verbs: Vec<String> = roles.iter().map(|role| format!("`{}`", role.verb())).collect();
        verbs.join(", ")
    };
    let not: Vec<Role> = Role::ALL.into_iter().filter(|role| !possible.contains(role)).collect();
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, notes) = (count(Level::Problem), count(Level::Note));
    let can = match (possible, not.as_slice()) {
        (_, []) => format!("works here: {}", verbs(possible)),
        ([], _) => "nothing works here".to_owned(),
        (possible, not) => format!("works here: {}; does not: {}", verbs(possible), verbs(not)),
    };
    format!("{can} ({} and {})", counted(problems, "problem"), counted(notes, "note"))
}

fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}
