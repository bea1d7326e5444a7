//! Whether a slice may be used again after its executor's death. Pure.
//!
//! Invariant: a slice is used again only when nothing of the dead process is left: the process and
//! its group are reaped, and the memory of a watched GPU is measurably free. What stays too long
//! fences the slice; it is offered again when it is free after all.

use std::{fmt, time::Duration};

use orchestrator_types::{ByteCount, DeviceUse};

/// How long the kernel may take to end a killed process. It cannot while the process waits for some
/// I/O or for its driver.
pub(crate) const UNKILLABLE: Duration = Duration::from_mins(1);
/// How long the driver may take to free the memory of a process that is gone.
pub(crate) const FREE: Duration = Duration::from_secs(10);
/// The driver's own needs grow a little under load; executors never use this much of a device either
/// (they leave it when they are offered what is free).
const MARGIN: ByteCount = ByteCount::mib(256);

/// What is left of a dead executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It, or a member of its group; for so long since it was killed.
    Process(Duration),
    /// No process, for so long, and what is known of its device.
    Device(Duration, Known),
}

/// What is known of a device after a process's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nobody watches it: the processor, or a GPU without NVML.
    Unwatched,
    /// It is watched, and not read yet since.
    Unread,
    /// As read since.
    Read(DeviceUse),
}

/// What was known before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Before {
    /// Use of the device before the executor was started.
    pub(crate) used: Option<ByteCount>,
    /// The executor's pid, if NVML listed it while it lived: then its absence means something.
    pub(crate) listed: Option<u32>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Free,
    Wait,
    Fence(Held),
}

/// What keeps a slice from being used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    ByProcess,
    Memory { used: ByteCount, before: ByteCount },
    Silence,
}

/// Judges what is left of a dead executor.
pub(crate) fn judge(left: &Left, before: Before) -> Verdict {
    match left {
        Left::Process(since) => wait_or(*since < UNKILLABLE, Held::ByProcess),
        Left::Device(_, Known::Unwatched) => Verdict::Free,
        Left::Device(since, Known::Unread) => wait_or(*since < FREE, Held::Silence),
        Left::Device(since, Known::Read(usage)) => match held(usage, before) {
            None => Verdict::Free,
            Some(held) => wait_or(*since < FREE, held),
        },
    }
}

const fn wait_or(patient: bool, held: Held) -> Verdict {
    if patient { Verdict::Wait } else { Verdict::Fence(held) }
}

/// What the dead process seems to hold. Whoever never knew how much was used cannot tell.
fn held(usage: &DeviceUse, before: Before) -> Option<Held> {
    let lists = |pid| Some(usage.processes.as_ref()?.iter().any(|process| process.pid == pid));
    if before.listed.and_then(lists) == Some(false) {
        return None;
    }
    let (used, before) = (usage.used_bytes, before.used?);
    let most = before.as_u64().saturating_add(MARGIN.as_u64());
    (used.as_u64() > most).then_some(Held::Memory { used, before })
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByProcess => write!(
                f,
                "the kernel did not end its executor within {} s after it was killed; such a \
                 process waits for a device or a file system: see the kernel's log",
                UNKILLABLE.as_secs()
            ),
            Self::Memory { used, before } => write!(
                f,
                "its executor is gone, and {} s later {used} of the device are still in use; \
                 before it was started {before} were",
                FREE.as_secs()
            ),
            Self::Silence => write!(
                f,
                "its executor is gone, and for {} s NVML has not told whether the device's memory \
                 is free",
                FREE.as_secs()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_types::ProcessUse;
    use proptest::prelude::*;

    use super::*;

    const OURS: u32 = 4711;

    fn usage(used: ByteCount, pids: Option<&[u32]>) -> DeviceUse {
        let process = |&pid| ProcessUse { pid, used_bytes: None };
        DeviceUse {
            used_bytes: used,
            total_bytes: ByteCount::gib(80),
            processes: pids.map(|pids| pids.iter().map(process).collect()),
        }
    }

    fn after(seconds: u64, used: ByteCount, pids: Option<&[u32]>, before: Before) -> Verdict {
        let since = Duration::from_secs(seconds);
        judge(&Left::Device(since, Known::Read(usage(used, pids))), before)
    }

    const MEASURED: Before = Before { used: Some(ByteCount::gib(1)), listed: None };
    const LISTED: Before = Before { used: Some(ByteCount::gib(1)), listed: Some(OURS) };

    #[test]
    fn a_process_that_cannot_be_killed_fences_its_slice() {
        let left = |seconds| judge(&Left::Process(Duration::from_secs(seconds)), MEASURED);
        assert_eq!([left(0), left(59)], [Verdict::Wait, Verdict::Wait]);
        assert_eq!(left(60), Verdict::Fence(Held::ByProcess));
    }

    #[test]
    fn memory_is_free_when_it_is_back_where_it_was() {
        let near = ByteCount::gib(1).checked_add(ByteCount::mib(256)).unwrap();
        assert_eq!(after(0, near, None, MEASURED), Verdict::Free);
        assert_eq!(after(9, ByteCount::gib(2), None, MEASURED), Verdict::Wait);
        let held = Held::Memory { used: ByteCount::gib(2), before: ByteCount::gib(1) };
        assert_eq!(after(10, ByteCount::gib(2), None, MEASURED), Verdict::Fence(held));
    }

    #[test]
    fn a_process_that_nvml_lists_no_more_holds_nothing_whatever_others_use() {
        assert_eq!(after(0, ByteCount::gib(70), Some(&[1, 2]), LISTED), Verdict::Free);
        assert_eq!(after(0, ByteCount::gib(70), Some(&[1, OURS]), LISTED), Verdict::Wait);
        assert_eq!(after(0, ByteCount::gib(1), Some(&[OURS]), LISTED), Verdict::Free);
        // NVML lists host pids: inside a container ours was never there, and proves nothing.
        assert_eq!(after(0, ByteCount::gib(70), Some(&[1, 2]), MEASURED), Verdict::Wait);
        assert_eq!(after(0, ByteCount::gib(70), None, LISTED), Verdict::Wait);
    }

    #[test]
    fn what_is_not_watched_is_free_with_its_process() {
        let known = |known, seconds| {
            judge(&Left::Device(Duration::from_secs(seconds), known), Before::default())
        };
        assert_eq!(known(Known::Unwatched, 0), Verdict::Free);
        assert_eq!(known(Known::Unread, 9), Verdict::Wait);
        assert_eq!(known(Known::Unread, 10), Verdict::Fence(Held::Silence));
        assert_eq!(after(0, ByteCount::gib(70), None, Before::default()), Verdict::Free);
    }

    proptest! {
        #[test]
        fn no_verdict_is_put_off_for_ever_and_free_is_free_at_any_time(
            used in 0_u64..100, before in proptest::option::of(0_u64..100), listed: bool, told: bool,
        ) {
            let before = Before { used: before.map(ByteCount::gib), listed: listed.then_some(OURS) };
            let pids = told.then_some(&[OURS][..]);
            let at = |seconds| after(seconds, ByteCount::gib(used), pids, before);
            prop_assert_ne!(at(10), Verdict::Wait);
            prop_assert_eq!(at(0) == Verdict::Free, at(10) == Verdict::Free);
        }
    }

    #[test]
    fn fences_are_told_with_numbers() {
        let memory = Held::Memory { used: ByteCount::gib(41), before: ByteCount::gib(1) };
        let told = [Held::ByProcess, memory, Held::Silence].map(|held| held.to_string());
        insta::assert_snapshot!(told.join("\n"), @r"
        the kernel did not end its executor within 60 s after it was killed; such a process waits for a device or a file system: see the kernel's log
        its executor is gone, and 10 s later 41.00 GiB of the device are still in use; before it was started 1.00 GiB were
        its executor is gone, and for 10 s NVML has not told whether the device's memory is free
        ");
    }
}
