//! The inner loop: one pass over a run of scores, without a branch per score.
//!
//! Written as sixteen independent lanes, which is what lets the compiler use vector registers
//! without being allowed to reorder a floating-point reduction (a maximum and two counts here, so
//! the result does not depend on the order anyway).

/// Scores per vector step.
const LANES: usize = 16;

/// What one pass over a run of scores finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scan {
    /// Number of scores that beat the pivot.
    pub(crate) beating: u32,
    /// The highest score; unspecified if there is one that is not a number.
    pub(crate) highest: f32,
    /// Whether no score is infinite or not a number.
    pub(crate) finite: bool,
}

/// Scans `scores` against `pivot`. With `TIES`, an equal score beats the pivot: the scores belong
/// to candidates of lower index than the pivot's.
pub(crate) fn scan<const TIES: bool>(scores: &[f32], pivot: f32) -> Scan {
    let (chunks, rest) = scores.as_chunks::<LANES>();
    let mut beating = [0_u32; LANES];
    let mut odd = [0_u32; LANES];
    let mut highest = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            // Wrapping: a checked addition would keep debug builds from using vector registers.
            let more = u32::from(beats::<TIES>(chunk[lane], pivot));
            beating[lane] = beating[lane].wrapping_add(more);
        }
        for lane in 0..LANES {
            odd[lane] |= u32::from(!chunk[lane].is_finite());
        }
        for lane in 0..LANES {
            highest[lane] = higher(highest[lane], chunk[lane]);
        }
    }
    let mut scan = Scan {
        beating: beating.iter().sum(),
        highest: highest.into_iter().fold(f32::NEG_INFINITY, higher),
        finite: odd.iter().all(|&odd| odd == 0),
    };
    for &score in rest {
        scan.beating += u32::from(beats::<TIES>(score, pivot));
        scan.highest = higher(scan.highest, score);
        scan.finite &= score.is_finite();
    }
    scan
}

fn beats<const TIES: bool>(score: f32, pivot: f32) -> bool {
    if TIES { score >= pivot } else { score > pivot }
}

/// One instruction, unlike `f32::max`, which must skip what is not a number.
fn higher(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the exact number is the claim")]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_scanned_to_its_end() {
        for length in 0..70_u8 {
            let scores: Vec<f32> = (0..length).map(f32::from).collect();
            let tied = scan::<true>(&scores, 10.0);
            let strict = scan::<false>(&scores, 10.0);
            assert_eq!(tied.beating, u32::from(length.saturating_sub(10)));
            assert_eq!(strict.beating, u32::from(length.saturating_sub(11)));
            assert_eq!(tied.highest, scores.last().copied().unwrap_or(f32::NEG_INFINITY));
            assert!(tied.finite);
        }
    }

    #[test]
    fn odd_numbers_are_seen_wherever_they_stand() {
        for at in [0, 15, 16, 20] {
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut scores = [0.0; 21];
                scores[at] = odd;
                assert!(!scan::<false>(&scores, 0.5).finite);
            }
        }
    }
}
