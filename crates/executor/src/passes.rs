//! Forward passes that survive a refusal of memory.
//!
//! Invariants:
//! - A pass holds a lease of its predicted peak while it runs.
//! - Rows that are finished stay finished: after a refusal only the rows of the refused pass are run
//!   again, and each row's result is written once.
//! - On the CPU a refused pass is first run again by itself, in its own shape, so that its bits stay;
//!   only then is it split.

use std::ops::Range;

use orchestrator_engine::EngineError;
use orchestrator_footprint::{Kind, rows_that_fit};
use orchestrator_ledger::{Lease, Owner, Refusal};
use orchestrator_torch::allocator;
use orchestrator_types::{ByteCount, OnOom};

use crate::{attempt::Attempt, error::ExecuteError, slice::Slice, tower::State};

/// How the rows of one tower are passed.
pub(crate) struct Passes<'a> {
    pub(crate) slice: &'a Slice,
    pub(crate) state: &'a State,
    pub(crate) attempt: &'a Attempt,
    pub(crate) on_oom: OnOom,
}

/// Rows that are not finished.
struct Waiting {
    rows: Range<usize>,
    /// Whether everybody else has to return their activations first.
    alone: bool,
}

impl Passes<'_> {
    /// Runs `pass` over `rows` of `tokens` tokens each, in one or several ranges, in order.
    pub(crate) fn run(
        &self,
        rows: Range<usize>,
        tokens: u32,
        pass: &mut dyn FnMut(Range<usize>) -> Result<(), EngineError>,
    ) -> Result<(), ExecuteError> {
        let mut waiting = vec![Waiting { rows, alone: false }];
        while let Some(Waiting { rows, alone }) = waiting.pop() {
            if self.attempt.is_stopped() {
                return Err(ExecuteError::Cancelled);
            }
            let most = self.most(count(&rows), tokens, alone);
            if (most as usize) < rows.len() {
                let middle = rows.start + most as usize;
                waiting.push(Waiting { rows: middle..rows.end, alone: false });
                waiting.push(Waiting { rows: rows.start..middle, alone });
                continue;
            }
            let lease = self.lease(count(&rows), tokens, alone)?;
            self.slice.count_pass();
            let passed = pass(rows.clone());
            drop(lease);
            match passed {
                Ok(()) => self.feel(count(&rows), tokens),
                Err(EngineError::OutOfMemory(words)) if self.on_oom == OnOom::Split => {
                    self.refused(rows, tokens, alone, words, &mut waiting)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// How many of `rows` rows may pass together. Rows that pass alone are tried as they are: whether
    /// they fit is what is to be found out.
    fn most(&self, rows: u32, tokens: u32, alone: bool) -> u32 {
        let known = self.state.known();
        let learned = known.learned.cap(rows, tokens);
        if alone {
            return learned;
        }
        let room = self.slice.usable(self.beside());
        rows_that_fit(&known.forecast, tokens, room, learned).unwrap_or(1)
    }

    /// What activations may take together.
    fn beside(&self) -> ByteCount {
        let ledger = self.slice.ledger();
        let others = ledger.held_by(|owner| !is_activation(owner));
        ByteCount::bytes(ledger.quota().as_u64().saturating_sub(others.as_u64()))
    }

    fn lease(&self, rows: u32, tokens: u32, alone: bool) -> Result<Lease, ExecuteError> {
        let component = self.state.component;
        let owner = || Owner::Activations { component, rows };
        let room = self.beside();
        let predicted = self.state.activations(rows, tokens);
        if !alone && predicted > room {
            // Not even one row by itself: said before it is tried.
            drop(self.slice.lease(owner(), predicted)?);
        }
        let bytes = if alone { room } else { predicted.min(room) };
        match self.slice.lease_when_free(owner(), bytes, self.attempt) {
            Ok(lease) => Ok(lease),
            Err(Refusal::NotNow { .. }) if self.attempt.is_stopped() => {
                Err(ExecuteError::Cancelled)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Learns from a refusal and puts the rows back, to be tried otherwise.
    fn refused(
        &self,
        rows: Range<usize>,
        tokens: u32,
        alone: bool,
        words: String,
        waiting: &mut Vec<Waiting>,
    ) -> Result<(), ExecuteError> {
        tracing::warn!(rows = rows.len(), tokens, component = %self.state.component, words,
            "memory was refused");
        self.slice.give_back_cache()?;
        if self.slice.kind() == Kind::Cpu && !alone {
            waiting.push(Waiting { rows, alone: true });
            return Ok(());
        }
        if rows.len() == 1 {
            return Err(EngineError::OutOfMemory(words).into());
        }
        self.slice.meter().note_split();
        self.state.known().learned.refuse(count(&rows), tokens);
        let middle = rows.start + rows.len() / 2;
        waiting.push(Waiting { rows: middle..rows.end, alone });
        waiting.push(Waiting { rows: rows.start..middle, alone });
        Ok(())
    }

    /// The allocator that returns its cache again and again will soon refuse: shrink before.
    fn feel(&self, rows: u32, tokens: u32) {
        if self.slice.kind() == Kind::Cpu {
            return;
        }
        let Ok(counts) = allocator::statistics(self.slice.device()) else { return };
        let mut known = self.state.known();
        if known.pressure.feel(counts.retries) && rows > 1 {
            tracing::info!(rows, "the allocator is short of memory: smaller batches from here on");
            known.learned.refuse(rows, tokens);
        }
    }
}

const fn is_activation(owner: &Owner) -> bool {
    matches!(owner, Owner::Activations { .. })
}

fn count(rows: &Range<usize>) -> u32 {
    u32::try_from(rows.len()).unwrap_or(u32::MAX)
}
