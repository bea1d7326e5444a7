//! Exit codes, and errors that carry one.

use std::process::ExitCode;

/// How the process ends. The table in `--help` and README is the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was evaluated.
    Complete = 0,
    /// A defect of ours, or of the machine.
    Internal = 1,
    /// The eval.yaml, or the data that it names, is wrong.
    BadEvaluation = 3,
    /// The run ended and something has no result; the report says what.
    Incomplete = 4,
    /// The slices are too small.
    DoesNotFit = 5,
    /// Ctrl-C, or a cancelled run.
    Cancelled = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error on its way to the user.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    error: anyhow::Error,
}

impl Failure {
    pub(crate) fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: error.into() }
    }

    pub(crate) fn internal(error: impl Into<anyhow::Error>) -> Self {
        Self::new(Exit::Internal, error)
    }

    /// The whole chain, once.
    pub(crate) fn print(&self) {
        eprintln!("error: {:#}", self.error);
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::internal(error)
    }
}
