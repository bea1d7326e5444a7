//! The memory part of the terminal's report: who used how much, and how well it was predicted.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::NOTHING};

use super::{LISTED, list};
use crate::{
    report::{Forecast, Node},
    rows::{self, short},
};

/// Nothing where nothing was measured.
pub(super) fn write(lines: &mut Vec<String>, nodes: &[Node], width: u16) {
    let measured: Vec<&Node> =
        nodes.iter().filter(|node| node.memory.allocated_peak_bytes.is_some()).collect();
    if measured.is_empty() {
        return;
    }
    lines.push(String::new());
    lines.push(peaks(&measured, width).trim_fmt());
    let forecasts = worst(&measured);
    if !forecasts.is_empty() {
        lines.push(String::new());
        lines.push(predictions(&forecasts, width).trim_fmt());
    }
    let breaches: Vec<String> = measured
        .iter()
        .flat_map(|node| node.memory.breaches.iter().map(move |breach| (node, breach)))
        .map(|(node, breach)| format!("{}: {}", node.slice, rows::breach(breach)))
        .collect();
    if !breaches.is_empty() {
        lines.push(format!(
            "warning: more memory was in use than the quota allows, {}",
            rows::times(breaches.len())
        ));
        list(lines, breaches.into_iter());
    }
}

fn peaks(nodes: &[&Node], width: u16) -> Table {
    let columns =
        ["peaks of", "quota", "predicted", "allocated", "reserved", "device", "host", "ooms"];
    let mut table = table(&columns, width);
    for node in nodes {
        let memory = &node.memory;
        table.add_row([
            format!("{}\n{}", node.slice, rows::device(&node.device)),
            short(node.quota_bytes),
            short(memory.predicted_peak_bytes),
            short(memory.allocated_peak_bytes),
            short(memory.reserved_peak_bytes),
            short(memory.device_peak_bytes),
            short(memory.host_peak_bytes),
            memory.ooms.map_or_else(|| "–".to_owned(), |ooms| ooms.to_string()),
        ]);
    }
    table
}

/// One for each component, shape and precision: that of the slice where it was furthest off.
fn worst<'a>(nodes: &[&'a Node]) -> Vec<&'a Forecast> {
    let mut worst: Vec<&Forecast> = Vec::new();
    let off = |it: &Forecast| it.error_percent.map_or(-1.0, f64::abs);
    for forecast in nodes.iter().flat_map(|node| &node.memory.forecasts) {
        let key = |it: &Forecast| (it.component, it.precision, it.rows, it.tokens);
        let same = |it: &&mut &Forecast| key(it) == key(forecast) && it.model == forecast.model;
        match worst.iter_mut().find(same) {
            Some(known) if off(forecast) > off(known) => *known = forecast,
            Some(_) => {}
            None => worst.push(forecast),
        }
    }
    worst
}

fn predictions(forecasts: &[&Forecast], width: u16) -> Table {
    let columns = ["prediction", "rows × tokens", "predicted", "measured", "error", "probes"];
    let mut table = table(&columns, width);
    for forecast in forecasts.iter().take(LISTED) {
        let Forecast { component, model, precision, rows, tokens, probes, .. } = forecast;
        table.add_row([
            rows::printable(&format!("{model} {component} {precision}")),
            format!("{rows} × {tokens}"),
            short(Some(forecast.predicted_bytes)),
            short(forecast.measured_bytes),
            rows::error(forecast.error_percent),
            probes.to_string(),
        ]);
    }
    if forecasts.len() > LISTED {
        table.add_row([format!("… and {} more", forecasts.len() - LISTED)]);
    }
    table
}

/// Numbers stand right, what they are about left.
fn table(columns: &[&str], width: u16) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width)
        .set_header(columns);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
