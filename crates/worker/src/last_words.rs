//! A child's standard error: every line goes to the log, and the last ones that may say why it
//! ended are kept for the message about its end: warnings, errors, and whatever is not a log line.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use orchestrator_types::SliceId;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

/// Lines kept.
const LINES: usize = 10;
/// A longer line is cut into several, so that memory stays bounded.
const LINE_BYTES: u64 = 4096;
/// A pipe is empty as soon as its last writer is dead; a grandchild could hold it open.
const DRAIN: Duration = Duration::from_millis(500);

type Kept = Arc<Mutex<VecDeque<String>>>;

/// The reader of one executor's standard error. Its task ends when the pipe does; dropping this
/// ends it too.
#[derive(Debug)]
pub(crate) struct LastWords {
    kept: Kept,
    reader: AbortOnDropHandle<()>,
}

impl LastWords {
    /// Of `program`, which belongs to the slice if there is one.
    pub(crate) fn of(
        program: &'static str,
        slice: Option<SliceId>,
        stderr: impl AsyncRead + Unpin + Send + 'static,
    ) -> Self {
        let kept = Kept::default();
        let reader = tokio::spawn(read(program, slice, stderr, Arc::clone(&kept)));
        Self { kept, reader: AbortOnDropHandle::new(reader) }
    }

    /// The last lines of a process that has ended, to be put after a message: empty, or a colon
    /// and the lines.
    pub(crate) async fn told(&mut self) -> String {
        if !self.reader.is_finished() {
            // Late lines are missing from the message, and nothing worse.
            drop(timeout(DRAIN, &mut self.reader).await);
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = kept.iter().map(String::as_str).collect();
        if lines.is_empty() { String::new() } else { format!("; it wrote:\n{}", lines.join("\n")) }
    }
}

async fn read(
    program: &'static str,
    slice: Option<SliceId>,
    stderr: impl AsyncRead + Unpin,
    kept: Kept,
) {
    let slice = slice.as_ref().map(tracing::field::display);
    let mut stderr = BufReader::new(stderr);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match (&mut stderr).take(LINE_BYTES).read_until(b'\n', &mut bytes).await {
            Ok(0) => return,
            Ok(_) => {
                let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                tracing::info!(slice, "{program}: {line}");
                if !is_small_talk(&line) {
                    keep(&kept, line);
                }
            }
            Err(error) => {
                tracing::warn!(slice, %error, "cannot read the standard error of {program}");
                return;
            }
        }
    }
}

/// Whether the line is empty, or a log line below a warning: `<time>Z  INFO <where>: <what>`.
fn is_small_talk(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    let Some(first) = words.next() else { return true };
    let is_time = first.ends_with('Z') && first.starts_with(|c: char| c.is_ascii_digit());
    is_time && matches!(words.next(), Some("INFO" | "DEBUG" | "TRACE"))
}

fn keep(kept: &Kept, line: String) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() == LINES {
        kept.pop_front();
    }
    kept.push_back(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_lines_are_kept_whatever_they_hold() {
        let mut text: Vec<u8> = (0..50).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        text.extend([b'\xff'; 5000]);
        let mut words = LastWords::of("executor", None, std::io::Cursor::new(text));
        let told = words.told().await;
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!((lines[0], lines[1], lines.len()), ("; it wrote:", "line 42", 11));
        assert_eq!(lines[9].chars().count(), 4096, "an endless line is cut");
    }

    #[tokio::test]
    async fn log_lines_without_a_warning_are_left_out() {
        let text = "\
2026-11-30T09:26:39.104482Z  INFO orchestrator_executor::serve: ready socket=/s build=\"b\"
2026-11-30T09:26:40.104482Z  WARN attempt{run=01 unit=3}: orchestrator_executor: failed
2026-11-30T09:26:41.104482Z DEBUG attempt{run=01 unit=3}: orchestrator_executor: removed

thread 'attempts' panicked at src/crew.rs:7:5:
five is too much
2026-11-30T09:26:42.104482Z ERROR orchestrator_executor: cannot listen
";
        let mut words = LastWords::of("executor", None, std::io::Cursor::new(text));
        insta::assert_snapshot!(words.told().await, @r"
        ; it wrote:
        2026-11-30T09:26:40.104482Z  WARN attempt{run=01 unit=3}: orchestrator_executor: failed
        thread 'attempts' panicked at src/crew.rs:7:5:
        five is too much
        2026-11-30T09:26:42.104482Z ERROR orchestrator_executor: cannot listen
        ");
    }

    #[tokio::test]
    async fn silence_adds_nothing_to_a_message() {
        assert_eq!(LastWords::of("executor", None, tokio::io::empty()).told().await, "");
    }
}
