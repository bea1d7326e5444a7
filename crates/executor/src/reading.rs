//! Memory of this process, as the kernel counts it.

use std::fs;

use orchestrator_types::ByteCount;

/// Largest resident set of the process so far; zero where the kernel does not say.
pub(crate) fn host_peak() -> ByteCount {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    high_water_mark(&status).unwrap_or(ByteCount::ZERO)
}

fn high_water_mark(status: &str) -> Option<ByteCount> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    value.trim().strip_suffix(" kB")?.trim_end().parse().ok().map(ByteCount::kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read() {
        let status = "Name:\tx\nVmPeak:\t  999 kB\nVmHWM:\t  123456 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(high_water_mark(status), Some(ByteCount::kib(123_456)));
        assert_eq!(high_water_mark("Name:\tx\n"), None);
        assert!(host_peak() > ByteCount::ZERO);
    }
}
