//! What decides the bits of a result besides its assignment: libtorch and the processor.
//!
//! libtorch, MKL and oneDNN choose their kernels by the processor, and kernels differ in the order
//! in which they add. Neither MKL nor oneDNN says what it chose, so the processor's own list of
//! features stands for that. Hosts with equal fingerprints compute equal bits; others compute equal
//! numbers up to rounding.

use std::{env, fs, io};

use orchestrator_engine::{cpu_kernels, libtorch_version};
use orchestrator_types::Digest;

/// Lines of `/proc/cpuinfo` that kernels are chosen by, on x86 and on Arm.
const FEATURES: [&str; 5] = ["vendor_id", "flags", "CPU implementer", "CPU part", "Features"];
/// Variables by which people choose the kernels of MKL and oneDNN. ATen's own variable shows in
/// what it says of its kernels.
const CHOICES: [&str; 4] =
    ["MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"];

/// The same on two hosts only if both compute the same bits.
pub(crate) fn fingerprint() -> io::Result<Digest> {
    let kernels = cpu_kernels().map_err(io::Error::other)?;
    tracing::info!(libtorch = libtorch_version(), kernels, "computing with");
    // Without this file the kernels' names must do.
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let choices = CHOICES.map(|name| env::var(name).unwrap_or_default());
    Ok(of(&format!("{}, {kernels}", libtorch_version()), &processor, &choices))
}

fn of(kernels: &str, processor: &str, choices: &[String]) -> Digest {
    let features: Vec<&str> = FEATURES.iter().map(|name| feature(processor, name)).collect();
    let parts = serde_json::json!([kernels, features, choices]);
    Digest::of(parts.to_string().as_bytes())
}

/// What the first processor says under this name; they are all of one kind.
fn feature<'a>(processor: &'a str, name: &str) -> &'a str {
    let lines = processor.lines().filter_map(|line| line.split_once(':'));
    let mut named = lines.filter(|(key, _)| key.trim() == name);
    named.next().map_or("", |(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESSOR: &str = "processor\t: 0\nvendor_id\t: A\ncpu MHz\t\t: 9\nflags\t\t: avx2 fma\n";

    #[test]
    fn kernels_features_and_choices_count_and_nothing_else_does() {
        let no_choice = [String::new(), String::new()];
        let usual = of("2.11.0, AVX2", PROCESSOR, &no_choice);
        let faster = PROCESSOR.replace(": 9", ": 10");
        assert_eq!(of("2.11.0, AVX2", &faster, &no_choice), usual);
        let wider = PROCESSOR.replace("fma", "fma avx512f");
        let chosen = ["AVX2".to_owned(), String::new()];
        for other in [
            of("2.11.0, AVX512", PROCESSOR, &no_choice),
            of("2.11.0, AVX2", &wider, &no_choice),
            of("2.11.0, AVX2", PROCESSOR, &chosen),
        ] {
            assert_ne!(other, usual);
        }
    }

    #[test]
    fn a_host_stays_the_same() {
        assert_eq!(fingerprint().unwrap(), fingerprint().unwrap());
    }
}
