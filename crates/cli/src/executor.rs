//! The executor's program, asked for one answer: what devices there are, where a tower's bytes go.
//!
//! It links libtorch and this binary does not, so what only libtorch knows is asked of it. The last
//! line that it says before it fails is the reason.

use std::{
    env,
    ffi::OsStr,
    io::{BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::Context as _;
use orchestrator_types::wording::steers;
use serde::de::DeserializeOwned;

use crate::say;

/// Exit code by which the program says that a model does not fit.
const DOES_NOT_FIT: i32 = 5;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// What was asked for does not fit the device.
    DoesNotFit(anyhow::Error),
    /// Anything else.
    Failed(anyhow::Error),
}

impl NoAnswer {
    pub(crate) fn into_error(self) -> anyhow::Error {
        match self {
            Self::DoesNotFit(error) | Self::Failed(error) => error,
        }
    }
}

impl From<anyhow::Error> for NoAnswer {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Where the program is: `ORCHESTRATOR_EXECUTOR`, or beside this one.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    let named = env::var_os("ORCHESTRATOR_EXECUTOR").map(PathBuf::from);
    Ok(orchestrator_worker::find_executor(named)?)
}

/// Runs `program` to its end and reads the JSON document on its standard output.
pub(crate) fn ask<T: DeserializeOwned>(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
) -> Result<T, NoAnswer> {
    converse(program, arguments, |_| {})
}

/// As [`ask`], and passes its progress on to the user as it comes.
pub(crate) fn ask_aloud<T: DeserializeOwned>(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
) -> Result<T, NoAnswer> {
    converse(program, arguments, say)
}

fn converse<T: DeserializeOwned>(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
    tell: fn(String),
) -> Result<T, NoAnswer> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {}", program.display()))?;
    let (answer, last) = listen(&mut child, tell)?;
    let status = child.wait().context("failed to wait for the executor")?;
    if status.success() {
        last.into_iter().for_each(tell);
        let unreadable = || format!("{} gave an answer that cannot be read", program.display());
        return Ok(serde_json::from_slice(&answer).with_context(unreadable)?);
    }
    let reason = match last {
        Some(line) => anyhow::anyhow!(line),
        None => anyhow::anyhow!("{} ended with {status} and said nothing", program.display()),
    };
    Err(if status.code() == Some(DOES_NOT_FIT) {
        NoAnswer::DoesNotFit(reason)
    } else {
        NoAnswer::Failed(reason)
    })
}

/// Its standard output, and the last line of its progress, which is not passed on yet.
fn listen(child: &mut Child, tell: fn(String)) -> anyhow::Result<(Vec<u8>, Option<String>)> {
    let mut output = child.stdout.take().context("the executor has no standard output")?;
    let progress = child.stderr.take().context("the executor has no standard error")?;
    thread::scope(|scope| {
        let relayed = scope.spawn(|| relay(BufReader::new(progress), tell));
        let mut answer = Vec::new();
        output.read_to_end(&mut answer).context("failed to read the executor's answer")?;
        Ok((answer, relayed.join().unwrap_or_default()))
    })
}

/// Passes lines on, each when the next one is there.
fn relay(mut progress: impl std::io::BufRead, tell: fn(String)) -> Option<String> {
    let mut last: Option<String> = None;
    let mut line = Vec::new();
    // A broken pipe ends the relay as the end of the stream does.
    while progress.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().replace(steers, "\u{fffd}");
        line.clear();
        if !text.is_empty() {
            last.replace(text).into_iter().for_each(tell);
        }
    }
    last
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A program that answers from files.
    pub(crate) fn stand_in() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/executor.sh")
    }

    #[test]
    fn the_last_line_of_a_failure_is_its_reason() {
        let ask = |precision: &str| {
            ask::<serde_json::Value>(&stand_in(), &["profile", "--precision", precision])
        };
        assert_eq!(ask("fp32").unwrap()["rows"], 64);
        let NoAnswer::DoesNotFit(reason) = ask("bf16").unwrap_err() else { panic!("another kind") };
        insta::assert_snapshot!(reason, @"vision never fits: 12.00 MiB of weights, quota 8.00 MiB");
        let NoAnswer::Failed(reason) = ask("fp16").unwrap_err() else { panic!("another kind") };
        assert!(reason.to_string().ends_with("gave an answer that cannot be read"), "{reason}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = ask::<u8>(Path::new("/nowhere/executor"), &["devices"]).unwrap_err();
        let error = error.into_error().to_string();
        assert_eq!(error, "failed to start /nowhere/executor");
    }
}
