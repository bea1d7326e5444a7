//! Data goes to stdout, everything else to stderr.
//!
//! Invariant: a reader that has gone away (`| head`) stops nothing and is no error. `println!` and
//! `eprintln!` panic then, so this crate denies them.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

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

/// Tells the user on stderr. There is nobody left to tell if that fails.
pub(crate) fn say(line: impl Display) {
    drop(writeln!(io::stderr(), "{line}"));
}
