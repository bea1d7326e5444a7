//! [`Hunt`]: which samples kill their executor.
//!
//! A unit that killed two executors runs alone in a fresh one. If that dies too, and bad samples may
//! be set aside, its rows are bisected: probes compute a part and only their survival counts. A row
//! is guilty when it kills an executor alone and another row alone does not; then the rest is
//! computed without it. That takes about log2 n + 4 runs for each guilty row, and one more for each
//! other guilty row that was taken as the control.
//!
//! Source: counting deaths only when alone avoids the blame of bystanders that Dask's `KilledWorker`
//! is known for (dask/distributed#2694).

use orchestrator_types::Shard;

use crate::Terms;

/// Guilty rows of one unit beyond which it is given up: that many are no accident of the data.
const MOST_GUILTY: usize = 8;
/// Hunts that may end without a guilty row: the deaths do not come back, and that is no proof.
const MOST_IN_VAIN: u32 = 2;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Hunt {
    /// The unit's rows; none if they cannot be set aside.
    rows: Option<Shard>,
    guilty: Vec<u32>,
    /// Hunts without a result.
    in_vain: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Everything but the guilty rows, for the result.
    Rest,
    /// One of `suspects` kills; their first half is computed.
    Halving { suspects: Shard },
    /// This row alone.
    Proof { row: u32 },
    /// `row` kills; do others too? `tried` of them did.
    Control { row: u32, other: u32, tried: u32 },
}

/// What an ended attempt means for the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another attempt follows.
    Again,
    /// Nothing helps: the unit fails with its last failure.
    GiveUp,
}

impl Hunt {
    /// A unit that has killed executors beside others. `rows` are its samples, if bad ones may be
    /// set aside.
    pub(crate) fn new(rows: Option<Shard>) -> Self {
        let rows = rows.filter(|rows| rows.len() > 1);
        Self { rows, guilty: Vec::new(), in_vain: 0, phase: Phase::Rest }
    }

    /// How the next attempt is computed.
    pub(crate) fn terms(&self) -> Terms {
        let Some(rows) = self.rows else {
            return Terms { alone: true, ..Terms::default() };
        };
        let computed = match self.phase {
            Phase::Rest => rows,
            Phase::Halving { suspects } => first_half(suspects),
            Phase::Proof { row } | Phase::Control { other: row, .. } => one(row),
        };
        let reason = "computing it ends the executor".to_owned();
        let set_aside = self.without(rows, computed);
        Terms { alone: true, set_aside, reason, probe: self.phase != Phase::Rest }
    }

    /// The rows outside of `computed`, and the guilty ones inside.
    fn without(&self, rows: Shard, computed: Shard) -> Vec<Shard> {
        let outside = [
            Shard { start: rows.start, end: computed.start },
            Shard { start: computed.end, end: rows.end },
        ];
        let inside = self.guilty.iter().filter(|row| computed.range().contains(&(**row as usize)));
        let mut all: Vec<Shard> = outside.into_iter().chain(inside.copied().map(one)).collect();
        all.retain(|part| !part.is_empty());
        all.sort_by_key(|part| part.start);
        all
    }

    /// The probe's executor lived.
    pub(crate) fn survived(&mut self) -> Next {
        match self.phase {
            // A result: the unit has ended, and nobody asks.
            Phase::Rest => Next::Again,
            Phase::Halving { suspects } => self.narrow(second_half(suspects)),
            Phase::Proof { .. } => self.nothing_found(),
            Phase::Control { row, .. } => {
                self.guilty.push(row);
                self.guilty.sort_unstable();
                self.phase = Phase::Rest;
                Next::Again
            }
        }
    }

    /// The attempt's executor died.
    pub(crate) fn died(&mut self) -> Next {
        let Some(rows) = self.rows else { return Next::GiveUp };
        match self.phase {
            Phase::Rest if self.guilty.len() >= MOST_GUILTY => Next::GiveUp,
            Phase::Rest => self.narrow(rows),
            Phase::Halving { suspects } => self.narrow(first_half(suspects)),
            Phase::Proof { row } => self.control(rows, row, 0),
            Phase::Control { row, tried, .. } => self.control(rows, row, tried + 1),
        }
    }

    /// Another row alone, the `tried`th from the end. When too many kill, it is not the rows.
    fn control(&mut self, rows: Shard, row: u32, tried: u32) -> Next {
        let innocent = |other: &u32| *other != row && !self.guilty.contains(other);
        let mut others = (rows.start..rows.end).rev().filter(innocent);
        match others.nth(tried as usize).filter(|_| tried as usize <= MOST_GUILTY) {
            Some(other) => {
                self.phase = Phase::Control { row, other, tried };
                Next::Again
            }
            None => Next::GiveUp,
        }
    }

    fn narrow(&mut self, suspects: Shard) -> Next {
        let mut left = (suspects.start..suspects.end).filter(|row| !self.guilty.contains(row));
        self.phase = match (left.next(), left.next()) {
            (Some(row), None) => Phase::Proof { row },
            (Some(_), Some(_)) => Phase::Halving { suspects },
            (None, _) => return self.nothing_found(),
        };
        Next::Again
    }

    /// Not this row, and not the others: perhaps it does not come back.
    const fn nothing_found(&mut self) -> Next {
        self.in_vain += 1;
        self.phase = Phase::Rest;
        if self.in_vain > MOST_IN_VAIN { Next::GiveUp } else { Next::Again }
    }
}

const fn one(row: u32) -> Shard {
    Shard { start: row, end: row + 1 }
}

const fn middle(shard: Shard) -> u32 {
    shard.start + (shard.end - shard.start).div_ceil(2)
}

const fn first_half(shard: Shard) -> Shard {
    Shard { start: shard.start, end: middle(shard) }
}

const fn second_half(shard: Shard) -> Shard {
    Shard { start: middle(shard), end: shard.end }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Runs a hunt where `kills` decides; gives the rows of the result, or nothing, and the runs.
    fn hunted(rows: Shard, kills: impl Fn(&BTreeSet<u32>) -> bool) -> (Option<BTreeSet<u32>>, u32) {
        let mut hunt = Hunt::new(Some(rows));
        for runs in 1..10_000 {
            let terms = hunt.terms();
            assert!(terms.alone);
            let aside = |row: &u32| {
                terms.set_aside.iter().any(|part| part.range().contains(&(*row as usize)))
            };
            let computed: BTreeSet<u32> =
                (rows.start..rows.end).filter(|row| !aside(row)).collect();
            let next = match (kills(&computed), terms.probe) {
                (true, _) => hunt.died(),
                (false, true) => hunt.survived(),
                (false, false) => return (Some(computed), runs),
            };
            if next == Next::GiveUp {
                return (None, runs);
            }
        }
        panic!("the hunt does not end")
    }

    proptest! {
        #[test]
        fn exactly_the_guilty_rows_are_set_aside(
            start in 0_u32..1_000,
            len in 2_u32..600,
            picks in prop::collection::btree_set(any::<u32>(), 0..=MOST_GUILTY),
        ) {
            let rows = Shard { start, end: start + len };
            let guilty: BTreeSet<u32> = picks.iter().map(|pick| start + pick % len).collect();
            prop_assume!(guilty.len() < len as usize);
            let (computed, runs) = hunted(rows, |computed| !computed.is_disjoint(&guilty));
            let all: BTreeSet<u32> = (rows.start..rows.end).collect();
            prop_assert_eq!(computed, Some(&all - &guilty));
            let each = len.ilog2() + 5 + u32::try_from(guilty.len()).unwrap();
            prop_assert!(runs <= 1 + each * u32::try_from(guilty.len()).unwrap(), "{} runs", runs);
        }
    }

    #[test]
    fn rows_are_not_blamed_for_what_any_row_does() {
        assert_eq!(hunted(Shard { start: 0, end: 256 }, |_| true).0, None);
    }

    #[test]
    fn a_death_that_does_not_come_back_blames_nobody() {
        let deaths = std::cell::Cell::new(0);
        let once = |_: &BTreeSet<u32>| deaths.replace(deaths.get() + 1) == 0;
        let (computed, _) = hunted(Shard { start: 0, end: 16 }, once);
        assert_eq!(computed, Some((0..16).collect()));
    }

    #[test]
    fn deaths_of_the_whole_alone_end_the_hunt() {
        let (computed, _) = hunted(Shard { start: 0, end: 16 }, |rows| rows.len() == 16);
        assert_eq!(computed, None);
    }

    #[test]
    fn without_rows_to_set_aside_the_second_death_is_the_last() {
        for rows in [None, Some(Shard { start: 3, end: 4 })] {
            let mut hunt = Hunt::new(rows);
            assert_eq!(hunt.terms(), Terms { alone: true, ..Terms::default() });
            assert_eq!(hunt.died(), Next::GiveUp);
        }
    }
}
