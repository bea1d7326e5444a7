//! One line of a diagnosis.

use serde::Serialize;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; work goes on.
    Note,
    /// Something that this machine could do, it cannot.
    Problem,
}

impl Level {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

/// What a machine can do for an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Run one by itself.
    Submit,
    /// Work for a coordinator.
    Worker,
    /// Be one.
    Coordinator,
}

impl Role {
    pub(crate) const ALL: [Self; 3] = [Self::Submit, Self::Worker, Self::Coordinator];

    /// The verb.
    pub(crate) const fn verb(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Worker => "worker",
            Self::Coordinator => "coordinator",
        }
    }
}

/// What was found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What it is about, in a word.
    pub(crate) topic: &'static str,
    pub(crate) text: String,
    pub(crate) fix: Option<String>,
    /// What cannot be done because of it.
    pub(crate) stops: Vec<Role>,
}

impl Finding {
    pub(crate) fn ok(topic: &'static str, text: impl Into<String>) -> Self {
        Self { level: Level::Ok, topic, text: text.into(), fix: None, stops: Vec::new() }
    }

    pub(crate) fn note(topic: &'static str, text: impl Into<String>) -> Self {
        Self { level: Level::Note, ..Self::ok(topic, text) }
    }

    pub(crate) fn problem(topic: &'static str, text: impl Into<String>, stops: &[Role]) -> Self {
        Self { level: Level::Problem, stops: stops.to_vec(), ..Self::ok(topic, text) }
    }

    pub(crate) fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    /// As messages of this project are: what is wrong; what to do.
    pub(crate) fn split(self) -> Self {
        match self.text.split_once("; ") {
            Some((text, fix)) => Self { text: text.to_owned(), fix: Some(fix.to_owned()), ..self },
            None => self,
        }
    }
}
