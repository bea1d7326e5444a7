//! Exit codes, and errors that carry one.

use std::process::ExitCode;

use crate::say;

/// How the process ends. The table in `--help` and README is the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was evaluated.
    Complete = 0,
    /// A defect of ours, or of the machine.
    Internal = 1,
    /// The command line, or what it names: a run, a folder, an inventory.
    Usage = 2,
    /// The eval.yaml, or the data that it names, is wrong.
    BadEvaluation = 3,
    /// The run ended and something has no result; the report says what.
    Incomplete = 4,
    /// The slices are too small.
    DoesNotFit = 5,
    /// Nobody answers where the coordinator should be.
    Unreachable = 6,
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
    /// What to do now, a sentence of its own.
    advice: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: error.into(), advice: None }
    }

    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::new(Exit::Usage, error)
    }

    pub(crate) fn internal(error: impl Into<anyhow::Error>) -> Self {
        Self::new(Exit::Internal, error)
    }

    /// Adds what to do now, unless something nearer to the error has said it.
    pub(crate) fn advise(self, advice: String) -> Self {
        Self { advice: self.advice.or(Some(advice)), ..self }
    }

    /// The error and its causes in one line.
    pub(crate) fn text(&self) -> String {
        format!("{:#}", self.error)
    }

    /// What to do now.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// The whole chain, once.
    pub(crate) fn print(&self) {
        say(format_args!("error: {}", self.text()));
        self.advice.iter().for_each(say);
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::internal(error)
    }
}
