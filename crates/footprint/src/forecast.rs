//! The walk, corrected by what probes measured.

use orchestrator_types::ByteCount;

use crate::{Setting, Tower, Walk, walk};

/// Most forward passes that a prediction may be corrected by: two small batches and a confirmation.
pub const MOST_PROBES: usize = 3;

/// One measured forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Rows that passed.
    pub rows: u32,
    /// Tokens of each.
    pub tokens: u32,
    /// Peak of what was allocated during the pass, less what was allocated before it.
    pub peak: ByteCount,
}

/// Predicts the peak of a forward pass.
///
/// What the walk does not know (workspaces of kernels, packed operands) is a constant and a part that
/// grows with the tokens: the difference between measurement and walk, as a line through the probes.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    tower: Tower,
    setting: Setting,
    probes: Vec<Probe>,
}

impl Forecast {
    /// The walk alone.
    pub const fn new(tower: Tower, setting: Setting) -> Self {
        Self { tower, setting, probes: Vec::new() }
    }

    /// The tower that it speaks for.
    pub const fn tower(&self) -> &Tower {
        &self.tower
    }

    /// How the tower is run.
    pub const fn setting(&self) -> Setting {
        self.setting
    }

    /// Passes that it was corrected by.
    pub fn probes(&self) -> usize {
        self.probes.len()
    }

    /// Corrects the prediction by a measurement; more than [`MOST_PROBES`] are not kept.
    pub fn correct(&mut self, probe: Probe) {
        if self.probes.len() < MOST_PROBES {
            self.probes.push(probe);
        }
    }

    /// Peak of a pass, weights excluded.
    pub fn activations(&self, rows: u32, tokens: u32) -> ByteCount {
        let analytic = self.walk(rows, tokens).peak.as_u64() as f64;
        let size = f64::from(rows) * f64::from(tokens);
        let predicted = (analytic + self.residual(size)).max(analytic * 0.5);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative; bytes far beyond 2^53 saturate"
        )]
        ByteCount::bytes(predicted.ceil() as u64)
    }

    /// Peak of a pass with the tower's weights.
    pub fn peak(&self, rows: u32, tokens: u32) -> ByteCount {
        let weights = self.tower.weights(self.setting.precision);
        weights.checked_add(self.activations(rows, tokens)).unwrap_or(ByteCount::bytes(u64::MAX))
    }

    /// What a pass would allocate by the walk alone.
    pub fn walk(&self, rows: u32, tokens: u32) -> Walk {
        walk(&self.tower, self.setting, rows, tokens)
    }

    /// Measurement less walk, at `size` tokens in all.
    fn residual(&self, size: f64) -> f64 {
        let points: Vec<(f64, f64)> = self.probes.iter().map(|probe| self.point(*probe)).collect();
        match points[..] {
            [] => 0.0,
            [(_, only)] => only,
            // A share that falls with the tokens is noise: followed, it would let a prediction fall
            // with the rows.
            [(x1, y1), .., (x2, y2)] if (y2 - y1) * (x2 - x1) > 0.0 => {
                y1 + (y2 - y1) / (x2 - x1) * (size - x1)
            }
            [(_, first), .., (_, last)] => f64::max(first, last),
        }
    }

    fn point(&self, probe: Probe) -> (f64, f64) {
        let analytic = self.walk(probe.rows, probe.tokens).peak.as_u64() as f64;
        let size = f64::from(probe.rows) * f64::from(probe.tokens);
        (size, probe.peak.as_u64() as f64 - analytic)
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_types::Precision;
    use proptest::prelude::*;

    use super::*;
    use crate::{Input, Kind};

    fn forecast() -> Forecast {
        let tower = Tower {
            input: Input::Tokens,
            layers: 4,
            width: 512,
            heads: 8,
            mlp: 2048,
            embedding_width: 512,
            parameters: 1_000_000,
        };
        Forecast::new(tower, Setting::new(Kind::Cpu, Precision::Fp32))
    }

    proptest! {
        #[test]
        fn more_rows_never_need_less_whatever_was_measured(
            peaks in prop::array::uniform3(0_u64..1 << 32), rows in 1_u32..500, more in 0_u32..500
        ) {
            let mut corrected = forecast();
            for (rows, peak) in [2, 8, 64].into_iter().zip(peaks) {
                corrected.correct(Probe { rows, tokens: 77, peak: ByteCount::bytes(peak) });
            }
            prop_assert!(corrected.activations(rows, 77) <= corrected.activations(rows + more, 77));
        }

        /// Whatever a constant and a share per token a kernel adds, two probes find it.
        #[test]
        fn two_probes_find_a_workspace(constant in 0_u64..1 << 24, each in 0_u64..4096) {
            let truth = |rows: u32| {
                let walk = forecast().walk(rows, 77).peak.as_u64();
                ByteCount::bytes(walk + constant + each * u64::from(rows) * 77)
            };
            let mut corrected = forecast();
            for rows in [2, 8] {
                corrected.correct(Probe { rows, tokens: 77, peak: truth(rows) });
            }
            for rows in [1, 16, 64, 512] {
                let (found, truth) = (corrected.activations(rows, 77), truth(rows));
                let off = found.as_u64().abs_diff(truth.as_u64());
                prop_assert!(off <= truth.as_u64() / 1000 + 16, "{rows}: {found} for {truth}");
            }
        }
    }

    #[test]
    fn probes_are_counted() {
        let mut forecast = forecast();
        let before = forecast.activations(8, 77);
        for _ in 0..9 {
            forecast.correct(Probe { rows: 8, tokens: 77, peak: before });
        }
        assert_eq!(forecast.probes(), MOST_PROBES);
    }
}
