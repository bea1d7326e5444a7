//! Ticks of an axis: few, at round values, with labels.

use orchestrator_types::ByteCount;

/// One tick: its value and what stands beside it.
pub(super) type Tick = (f64, String);

/// At most seven amounts from nothing to `largest`, a power of two apart.
pub(super) fn byte_ticks(largest: u64) -> Vec<Tick> {
    let step = (largest / 6).max(1).next_power_of_two();
    let each = (0..=largest / step).map(|index| index * step);
    each.map(|bytes| (bytes as f64, amount(bytes))).collect()
}

/// An amount on a grid of powers of two: no places where there is nothing behind the point.
fn amount(bytes: u64) -> String {
    ByteCount::bytes(bytes).to_string().replace(".00 ", " ")
}

/// At most nine moments from the start to `largest` microseconds, and their unit.
pub(super) fn time_ticks(largest: u64) -> (Vec<Tick>, &'static str) {
    let (unit, per_unit) = match largest {
        0..10_000 => ("µs", 1.0),
        10_000..10_000_000 => ("ms", 1e3),
        _ => ("s", 1e6),
    };
    let step = round_step(largest.div_ceil(8).max(1));
    let each = (0..=largest / step).map(|index| (index * step) as f64);
    (each.map(|at| (at, format!("{}", at / per_unit))).collect(), unit)
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least this.
fn round_step(least: u64) -> u64 {
    let mut decade = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            let step = decade.saturating_mul(factor);
            if step >= least {
                return step;
            }
        }
        decade = decade.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_round() {
        let labels =
            |ticks: &[Tick]| ticks.iter().map(|(_, label)| label.clone()).collect::<Vec<_>>();
        assert_eq!(labels(&byte_ticks(100 << 20)), ["0 B", "32 MiB", "64 MiB", "96 MiB"]);
        assert_eq!(
            labels(&byte_ticks(3 << 29)),
            ["0 B", "256 MiB", "512 MiB", "768 MiB", "1 GiB", "1.25 GiB", "1.50 GiB"]
        );
        let (ticks, unit) = time_ticks(42_000);
        assert_eq!((labels(&ticks).join(" ").as_str(), unit), ("0 10 20 30 40", "ms"));
        let (ticks, unit) = time_ticks(7);
        assert_eq!((labels(&ticks).len(), unit), (8, "µs"));
        for largest in [0, 1, 9_999, 10_000, u64::from(u32::MAX), u64::MAX] {
            assert!((1..=9).contains(&byte_ticks(largest).len()), "{largest}");
            assert!((1..=9).contains(&time_ticks(largest).0.len()), "{largest}");
        }
    }
}
