//! Progress on stderr: a bar per component on a terminal, a line now and then elsewhere.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use orchestrator_types::Component;

/// Without a terminal, time between two lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What the user sees of a run's way.
pub(crate) struct Display {
    bars: Option<MultiProgress>,
    components: BTreeMap<Component, Row>,
    last_line: Instant,
}

struct Row {
    bar: ProgressBar,
    done: u64,
    total: u64,
}

impl Display {
    /// Bars if stderr is a terminal.
    pub(crate) fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        let bars = terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        Self { bars, components: BTreeMap::new(), last_line: Instant::now() }
    }

    /// `done` of `total` rows of `component` are there.
    pub(crate) fn update(&mut self, component: Component, done: u64, total: u64) {
        let bars = self.bars.as_ref();
        let row = self.components.entry(component).or_insert_with(|| Row {
            bar: bars.map_or_else(ProgressBar::hidden, |bars| bars.add(bar(component, total))),
            done,
            total,
        });
        (row.done, row.total) = (done, total);
        row.bar.set_position(done);
        if self.bars.is_none() && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let parts = self.components.iter().map(|(component, row)| {
                format!("{component} {}/{} {}", row.done, row.total, unit(*component))
            });
            eprintln!("progress: {}", parts.collect::<Vec<_>>().join(", "));
        }
    }

    /// A line that stays, above the bars.
    pub(crate) fn say(&self, line: &str) {
        match &self.bars {
            // A terminal that is gone is no reason to stop a run.
            Some(bars) => bars.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// Removes the bars.
    pub(crate) fn finish(self) {
        for row in self.components.values() {
            row.bar.finish_and_clear();
        }
    }
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
        "{{prefix:>7}} {{bar:32}} {{human_pos}}/{{human_len}} {}  {{per_sec}}  {{eta}} left",
        unit(component)
    );
    let style = ProgressStyle::with_template(&template).expect("the template is well-formed");
    let rate = |state: &indicatif::ProgressState, out: &mut dyn std::fmt::Write| {
        write!(out, "{:.0}/s", state.per_sec()).expect("a bar is written into a string");
    };
    ProgressBar::new(total)
        .with_style(style.with_key("per_sec", rate))
        .with_prefix(component.name())
}
