//! Why a lease was not granted: *never fits* or *not now*, how much is missing, who holds it.

use std::fmt;

use orchestrator_types::ByteCount;

use crate::{Holder, Owner};

/// Holders that a message names before it counts the rest.
const NAMED: usize = 4;

/// A lease that was not granted. Nothing changed in the book.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// More than the quota less what is never returned: waiting does not help.
    #[error(
        "never fits: {owner} asked for {asked}, and the slice's quota is {quota}{}; {missing} \
         missing; {}", Kept(*.kept), .owner.advice()
    )]
    NeverFits {
        /// Who asked.
        owner: Owner,
        /// Bytes that it would hold with this lease.
        asked: ByteCount,
        /// All that the slice may hold.
        quota: ByteCount,
        /// What of it the device's runtime holds for as long as the process lives.
        kept: ByteCount,
        /// Bytes that the quota is too small by.
        missing: ByteCount,
    },
    /// It fits the quota, but not beside what others hold.
    #[error(
        "not now: {owner} asked for {asked}, and {free} of the slice's quota are free; {missing} \
         missing; held by {}; wait until enough is returned, or ask for less", Held(.holders)
    )]
    NotNow {
        /// Who asked.
        owner: Owner,
        /// Bytes asked for, in addition to those that the lease already holds.
        asked: ByteCount,
        /// Bytes that nobody holds.
        free: ByteCount,
        /// Bytes that must come back first.
        missing: ByteCount,
        /// Who holds what, largest first.
        holders: Vec<Holder>,
    },
}

impl Owner {
    /// What to do when the quota can never hold this owner's bytes.
    const fn advice(&self) -> &'static str {
        match self {
            Self::Weights { .. } => "offer a larger slice, raise its quota, or lower the precision",
            Self::Activations { .. } => "compute fewer rows at once or raise the slice's quota",
            Self::ScoreTiles => "score smaller tiles or raise the slice's quota",
            Self::Staging { .. } => "stage fewer samples or raise the slice's quota",
            Self::Texts | Self::Runtime => "raise the slice's quota",
        }
    }
}

/// What is never returned, as part of a sentence; nothing where that is nothing.
struct Kept(ByteCount);

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == ByteCount::ZERO {
            return Ok(());
        }
        write!(f, ", of which the device's runtime keeps {}", self.0)
    }
}

/// Holders as a list in a sentence.
struct Held<'a>(&'a [Holder]);

impl fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nobody");
        }
        for (position, holder) in self.0.iter().take(NAMED).enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({})", holder.owner, holder.bytes)?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            rest => write!(f, " and {rest} more"),
        }
    }
}
