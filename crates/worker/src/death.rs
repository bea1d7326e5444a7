//! How a process ended, in words, and what that says about the unit that it was computing.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

use nix::sys::signal::Signal;
use orchestrator_types::FailureClass;

/// Whether the kernel's out-of-memory killer struck while the process lived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OomKill {
    /// Its counter grew.
    Counted,
    /// It did not.
    None,
    /// The kernel does not count.
    Untold,
}

impl OomKill {
    /// From the counter before and after.
    pub(crate) fn between(before: Option<u64>, after: Option<u64>) -> Self {
        match (before, after) {
            (Some(before), Some(after)) if after > before => Self::Counted,
            (Some(_), Some(_)) => Self::None,
            (None, _) | (_, None) => Self::Untold,
        }
    }
}

/// In words: `exited with code 3`, `was ended by signal 11 (SIGSEGV)`.
pub(crate) fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(number)) => {
            let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
            format!("was ended by signal {number} ({name})")
        }
        (None, None) => format!("ended ({status})"),
    }
}

/// The class of an attempt whose executor ended without our doing, and advice where there is some.
pub(crate) fn class(status: ExitStatus, oom_kill: OomKill) -> (FailureClass, &'static str) {
    if status.signal() != Some(Signal::SIGKILL as i32) {
        return (FailureClass::Crash, "");
    }
    match oom_kill {
        OomKill::Counted => {
            let advice = " by the kernel's out-of-memory killer: give the slice more memory or a \
                          smaller batch";
            (FailureClass::Resource, advice)
        }
        OomKill::None => {
            (FailureClass::Crash, " by somebody else: the out-of-memory killer took nothing")
        }
        OomKill::Untold => {
            let advice = "; the kernel does not tell whether by its out-of-memory killer: look \
                          into its log";
            (FailureClass::Crash, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(raw: i32, oom_kill: OomKill) -> String {
        let status = ExitStatus::from_raw(raw);
        let (class, advice) = class(status, oom_kill);
        format!("{class}: {}{advice}", how(status))
    }

    #[test]
    fn ends_are_told_apart() {
        let exit_code_3 = 3 << 8;
        let told = [
            told(exit_code_3, OomKill::None),
            told(11, OomKill::Counted),
            told(9, OomKill::Counted),
            told(9, OomKill::None),
            told(9, OomKill::Untold),
        ];
        insta::assert_snapshot!(told.join("\n"), @r"
        crash: exited with code 3
        crash: was ended by signal 11 (SIGSEGV)
        resource: was ended by signal 9 (SIGKILL) by the kernel's out-of-memory killer: give the slice more memory or a smaller batch
        crash: was ended by signal 9 (SIGKILL) by somebody else: the out-of-memory killer took nothing
        crash: was ended by signal 9 (SIGKILL); the kernel does not tell whether by its out-of-memory killer: look into its log
        ");
    }

    #[test]
    fn only_a_counter_that_grew_is_a_kill() {
        let between = OomKill::between;
        assert_eq!(between(Some(2), Some(3)), OomKill::Counted);
        assert_eq!(between(Some(3), Some(3)), OomKill::None);
        // The process was moved to another cgroup.
        assert_eq!(between(Some(3), Some(1)), OomKill::None);
        for (before, after) in [(None, None), (None, Some(1)), (Some(1), None)] {
            assert_eq!(between(before, after), OomKill::Untold);
        }
    }
}
