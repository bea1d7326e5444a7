//! Bugs that a test plants on purpose, to show that the simulation would find them.
//!
//! Without the feature `planted`, which no product is built with, [`is_planted`] is `false` at
//! compile time and leaves nothing behind.

/// A defect of the kind that peers have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A late or forged attempt may commit an open unit.
    AnyTokenCommits = 1,
    /// Callers and watchers are told before the transaction is durable.
    ToldBeforeDurable,
    /// Tokens start anew with each life of the coordinator.
    TokensStartAnew,
    /// Both of two twins count.
    TwinsCountTwice,
    /// The loser of two twins lives on.
    LoserLivesOn,
    /// Leases expire by the wall clock.
    WallClock,
    /// A silent worker is forgotten, and its attempts with it.
    SilentlyForgotten,
    /// A restart forgets that samples were set aside.
    SetAsideForgotten,
    /// A result counts although its blob never arrived.
    BlobNotLookedFor,
    /// A run that ends in a transaction that fails is never taken up again.
    EndNotTakenBack,
    /// What a probe computes counts as the unit's result.
    ProbesCount,
    /// A restart computes what was committed once more.
    CommittedForgotten,
    /// A slice is used again while its executor may still hold memory.
    SliceFreedOnSuspicion,
    /// The end of a stream of bytes counts as the end of what it carries.
    EndOfStreamBelieved,
    /// A request that is sent again is another request.
    RetriesAreNew,
}

impl Bug {
    /// Every one.
    pub const ALL: [Self; 15] = [
        Self::AnyTokenCommits,
        Self::ToldBeforeDurable,
        Self::TokensStartAnew,
        Self::TwinsCountTwice,
        Self::LoserLivesOn,
        Self::WallClock,
        Self::SilentlyForgotten,
        Self::SetAsideForgotten,
        Self::BlobNotLookedFor,
        Self::EndNotTakenBack,
        Self::ProbesCount,
        Self::CommittedForgotten,
        Self::SliceFreedOnSuspicion,
        Self::EndOfStreamBelieved,
        Self::RetriesAreNew,
    ];
}

/// Whether this bug is planted now.
#[cfg(not(feature = "planted"))]
#[inline]
pub const fn is_planted(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Whether this bug is planted now.
#[cfg(feature = "planted")]
pub fn is_planted(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Plants one bug in this process, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), std::sync::atomic::Ordering::Relaxed);
}
