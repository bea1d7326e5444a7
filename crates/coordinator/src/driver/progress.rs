//! How far a run has come, for people: told often enough to look smooth, and no more.

use std::collections::BTreeMap;

use orchestrator_plan::Plan;
use orchestrator_run::{Millis, Run};
use orchestrator_types::{Component, FencingToken};

use super::AttemptReport;
use crate::event::Progress;

/// Shortest time between two reports of progress: ten a second look smooth.
const PROGRESS_MS: u64 = 100;

/// Rows done, by component.
pub(super) struct Tally {
    rows: BTreeMap<Component, Rows>,
    /// What live attempts reported last.
    reports: BTreeMap<FencingToken, AttemptReport>,
    told_at: Option<Millis>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rows {
    committed: u64,
    total: u64,
    told: Option<u64>,
}

impl Tally {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut rows: BTreeMap<Component, Rows> = BTreeMap::new();
        for block in plan.units.blocks() {
            rows.entry(block.component()).or_default().total += block.total_rows();
        }
        Self { rows, reports: BTreeMap::new(), told_at: None }
    }

    pub(super) fn commit(&mut self, component: Component, rows: u32) {
        self.rows.entry(component).or_default().committed += u64::from(rows);
    }

    pub(super) fn report(&mut self, report: AttemptReport) {
        self.reports.insert(report.token, report);
    }

    /// Rows of a unit of `rows` that its live attempt reported last.
    pub(super) fn rows_done(&self, token: FencingToken, rows: u64) -> u64 {
        let Some(report) = self.reports.get(&token) else { return 0 };
        let part = report.done.min(report.total).saturating_mul(rows);
        part.checked_div(report.total).unwrap_or(0)
    }

    /// Every component as it stands. What was told is never taken back: the rows of an attempt that
    /// was lost stay counted until its successors have passed them.
    pub(super) fn all(&mut self, run: &Run) -> Vec<Progress> {
        let mut done: BTreeMap<Component, u64> =
            self.rows.iter().map(|(component, rows)| (*component, rows.committed)).collect();
        self.reports.retain(|token, _| run.live().contains_key(token));
        for (token, report) in &self.reports {
            let (units, unit) = (&run.plan().units, run.live()[token].unit);
            let part = report.done.min(report.total).saturating_mul(units.rows(unit).into());
            // An executor counts in its own steps; a unit is worth its rows.
            *done.entry(units.component(unit)).or_default() +=
                part.checked_div(report.total).unwrap_or(0);
        }
        let total = |component: &Component| self.rows[component].total;
        done.iter()
            .map(|(component, &done)| Progress {
                component: *component,
                done: done.max(self.rows[component].told.unwrap_or(0)),
                total: total(component),
            })
            .collect()
    }

    /// What has changed since it was told last; nothing if that is too short ago.
    pub(super) fn changes(&mut self, run: &Run, now: Millis) -> Vec<Progress> {
        if self.told_at.is_some_and(|told| told.after(PROGRESS_MS) > now) {
            return Vec::new();
        }
        let mut changed = self.all(run);
        changed.retain(|progress| {
            let told = &mut self.rows.entry(progress.component).or_default().told;
            told.replace(progress.done) != Some(progress.done)
        });
        if !changed.is_empty() {
            self.told_at = Some(now);
        }
        changed
    }
}
