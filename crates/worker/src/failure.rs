//! Why an attempt of ours ended without a result, on its way to the coordinator.

use std::{error::Error, iter::successors};

use orchestrator_proto::{Refusal, v1};
use orchestrator_types::FailureClass;

use crate::client::TransferError;

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Decides what happens to the unit.
    pub(crate) class: FailureClass,
    /// For people.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into() }
    }

    /// The coordinator did not take what we did. Another worker may fare better.
    pub(crate) fn refused(what: &str, refusal: &Refusal) -> Self {
        Self::new(FailureClass::Infrastructure, format!("{what}: {refusal}"))
    }

    /// A blob did not arrive, here or there.
    pub(crate) fn transfer(what: &str, error: &TransferError) -> Self {
        let class = if error.is_disk_full() {
            FailureClass::Resource
        } else {
            FailureClass::Infrastructure
        };
        Self::new(class, format!("{what}: {}", chain(error)))
    }
}

impl From<Failure> for v1::Failure {
    fn from(Failure { class, message }: Failure) -> Self {
        Self { class: v1::FailureClass::from(class).into(), message }
    }
}

/// An error and its causes on one line: on the wire a cause has no place of its own.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let parts: Vec<String> =
        successors(Some(error), |&error| error.source()).map(ToString::to_string).collect();
    parts.join(": ")
}
