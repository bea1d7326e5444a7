//! Data goes to stdout, everything else to stderr.
//!
//! Invariant: a reader that has gone away (`| head`) stops nothing and is no error. `println!` and
//! `eprintln!` panic then, so this crate denies them.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use orchestrator_types::wording::steers;

use crate::exit::{Exit, Failure};

/// Prints data to stdout. A full disk behind it is an error.
pub(crate) fn print_line(text: &str) -> Result<Exit, Failure> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::internal(anyhow::Error::new(error).context("failed to write to stdout")))
        }
        _ => Ok(Exit::Complete),
    }
}

/// Tells the user on stderr. There is nobody left to tell if that fails. Names and messages of others
/// are in many lines: none drives the terminal.
pub(crate) fn say(line: impl Display) {
    let line = line.to_string().replace(|c| steers(c) && !matches!(c, '\n' | '\t'), "\u{fffd}");
    drop(writeln!(io::stderr(), "{line}"));
}
