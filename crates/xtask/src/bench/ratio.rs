//! Ratios over rounds.

/// Figures of two sides, round by round; higher is better.
#[derive(Default)]
pub(crate) struct Rounds {
    pairs: Vec<(f64, f64)>,
}

impl Rounds {
    pub(crate) fn add(&mut self, ours: f64, theirs: f64) {
        self.pairs.push((ours, theirs));
    }

    /// A row of a Markdown table: name, medians of both sides, median ratio and its range.
    pub(crate) fn row(&self, name: &str) -> String {
        let ratios = sorted(self.pairs.iter().map(|(ours, theirs)| ours / theirs));
        let (Some(low), Some(high)) = (ratios.first(), ratios.last()) else {
            return format!("| {name} | - | - | - |");
        };
        let ours = median(&sorted(self.pairs.iter().map(|pair| pair.0)));
        let theirs = median(&sorted(self.pairs.iter().map(|pair| pair.1)));
        let ratio = median(&ratios);
        format!("| {name} | {ours:.1} | {theirs:.1} | {ratio:.2} ({low:.2}–{high:.2}) |")
    }
}

pub(super) fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

pub(super) fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_medians_and_the_range_of_ratios() {
        let mut rounds = Rounds::default();
        for (ours, theirs) in [(30.0, 10.0), (20.0, 10.0), (50.0, 20.0)] {
            rounds.add(ours, theirs);
        }
        assert_eq!(rounds.row("decode"), "| decode | 30.0 | 10.0 | 2.50 (2.00–3.00) |");
    }
}
