//! How many rows go through a tower at once.
//!
//! Invariant: no choice is made by trying until memory is refused. The largest batch that fits
//! follows from the prediction; the batch that is used is the smallest one within
//! [`RATE_TOLERANCE`] of the best rate among those that were timed.

use orchestrator_types::ByteCount;

use crate::{Forecast, Kind};

/// Tokens from which on a large GPU's rate is flat: the last wave of thread blocks costs less than a
/// tenth of a product (measured on L/14 and B/16: the rate grows by less than 2 % beyond).
pub const KNEE_TOKENS: u32 = 50_000;

/// A batch this much slower than the best one, in per cent of the rate, is as good.
pub const RATE_TOLERANCE: f64 = 2.0;

/// Rows at which the rate of a device is expected to be flat.
pub const fn prior_rows(kind: Kind, tokens: u32) -> u32 {
    let tokens = if tokens == 0 { 1 } else { tokens };
    match kind {
        // A core's cache decides there, and the plan fixes the tile.
        Kind::Cpu => 64,
        Kind::Cuda => {
            let rows = KNEE_TOKENS / tokens;
            if rows < 8 { 8 } else { rows.next_multiple_of(8) }
        }
    }
}

/// The two smaller batches that a prediction is corrected by, for a batch of `rows`: a quarter and a
/// half, because kernels of half precision take workspaces that grow with small batches only.
pub const fn probe_rows(rows: u32) -> [u32; 2] {
    let (small, middle) = (rows / 4, rows / 2);
    let small = if small == 0 { 1 } else { small };
    [small, if middle <= small { small + 1 } else { middle }]
}

/// The largest number of rows, at most `most`, whose predicted activations are at most `free`; `None`
/// if not even one row fits.
pub fn rows_that_fit(forecast: &Forecast, tokens: u32, free: ByteCount, most: u32) -> Option<u32> {
    let fits = |rows: u32| forecast.activations(rows, tokens) <= free;
    if most == 0 || !fits(1) {
        return None;
    }
    let (mut low, mut high) = (1, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    Some(low)
}

/// A batch and its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// Rows of a forward pass.
    pub rows: u32,
    /// Rows per second.
    pub rate: f64,
}

/// The smallest batch within [`RATE_TOLERANCE`] of the best rate; `None` of nothing.
pub fn knee(timed: &[Timed]) -> Option<u32> {
    let best = timed.iter().map(|point| point.rate).fold(0.0, f64::max);
    let enough = best * (1.0 - RATE_TOLERANCE / 100.0);
    timed.iter().filter(|point| point.rate >= enough).map(|point| point.rows).min()
}

/// What refusals taught about one component, shape, precision and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Rows × tokens of the smallest pass that was refused.
    refused: Option<u64>,
}

impl Learned {
    /// A pass of `rows` rows of `tokens` tokens was refused.
    pub fn refuse(&mut self, rows: u32, tokens: u32) {
        let size = u64::from(rows) * u64::from(tokens);
        self.refused = Some(self.refused.map_or(size, |known| known.min(size)));
    }

    /// The rows, at most `rows`, that may be tried: at most half of what was refused.
    pub fn cap(&self, rows: u32, tokens: u32) -> u32 {
        let most = self.refused.map_or(u64::from(rows), |size| size / 2 / u64::from(tokens.max(1)));
        rows.min(u32::try_from(most).unwrap_or(u32::MAX)).max(1)
    }
}

/// Notices that the allocator returns its cache again and again, before anything is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    seen: u64,
    rising: u32,
}

impl Pressure {
    /// Passes in a row with new retries that make a batch too large.
    const PATIENCE: u32 = 2;

    /// Told the allocator's retries so far after each pass; whether the batch should shrink.
    pub fn feel(&mut self, retries: u64) -> bool {
        self.rising = if retries > self.seen { self.rising + 1 } else { 0 };
        self.seen = retries;
        let shrink = self.rising >= Self::PATIENCE;
        if shrink {
            self.rising = 0;
        }
        shrink
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_types::Precision;
    use proptest::prelude::*;

    use super::*;
    use crate::{Input, Setting, Tower};

    fn forecast() -> Forecast {
        let tower = Tower {
            input: Input::Pixels(3 * 224 * 224),
            layers: 12,
            width: 768,
            heads: 12,
            mlp: 3072,
            embedding_width: 512,
            parameters: 86_000_000,
        };
        Forecast::new(tower, Setting::new(Kind::Cuda, Precision::Bf16))
    }

    proptest! {
        #[test]
        fn what_fits_fits_and_one_more_does_not(mib in 0_u64..4096, most in 0_u32..5000) {
            let (forecast, free) = (forecast(), ByteCount::mib(mib));
            match rows_that_fit(&forecast, 197, free, most) {
                None => prop_assert!(most == 0 || forecast.activations(1, 197) > free),
                Some(rows) => {
                    prop_assert!(rows <= most && forecast.activations(rows, 197) <= free);
                    prop_assert!(rows == most || forecast.activations(rows + 1, 197) > free);
                }
            }
        }

        #[test]
        fn probes_are_small_and_differ(rows in 1_u32..100_000) {
            let [small, middle] = probe_rows(rows);
            prop_assert!(0 < small && small < middle && middle <= (rows / 2).max(2));
        }
    }

    #[test]
    fn the_smallest_of_the_best_is_chosen() {
        let timed = [(32, 700.0), (64, 985.0), (128, 1000.0), (256, 999.0)]
            .map(|(rows, rate)| Timed { rows, rate });
        assert_eq!(knee(&timed), Some(64));
        assert_eq!(knee(&[]), None);
        assert_eq!(prior_rows(Kind::Cuda, 50), 1000);
        assert_eq!(prior_rows(Kind::Cuda, 577), 88);
    }

    #[test]
    fn a_refusal_halves_and_shorter_rows_may_still_be_more() {
        let mut learned = Learned::default();
        assert_eq!(learned.cap(100, 50), 100);
        learned.refuse(100, 50);
        learned.refuse(200, 50);
        assert_eq!(learned.cap(100, 50), 50);
        assert_eq!(learned.cap(1000, 10), 250);
        assert_eq!(learned.cap(1000, 9999), 1);
    }

    #[test]
    fn only_lasting_pressure_shrinks() {
        let mut pressure = Pressure::default();
        let shrinks: Vec<bool> =
            [0, 1, 1, 2, 3, 4, 5, 5].map(|retries| pressure.feel(retries)).to_vec();
        assert_eq!(shrinks, [false, false, false, false, true, false, true, false]);
    }
}
