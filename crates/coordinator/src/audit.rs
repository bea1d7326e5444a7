//! Who changed what: one line in the log and in `audit.jsonl` for each call that changes something,
//! and for each that was refused for want of a right.
//!
//! Invariant: it never takes more than twice [`LIMIT_BYTES`] of the disk. What a worker computes is
//! told by the runs' own events, not here.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use orchestrator_proto::{Blocking, Refusal};
use serde::Serialize;

use crate::access::Caller;

const NAME: &str = "audit.jsonl";
/// The file before the present one.
const OLDER: &str = "audit.1.jsonl";
const LIMIT_BYTES: u64 = 16 << 20;

/// Where calls that change something are noted. Clones write into one file.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    book: Option<Arc<Book>>,
    blocking: Blocking,
}

#[derive(Debug)]
struct Book {
    path: PathBuf,
    older: PathBuf,
    open: Mutex<(File, u64)>,
}

#[derive(Serialize)]
struct Line<'a> {
    at_unix_ms: u64,
    who: Option<String>,
    address: Option<String>,
    call: &'a str,
    subject: &'a str,
    refused: Option<&'a str>,
}

impl Audit {
    /// Into the log only.
    pub(crate) const fn none(blocking: Blocking) -> Self {
        Self { book: None, blocking }
    }

    /// Also into the state folder.
    pub(crate) fn open(state: &Path, blocking: Blocking) -> io::Result<Self> {
        let (path, older) = (state.join(NAME), state.join(OLDER));
        let file = append(&path)?;
        let size = file.metadata()?.len();
        let book = Book { path, older, open: Mutex::new((file, size)) };
        Ok(Self { book: Some(Arc::new(book)), blocking })
    }

    /// Notes that `caller` asked for `call` on `subject`, and how that went.
    pub(crate) async fn note<T>(
        &self,
        caller: &Caller,
        call: &'static str,
        subject: &str,
        outcome: &Result<T, Refusal>,
    ) {
        let refused = outcome.as_ref().err().map(|refusal| refusal.message.as_str());
        let who = caller.name();
        let (name, address) = (who.as_deref().unwrap_or("anybody"), caller.address());
        let from = address.map(tracing::field::display);
        match refused {
            None => tracing::info!(target: "audit", who = name, from, subject, "{call}"),
            Some(why) => {
                tracing::warn!(target: "audit", who = name, from, subject, why, "{call} refused");
            }
        }
        let Some(book) = self.book.clone() else { return };
        let line = Line {
            at_unix_ms: now(),
            who,
            address: address.map(|address| address.to_string()),
            call,
            subject,
            refused,
        };
        let mut text = serde_json::to_string(&line).expect("a line is plain words");
        text.push('\n');
        let written = self.blocking.run(move || book.write(text.as_bytes())).await;
        if let Ok(Err(error)) = written {
            // What changes is durable in the store; its note is not worth refusing it.
            tracing::error!(target: "audit", %error, "the note could not be written");
        }
    }
}

impl Book {
    fn write(&self, line: &[u8]) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.1 + line.len() as u64 > LIMIT_BYTES {
            fs::rename(&self.path, &self.older)?;
            *open = (append(&self.path)?, 0);
        }
        if let Err(error) = open.0.write_all(line) {
            // What was written of it must not swallow the next one.
            drop(open.0.write_all(b"\n"));
            return Err(error);
        }
        open.1 += line.len() as u64;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use orchestrator_proto::RefusalCode;
    use orchestrator_tls::Role;

    use super::*;

    #[tokio::test]
    async fn every_change_is_one_line_and_the_file_stays_small() {
        let state = tempfile::tempdir().unwrap();
        let audit = Audit::open(state.path(), Blocking::Inline).unwrap();
        let caller = Caller::known(Role::Client, "a");
        audit.note(&caller, "cancel", "run r", &Ok(())).await;
        let refusal = Refusal::new(RefusalCode::Denied, "no\n{}");
        audit.note::<()>(&Caller::default(), "cancel", "run r", &Err(refusal)).await;
        let text = fs::read_to_string(state.path().join(NAME)).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["who"], &lines[0]["refused"]), (&"client/a".into(), &().into()));
        assert_eq!((&lines[1]["who"], &lines[1]["refused"]), (&().into(), &"no\n{}".into()));

        let book = audit.book.as_ref().unwrap();
        book.open.lock().unwrap().1 = LIMIT_BYTES;
        audit.note(&caller, "submit", "run s", &Ok(())).await;
        assert_eq!(fs::read_to_string(state.path().join(OLDER)).unwrap(), text);
        assert!(fs::read_to_string(state.path().join(NAME)).unwrap().contains("run s"));
    }
}
