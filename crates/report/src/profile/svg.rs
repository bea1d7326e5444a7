//! The profile as a picture: live bytes over one forward pass, a step at each allocation.
//!
//! Colour says which part of the tower allocated; neighbouring blocks differ in strength, so that
//! one sees where the next begins. Everything is drawn in fixed places, so that equal profiles give
//! equal pictures.

use std::fmt::Write as _;

use orchestrator_ledger::{ComponentProfile, Profile, TimelinePoint};
use orchestrator_types::ByteCount;

use super::{
    axis::{byte_ticks, time_ticks},
    error_percent, title,
};
use crate::rows::{self, printable};

const WIDTH: f64 = 1000.0;
/// Height of one component's picture.
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 976.0;
const TOP: f64 = 88.0;
const BOTTOM: f64 = 372.0;
/// The quota is drawn where it lies at most this many times above the peak.
const REACH: f64 = 2.0;
/// Room above the highest thing drawn.
const HEADROOM: f64 = 1.08;
/// Parts of a tower with a colour of their own; further ones share the last.
const COLOURS: usize = 5;

const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#1b1f24}
.title{font-size:16px;font-weight:600}.quiet{fill:#57606a}
.back{fill:#ffffff}.grid{stroke:#d0d7de;stroke-width:1}.edge{stroke:#57606a;stroke-width:1}
.top{fill:none;stroke:#1b1f24;stroke-width:1;stroke-linejoin:round}
.quota{stroke:#b42318;stroke-width:1.5;stroke-dasharray:6 4}.over{fill:#b42318}
.peak{fill:#1b1f24;stroke:#ffffff;stroke-width:2}
.c0{fill:#d97706}.c1{fill:#2563eb}.c2{fill:#059669}.c3{fill:#9333ea}.c4{fill:#8b949e}
.odd{fill-opacity:.55}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9aa4af}.back{fill:#0d1117}
.grid{stroke:#30363d}.edge{stroke:#9aa4af}.top{stroke:#e6edf3}.quota{stroke:#ff7b72}
.over{fill:#ff7b72}.peak{fill:#e6edf3;stroke:#0d1117}
.c0{fill:#f59e0b}.c1{fill:#58a6ff}.c2{fill:#3fb950}.c3{fill:#bc8cff}.c4{fill:#6e7681}}";

pub(super) fn render(profile: &Profile) -> String {
    let height = HEIGHT * profile.components.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{}\">\n<style>{STYLE}\
         </style>\n<rect class=\"back\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        escaped(&format!("live bytes over time, {}", profile.name)),
    );
    if profile.components.is_empty() {
        svg.push_str("<text x=\"92\" y=\"40\">nothing was profiled</text>\n");
    }
    for (index, component) in profile.components.iter().enumerate() {
        writeln!(svg, "<g transform=\"translate(0 {})\">", HEIGHT * index as f64).expect(TO_TEXT);
        svg.push_str(&Picture::of(component).draw(component));
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

const TO_TEXT: &str = "writing to text does not fail";

/// Where values lie.
struct Picture<'a> {
    points: &'a [TimelinePoint],
    /// Microseconds at the right edge.
    end: u64,
    /// Bytes at the upper edge.
    largest: u64,
    /// What the weights leave of the quota, if it is within reach.
    quota: Option<u64>,
    /// The parts of the tower, in order of appearance.
    groups: Vec<&'a str>,
}

impl<'a> Picture<'a> {
    fn of(profile: &'a ComponentProfile) -> Self {
        let points = &profile.timeline;
        let peak = points.iter().map(|point| point.live_bytes.as_u64()).max().unwrap_or(0);
        let room = profile.quota_bytes.as_u64().saturating_sub(profile.weights_bytes.as_u64());
        let quota = Some(room).filter(|room| *room as f64 <= peak as f64 * REACH);
        let mut groups: Vec<&str> = Vec::new();
        for point in points {
            let (group, _) = group_of(&point.module);
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let highest = peak.max(quota.unwrap_or(0)).max(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive amount; where it ends on the axis is not exact"
        )]
        let largest = (highest as f64 * HEADROOM) as u64;
        Self {
            points,
            end: points.iter().map(|point| point.at_us).max().unwrap_or(0).max(1),
            largest: largest.max(1),
            quota,
            groups,
        }
    }

    fn x(&self, at_us: f64) -> f64 {
        LEFT + at_us / self.end as f64 * (RIGHT - LEFT)
    }

    fn y(&self, bytes: f64) -> f64 {
        BOTTOM - bytes / self.largest as f64 * (BOTTOM - TOP)
    }

    fn draw(&self, profile: &ComponentProfile) -> String {
        let mut out = String::new();
        self.heading(&mut out, profile);
        self.axes(&mut out);
        self.areas(&mut out);
        self.outline(&mut out);
        self.quota_line(&mut out);
        self.peak(&mut out);
        out
    }

    fn heading(&self, out: &mut String, profile: &ComponentProfile) {
        let ComponentProfile { weights_bytes, peak_bytes, predicted_bytes, quota_bytes, .. } =
            profile;
        let error = rows::error(error_percent(*predicted_bytes, *peak_bytes));
        text(out, (LEFT, 30.0), "title", &title(profile));
        let line = format!(
            "weights {weights_bytes}, peak {peak_bytes} with them, predicted {predicted_bytes} \
             ({error}), quota {quota_bytes}; drawn: live bytes without the weights"
        );
        text(out, (LEFT, 50.0), "quiet", &line);
        let mut x = LEFT;
        for (index, group) in self.groups.iter().enumerate() {
            let colour = index.min(COLOURS - 1);
            writeln!(
                out,
                "<rect class=\"c{colour}\" x=\"{x:.1}\" y=\"61\" width=\"12\" height=\"12\" \
                 rx=\"2\"/>"
            )
            .expect(TO_TEXT);
            text(out, (x + 18.0, 72.0), "quiet", group);
            x += 44.0 + 7.5 * group.chars().count() as f64;
        }
    }

    fn axes(&self, out: &mut String) {
        for (bytes, label) in byte_ticks(self.largest) {
            let y = self.y(bytes);
            line(out, "grid", [LEFT, y, RIGHT, y]);
            anchored(out, (LEFT - 8.0, y + 4.5), "quiet", "end", &label);
        }
        let (ticks, unit) = time_ticks(self.end);
        for (at, label) in ticks {
            let x = self.x(at);
            line(out, "edge", [x, BOTTOM, x, BOTTOM + 5.0]);
            anchored(out, (x, BOTTOM + 20.0), "quiet", "middle", &label);
        }
        line(out, "edge", [LEFT, BOTTOM, RIGHT, BOTTOM]);
        let about = format!("time since the pass began, {unit}");
        anchored(out, (f64::midpoint(LEFT, RIGHT), BOTTOM + 40.0), "quiet", "middle", &about);
    }

    /// One area for each stretch of points of the same module.
    fn areas(&self, out: &mut String) {
        let mut start = 0;
        for stretch in self.points.chunk_by(|a, b| a.module == b.module) {
            let end = start + stretch.len();
            let next = self.points.get(end).map_or(self.end, |point| point.at_us);
            let (group, number) = group_of(&stretch[0].module);
            let colour = self.groups.iter().position(|known| *known == group).unwrap_or(0);
            let odd = if number % 2 == 1 { " odd" } else { "" };
            let mut path = format!("M{:.1} {BOTTOM:.1}", self.x(stretch[0].at_us as f64));
            self.steps(&mut path, stretch, next);
            let most = stretch.iter().map(|point| point.live_bytes).max().unwrap_or_default();
            writeln!(
                out,
                "<path class=\"c{}{odd}\" d=\"{path}V{BOTTOM:.1}Z\"><title>{}: up to {most}\
                 </title></path>",
                colour.min(COLOURS - 1),
                escaped(&stretch[0].module),
            )
            .expect(TO_TEXT);
            start = end;
        }
    }

    fn outline(&self, out: &mut String) {
        let Some(first) = self.points.first() else { return };
        let mut path = format!("M{:.1} {BOTTOM:.1}", self.x(first.at_us as f64));
        self.steps(&mut path, self.points, self.end);
        writeln!(out, "<path class=\"top\" d=\"{path}\"/>").expect(TO_TEXT);
    }

    /// To each point's height, then along to the next.
    fn steps(&self, path: &mut String, points: &[TimelinePoint], end: u64) {
        for (index, point) in points.iter().enumerate() {
            let next = points.get(index + 1).map_or(end, |point| point.at_us);
            let (y, x) = (self.y(point.live_bytes.as_u64() as f64), self.x(next as f64));
            write!(path, "V{y:.1}H{x:.1}").expect(TO_TEXT);
        }
    }

    fn quota_line(&self, out: &mut String) {
        let Some(quota) = self.quota else { return };
        let y = self.y(quota as f64);
        line(out, "quota", [LEFT, y, RIGHT, y]);
        let label = format!("quota less weights {}", ByteCount::bytes(quota));
        anchored(out, (RIGHT, y - 6.0), "over", "end", &label);
    }

    fn peak(&self, out: &mut String) {
        // The first of equals: `max_by_key` would take the last.
        let peak = self.points.iter().rev().max_by_key(|point| point.live_bytes);
        let Some(TimelinePoint { at_us, live_bytes, operator, module }) = peak else { return };
        let (x, y) = (self.x(*at_us as f64), self.y(live_bytes.as_u64() as f64));
        writeln!(out, "<circle class=\"peak\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>")
            .expect(TO_TEXT);
        let label = format!("peak {live_bytes}: {operator} in {module}");
        let (x, anchor) =
            if x > f64::midpoint(LEFT, RIGHT) { (x - 10.0, "end") } else { (x + 10.0, "start") };
        anchored(out, (x, y - 8.0), "", anchor, &label);
    }
}

/// `block 3` → `block` and 3; a name without a number is a group of its own.
fn group_of(module: &str) -> (&str, u64) {
    let Some((name, number)) = module.rsplit_once(' ') else { return (module, 0) };
    number.parse().map_or((module, 0), |number| (name, number))
}

fn line(out: &mut String, class: &str, [x1, y1, x2, y2]: [f64; 4]) {
    writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    )
    .expect(TO_TEXT);
}

fn text(out: &mut String, at: (f64, f64), class: &str, content: &str) {
    anchored(out, at, class, "start", content);
}

fn anchored(out: &mut String, (x, y): (f64, f64), class: &str, anchor: &str, content: &str) {
    writeln!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escaped(content)
    )
    .expect(TO_TEXT);
}

/// Text of others as text of the document.
fn escaped(content: &str) -> String {
    let mut escaped = String::with_capacity(content.len());
    for c in printable(content).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Not a character in XML.
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
