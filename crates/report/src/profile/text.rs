//! The profile as tables.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::NOTHING};
use orchestrator_ledger::{
    ComponentProfile, Consumer, CurvePoint, PhaseReading, PhaseReadings, Profile,
};
use orchestrator_types::ByteCount;

use super::{error_percent, title};
use crate::{
    rows::{self, printable, short},
    text::WIDTH,
};

/// Consumers that are listed; the rest is summed up.
const LISTED: usize = 12;

pub(super) fn render(profile: &Profile) -> String {
    let mut blocks = vec![format!("profile of {}", printable(&profile.name))];
    blocks.extend(profile.components.iter().map(component));
    blocks.join("\n\n")
}

fn component(profile: &ComponentProfile) -> String {
    let modules: Vec<&Consumer> = profile.modules.iter().collect();
    let mut operators: Vec<&Consumer> = profile.operators.iter().collect();
    operators.sort_by_key(|consumer| std::cmp::Reverse(consumer.allocated_bytes));
    let tables = [
        consumers("operator", &operators),
        consumers("module", &modules),
        phases(&profile.phases),
        curve(profile),
    ];
    let mut lines = vec![head(profile)];
    let filled = tables.into_iter().filter(|table| !table.is_empty());
    lines.extend(filled.map(|table| format!("\n{}", table.trim_fmt())));
    lines.push(format!("\nbest: {} rows, {}", profile.best.rows, printable(&profile.best.reason)));
    lines.push(math_attention(profile));
    lines.join("\n")
}

fn head(profile: &ComponentProfile) -> String {
    let ComponentProfile { weights_bytes, peak_bytes, predicted_bytes, quota_bytes, .. } = profile;
    let error = rows::error(error_percent(*predicted_bytes, *peak_bytes));
    let fragmentation = profile.fragmentation.filter(|share| share.is_finite());
    let fragmentation =
        fragmentation.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", share * 100.0));
    format!(
        "{}\n  weights {weights_bytes}, peak {peak_bytes} with them; predicted \
         {predicted_bytes} ({error})\n  quota {quota_bytes}; fragmentation {fragmentation}; \
         allocator {}",
        title(profile),
        printable(&profile.allocator),
    )
}

fn consumers(what: &str, consumers: &[&Consumer]) -> Table {
    let mut table = table(&[what, "calls", "outputs", "temporaries", "largest", "held at peak"]);
    for consumer in consumers.iter().take(LISTED) {
        let Consumer { name, calls, temporary_bytes, output_bytes, .. } = consumer;
        table.add_row([
            printable(name),
            calls.to_string(),
            short(Some(*output_bytes)),
            short(Some(*temporary_bytes)),
            short(Some(consumer.largest_bytes)),
            short(Some(consumer.at_peak_bytes)),
        ]);
    }
    if let Some(rest) = consumers.get(LISTED..).filter(|rest| !rest.is_empty()) {
        let sum = |of: fn(&Consumer) -> ByteCount| {
            let bytes = rest.iter().map(|consumer| of(consumer).as_u64());
            short(Some(ByteCount::bytes(bytes.fold(0, u64::saturating_add))))
        };
        table.add_row([
            format!("{} more", rest.len()),
            rest.iter().map(|consumer| consumer.calls).sum::<u64>().to_string(),
            sum(|consumer| consumer.output_bytes),
            sum(|consumer| consumer.temporary_bytes),
            short(rest.iter().map(|consumer| consumer.largest_bytes).max()),
            sum(|consumer| consumer.at_peak_bytes),
        ]);
    }
    table
}

fn phases(phases: &PhaseReadings) -> Table {
    let mut table = table(&["phase", "seconds", "allocated", "reserved", "device", "host"]);
    for (name, phase) in [("load", phases.load), ("warm-up", phases.warm_up), ("run", phases.run)] {
        let PhaseReading { seconds, allocated_peak_bytes, reserved_peak_bytes, .. } = phase;
        table.add_row([
            name.to_owned(),
            format!("{seconds:.3}"),
            short(Some(allocated_peak_bytes)),
            short(Some(reserved_peak_bytes)),
            short(phase.device_peak_bytes),
            short(Some(phase.host_peak_bytes)),
        ]);
    }
    table
}

fn curve(profile: &ComponentProfile) -> Table {
    let mut table = table(&["batch", "predicted", "measured", "error", "rows/s", ""]);
    for CurvePoint { rows, predicted_bytes, measured_bytes, rows_per_second } in &profile.curve {
        let error = measured_bytes.and_then(|measured| error_percent(*predicted_bytes, measured));
        let rate = rows_per_second.filter(|rate| rate.is_finite());
        let best = *rows == profile.best.rows;
        table.add_row([
            rows.to_string(),
            short(Some(*predicted_bytes)),
            short(*measured_bytes),
            rows::error(error),
            rate.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}")),
            if best { "← best" } else { "" }.to_owned(),
        ]);
    }
    table
}

fn math_attention(profile: &ComponentProfile) -> String {
    let ComponentProfile { math_attention_peak_bytes: peak, math_attention_bytes, .. } = profile;
    let times = peak.as_u64() as f64 / profile.peak_bytes.as_u64().max(1) as f64;
    format!(
        "with all attention scores in memory: peak {peak} ({times:.2} times this one); scores, \
         softmax and products of one layer take {math_attention_bytes}"
    )
}

/// Numbers stand right, what they are about left.
fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(columns);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
