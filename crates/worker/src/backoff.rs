//! How long to wait before trying again. Pure: chance is a seed that is passed in.

use std::time::Duration;

use orchestrator_types::Digest;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

/// The wait after failure number `failures`, from 1: 0.2 s, doubled each time, 10 s at most.
pub(crate) fn doubled(failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST.saturating_mul(factor).min(LONGEST)
}

/// Waits with full jitter: anything from nothing to [`doubled`], so that workers that lost the
/// coordinator in the same moment do not come back in the same moment.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    failures: u32,
    random: u64,
}

impl Backoff {
    /// Waits that differ between owners with different names.
    pub(crate) fn of(name: &str) -> Self {
        let digest = Digest::of(name.as_bytes());
        let seed = digest.as_bytes().first_chunk().expect("a digest has 32 bytes");
        Self { failures: 0, random: u64::from_le_bytes(*seed) }
    }

    /// How long to wait after one more failure.
    pub(crate) fn after_failure(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let fraction = self.draw() as f64 / u64::MAX as f64;
        doubled(self.failures).mul_f64(fraction.clamp(0.0, 1.0))
    }

    /// Forgets the failures.
    pub(crate) const fn reset(&mut self) {
        self.failures = 0;
    }

    /// SplitMix64 (Steele, Lea and Flood: Fast splittable pseudorandom number generators, 2014).
    const fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn waits_double_up_to_ten_seconds() {
        let waits: Vec<u128> = (0..9).map(|n| doubled(n).as_millis()).collect();
        assert_eq!(waits, [200, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(doubled(u32::MAX), LONGEST);
    }

    proptest! {
        #[test]
        fn jitter_stays_below_the_doubled_wait(name in ".{0,8}", failures in 1_u32..40) {
            let mut backoff = Backoff::of(&name);
            let waits: Vec<Duration> = (0..failures).map(|_| backoff.after_failure()).collect();
            for (wait, number) in waits.iter().zip(1..) {
                prop_assert!(*wait <= doubled(number));
            }
            backoff.reset();
            prop_assert!(backoff.after_failure() <= FIRST);
        }
    }

    #[test]
    fn owners_wait_differently() {
        assert_ne!(Backoff::of("a.0").after_failure(), Backoff::of("b.0").after_failure());
    }
}
