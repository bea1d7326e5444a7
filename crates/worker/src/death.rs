//! How a process ended, in words, and what that says about the unit that it was computing.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

use nix::sys::signal::Signal;
use orchestrator_types::FailureClass;

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
pub(crate) fn class(status: ExitStatus) -> (FailureClass, &'static str) {
    if status.signal() == Some(Signal::SIGKILL as i32) {
        let advice = "; usually this is the kernel's out-of-memory killer: give the slice more \
                      memory or a smaller batch";
        (FailureClass::Resource, advice)
    } else {
        (FailureClass::Crash, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(raw: i32) -> String {
        let status = ExitStatus::from_raw(raw);
        let (class, advice) = class(status);
        format!("{class}: {}{advice}", how(status))
    }

    #[test]
    fn ends_are_told_apart() {
        let exit_code_3 = 3 << 8;
        assert_eq!(told(exit_code_3), "crash: exited with code 3");
        assert_eq!(told(11), "crash: was ended by signal 11 (SIGSEGV)");
        assert_eq!(
            told(9),
            "resource: was ended by signal 9 (SIGKILL); usually this is the kernel's out-of-memory \
             killer: give the slice more memory or a smaller batch"
        );
    }
}
