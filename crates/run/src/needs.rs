//! [`Needs`]: which units wait for which. A few bytes a unit, for there may be millions.

use orchestrator_plan::{Plan, UnitRange};
use orchestrator_types::UnitId;

/// Inputs that are not there yet, and who waits for them.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    /// Ranges and single units of which something is missing, by unit.
    missing: Vec<u16>,
    /// Waiting for the unit `u` alone: `waiting[first[u]..first[u + 1]]`.
    first: Vec<u32>,
    waiting: Vec<UnitId>,
    /// Ranges of more than one unit; few.
    wide: Vec<Wide>,
}

#[derive(Clone, Debug)]
struct Wide {
    range: UnitRange,
    missing: u32,
    by: Vec<UnitId>,
}

impl Needs {
    /// Of a plan of which nothing is committed.
    pub(crate) fn new(plan: &Plan) -> Self {
        let count = plan.units.len();
        let mut needs = Self {
            missing: vec![0; count],
            first: vec![0; count + 1],
            waiting: Vec::new(),
            wide: Vec::new(),
        };
        let each = || {
            let units = plan.units.ids();
            units.flat_map(|unit| plan.units.needs(unit).map(move |need| (unit, need)))
        };
        for (_, need) in each().filter(|(_, need)| need.len() == 1) {
            needs.first[need.start as usize + 1] += 1;
        }
        for at in 0..count {
            needs.first[at + 1] += needs.first[at];
        }
        let mut next = needs.first.clone();
        needs.waiting = vec![UnitId(0); needs.first[count] as usize];
        for (unit, need) in each() {
            if need.is_empty() {
                continue;
            }
            needs.missing[unit.0 as usize] += 1;
            if need.len() == 1 {
                let place = &mut next[need.start as usize];
                needs.waiting[*place as usize] = unit;
                *place += 1;
            } else {
                needs.wide_for(need).by.push(unit);
            }
        }
        needs
    }

    fn wide_for(&mut self, range: UnitRange) -> &mut Wide {
        let at = self.wide.iter().position(|wide| wide.range == range).unwrap_or_else(|| {
            let missing = range.end - range.start;
            self.wide.push(Wide { range, missing, by: Vec::new() });
            self.wide.len() - 1
        });
        &mut self.wide[at]
    }

    /// Whether everything that the unit reads is committed.
    pub(crate) fn are_met(&self, unit: UnitId) -> bool {
        self.missing[unit.0 as usize] == 0
    }

    /// Takes in that a unit is committed; gives those that have all their inputs with it.
    pub(crate) fn committed(&mut self, unit: UnitId) -> Vec<UnitId> {
        let Self { missing, first, waiting, wide } = self;
        let mut met = Vec::new();
        let mut one_less = |unit: &UnitId| {
            let missing = &mut missing[unit.0 as usize];
            *missing -= 1;
            if *missing == 0 {
                met.push(*unit);
            }
        };
        let at = unit.0 as usize;
        waiting[first[at] as usize..first[at + 1] as usize].iter().for_each(&mut one_less);
        for wide in wide.iter_mut().filter(|wide| wide.range.contains(unit)) {
            wide.missing -= 1;
            if wide.missing == 0 {
                wide.by.iter().for_each(&mut one_less);
            }
        }
        met
    }

    /// Who reads the unit's result.
    pub(crate) fn readers(&self, unit: UnitId) -> impl Iterator<Item = UnitId> {
        let at = unit.0 as usize;
        let narrow = &self.waiting[self.first[at] as usize..self.first[at + 1] as usize];
        let wide = self.wide.iter().filter(move |wide| wide.range.contains(unit));
        narrow.iter().chain(wide.flat_map(|wide| &wide.by)).copied()
    }
}
