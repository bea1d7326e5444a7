//! From events of a trace to who took how much.

use std::collections::HashMap;

use orchestrator_ledger::{Consumer, TimelinePoint};
use orchestrator_torch::trace::Event;
use orchestrator_types::ByteCount;

/// Points of a timeline, at most.
const MOST_POINTS: usize = 2_000;
/// What runs outside of every operator or module.
const NOBODY: &str = "(outside)";

/// By operator, what it took most of first.
pub(super) fn operators(events: &[Event]) -> Vec<Consumer> {
    let mut consumers = consumers(events, |event| &event.operator);
    consumers.sort_by(|a, b| (b.allocated_bytes, &a.name).cmp(&(a.allocated_bytes, &b.name)));
    consumers
}

/// By module, in the order of computation.
pub(super) fn modules(events: &[Event]) -> Vec<Consumer> {
    consumers(events, |event| &event.module)
}

/// A block that is held.
struct Held {
    /// Index of its consumer.
    consumer: usize,
    bytes: u64,
    /// Number of the call that took it.
    call: u64,
}

fn consumers(events: &[Event], name: impl Fn(&Event) -> &String) -> Vec<Consumer> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut consumers: Vec<Consumer> = Vec::new();
    let mut held: HashMap<u64, Held> = HashMap::new();
    let (mut call, mut last) = (0, None);
    let peak = events.iter().map(|event| event.live_after).max().unwrap_or(0);
    let mut seen_peak = false;
    for event in events {
        // Events of one call stand next to each other: a thread runs one operator at a time.
        let running = (name(event), &event.outer);
        if last != Some(running) {
            call += 1;
            last = Some(running);
        }
        let label = if name(event).is_empty() { NOBODY } else { name(event) };
        if event.bytes > 0 {
            let index = *known.entry(label.to_owned()).or_insert_with(|| {
                consumers.push(nothing(label));
                consumers.len() - 1
            });
            let bytes = event.bytes.unsigned_abs();
            let first = !held.values().any(|block| block.call == call && block.consumer == index);
            let consumer = &mut consumers[index];
            consumer.calls += u64::from(first);
            add(&mut consumer.allocated_bytes, bytes);
            consumer.largest_bytes = consumer.largest_bytes.max(ByteCount::bytes(bytes));
            held.insert(event.address, Held { consumer: index, bytes, call });
        } else if let Some(block) = held.remove(&event.address) {
            let within = block.call == call && !name(event).is_empty();
            let consumer = &mut consumers[block.consumer];
            if within {
                add(&mut consumer.temporary_bytes, block.bytes);
            } else {
                add(&mut consumer.output_bytes, block.bytes);
            }
        }
        if event.live_after == peak && !seen_peak {
            seen_peak = true;
            for block in held.values() {
                add(&mut consumers[block.consumer].at_peak_bytes, block.bytes);
            }
        }
    }
    for block in held.into_values() {
        add(&mut consumers[block.consumer].output_bytes, block.bytes);
    }
    consumers
}

/// Live bytes over time; of neighbouring points the highest is kept where there are too many.
pub(super) fn timeline(events: &[Event]) -> Vec<TimelinePoint> {
    let group = events.len().div_ceil(MOST_POINTS).max(1);
    let highest = |events: &[Event]| {
        let event = events.iter().max_by_key(|event| event.live_after)?;
        Some(TimelinePoint {
            at_us: event.at_ns / 1_000,
            live_bytes: ByteCount::bytes(event.live_after),
            operator: event.operator.clone(),
            module: if event.module.is_empty() { NOBODY.to_owned() } else { event.module.clone() },
        })
    };
    events.chunks(group).filter_map(highest).collect()
}

fn nothing(name: &str) -> Consumer {
    Consumer {
        name: name.to_owned(),
        calls: 0,
        allocated_bytes: ByteCount::ZERO,
        temporary_bytes: ByteCount::ZERO,
        output_bytes: ByteCount::ZERO,
        largest_bytes: ByteCount::ZERO,
        at_peak_bytes: ByteCount::ZERO,
    }
}

fn add(sum: &mut ByteCount, bytes: u64) {
    *sum = ByteCount::bytes(sum.as_u64().saturating_add(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(bytes: i64, address: u64, operator: &str, live_after: u64) -> Event {
        let (operator, outer) = (operator.to_owned(), operator.to_owned());
        Event { at_ns: 0, bytes, address, operator, outer, module: "m".to_owned(), live_after }
    }

    #[test]
    fn temporaries_end_within_their_call_and_outputs_outlive_it() {
        let events = [
            event(100, 1, "aten::a", 100),
            event(40, 2, "aten::a", 140),
            event(-40, 2, "aten::a", 100),
            event(60, 3, "aten::b", 160),
            event(-100, 1, "", 60),
            event(10, 4, "aten::a", 70),
        ];
        let found = operators(&events);
        let row = |consumer: &Consumer| {
            let Consumer { name, calls, allocated_bytes, temporary_bytes, output_bytes, .. } =
                consumer;
            let [all, temporary, output] =
                [allocated_bytes, temporary_bytes, output_bytes].map(|bytes| bytes.as_u64());
            (name.clone(), *calls, [all, temporary, output, consumer.at_peak_bytes.as_u64()])
        };
        let rows: Vec<_> = found.iter().map(row).collect();
        assert_eq!(rows[0], ("aten::a".to_owned(), 2, [150, 40, 110, 100]));
        assert_eq!(rows[1], ("aten::b".to_owned(), 1, [60, 0, 60, 60]));
        assert_eq!(modules(&events).len(), 1);
    }

    #[test]
    fn a_thinned_timeline_keeps_its_peak() {
        let live = |at: u64| if at == 7_777 { 9_000_000 } else { at };
        let events: Vec<Event> = (0..10_000).map(|at| event(1, at, "aten::a", live(at))).collect();
        let points = timeline(&events);
        assert!(points.len() <= MOST_POINTS);
        assert_eq!(points.iter().map(|point| point.live_bytes.as_u64()).max(), Some(9_000_000));
    }
}
