//! Progress on stderr: a bar per component on a terminal, a line now and then elsewhere. Both show
//! the rate and the remaining time that [`crate::pace`] works out.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use orchestrator_types::Component;

use crate::{
    pace::{Pace, describe},
    say,
};

/// Without a terminal, time between two lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What the user sees of a run's way.
pub(crate) struct Display {
    bars: Option<MultiProgress>,
    components: BTreeMap<Component, Row>,
    started: Instant,
    last_line: Instant,
}

struct Row {
    bar: ProgressBar,
    pace: Pace,
    total: u64,
}

impl Display {
    /// Bars if stderr is a terminal.
    pub(crate) fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        let bars = terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        let started = Instant::now();
        Self { bars, components: BTreeMap::new(), started, last_line: started }
    }

    /// `done` of `total` rows of `component` are there.
    pub(crate) fn update(&mut self, component: Component, done: u64, total: u64) {
        let (now, bars) = (self.started.elapsed(), self.bars.as_ref());
        let row = self.components.entry(component).or_insert_with(|| Row {
            bar: bars.map_or_else(ProgressBar::hidden, |bars| bars.add(bar(component, total))),
            pace: Pace::new(now, done),
            total,
        });
        row.total = total;
        row.pace.look(now, done);
        row.bar.set_message(describe(&row.pace, now, total));
        row.bar.set_position(row.pace.done());
        if self.bars.is_none() && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            say(line(&self.components, now));
        }
    }

    /// A line that stays, above the bars. What it repeats of others may have lines of its own: they
    /// are indented, so that none passes for ours.
    pub(crate) fn say(&self, line: &str) {
        let line = &line.replace('\n', "\n    ");
        match &self.bars {
            // A terminal that is gone is no reason to stop a run.
            Some(bars) => bars.suspend(|| say(line)),
            None => say(line),
        }
    }

    /// Removes the bars.
    pub(crate) fn finish(self) {
        for row in self.components.values() {
            row.bar.finish_and_clear();
        }
    }
}

/// `progress: text 40/40 texts; vision 1280/3186 images, 176/s, 11 s left`
fn line(components: &BTreeMap<Component, Row>, now: Duration) -> String {
    let parts = components.iter().map(|(component, Row { pace, total, .. })| {
        let far = format!("{component} {}/{total} {}", pace.done(), unit(*component));
        match describe(pace, now, *total) {
            pace if pace.is_empty() => far,
            pace => format!("{far}, {pace}"),
        }
    });
    format!("progress: {}", parts.collect::<Vec<_>>().join("; "))
}

const fn unit(component: Component) -> &'static str {
    match component {
        Component::Text => "texts",
        Component::Vision => "images",
        Component::Score => "queries",
    }
}

fn bar(component: Component, total: u64) -> ProgressBar {
    let template = format!(
        "{{prefix:>7}} {{bar:32}} {{human_pos}}/{{human_len}} {}  {{msg}}",
        unit(component)
    );
    let style = ProgressStyle::with_template(&template).expect("the template is well-formed");
    ProgressBar::new(total).with_style(style).with_prefix(component.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_rate_and_remaining_time() {
        let row = |start, done, total| {
            let mut pace = Pace::new(Duration::ZERO, start);
            pace.look(Duration::from_secs(5), done);
            Row { bar: ProgressBar::hidden(), pace, total }
        };
        let rows = BTreeMap::from([
            (Component::Text, row(40, 40, 40)),
            (Component::Vision, row(400, 1280, 3186)),
        ]);
        assert_eq!(
            line(&rows, Duration::from_secs(5)),
            "progress: text 40/40 texts; vision 1280/3186 images, 176/s, 10 s left"
        );
    }
}
