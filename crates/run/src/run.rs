//! [`Run`]: the units of one plan and the attempts on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use orchestrator_plan::{Plan, Unit, UnitRange};
use orchestrator_types::{Component, FailureClass, FencingToken, SessionId, SliceId, UnitId};

use crate::{
    Attempt, Command, Committed, Event, Millis, RunState, UnitOutcome, backoff,
    unit::{Failures, UnitState},
};

/// A range of units that others wait for.
#[derive(Clone, Debug)]
struct Needed {
    /// Its units that are not committed yet.
    missing: usize,
    /// Who waits.
    by: Vec<UnitId>,
}

/// One execution of a plan. See the crate's documentation for its invariants.
#[derive(Clone, Debug)]
pub struct Run {
    plan: Arc<Plan>,
    units: Vec<UnitState>,
    /// Units whose inputs are committed and whose backoff is over, by order of preference.
    ready: BTreeSet<(Component, u32, UnitId)>,
    /// Units whose inputs are committed, by the end of their backoff.
    delayed: BTreeSet<(Millis, UnitId)>,
    /// Every range that some unit needs.
    needed: BTreeMap<UnitRange, Needed>,
    /// Those of more than one unit: few, while single ones are as many as shards.
    wide: Vec<UnitRange>,
    live: BTreeMap<FencingToken, Attempt>,
    open: usize,
    /// Some committed unit leaves samples out.
    set_aside: bool,
    state: RunState,
}

impl Run {
    /// A run of `plan` in which the units of `committed` need not be computed again. A plan whose
    /// every unit is committed gives a run that has ended at once.
    pub fn new(plan: Arc<Plan>, committed: &BTreeMap<UnitId, Committed>) -> Self {
        let mut needed: BTreeMap<UnitRange, Needed> = BTreeMap::new();
        for unit in &plan.units {
            for need in &unit.needs {
                let entry = Needed { missing: need.len(), by: Vec::new() };
                needed.entry(*need).or_insert(entry).by.push(unit.id);
            }
        }
        let wide = needed.keys().copied().filter(|range| range.len() != 1).collect();
        let mut run = Self {
            units: vec![UnitState::Open(Failures::default()); plan.units.len()],
            open: plan.units.len(),
            ready: BTreeSet::new(),
            delayed: BTreeSet::new(),
            live: BTreeMap::new(),
            set_aside: false,
            state: RunState::Running,
            needed,
            wide,
            plan,
        };
        let ids: Vec<UnitId> = run.plan.units.iter().map(|unit| unit.id).collect();
        for id in &ids {
            if let Some(Committed { token, set_aside }) = committed.get(id) {
                run.set_aside |= *set_aside;
                run.end_unit(*id, UnitOutcome::Committed(*token));
            }
        }
        for id in ids {
            run.offer(id);
        }
        run.state = run.derived_state();
        run
    }

    /// The plan that is being run.
    pub const fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Where the run stands.
    pub const fn state(&self) -> RunState {
        self.state
    }

    /// How the unit ended, if it has.
    pub fn outcome(&self, unit: UnitId) -> Option<&UnitOutcome> {
        match self.units.get(unit.0 as usize)? {
            UnitState::Ended(outcome) => Some(outcome),
            UnitState::Open(_) | UnitState::Leased(_) => None,
        }
    }

    /// The attempts now running, by token.
    pub const fn live(&self) -> &BTreeMap<FencingToken, Attempt> {
        &self.live
    }

    /// Components whose units have not all ended.
    pub fn open_components(&self) -> BTreeSet<Component> {
        let open = self.plan.units.iter().filter(|unit| self.outcome(unit.id).is_none());
        open.map(Unit::component).collect()
    }

    /// Takes in one fact and says what follows from it.
    #[must_use = "commands must be performed, in order"]
    pub fn step(&mut self, event: Event, now: Millis) -> Vec<Command> {
        if self.state != RunState::Running {
            return self.step_ended(&event);
        }
        let mut commands = match event {
            Event::SliceFree { session, slice, components, token } => {
                self.grant(session, slice, &components, token, now)
            }
            Event::Finished { token, unit, set_aside } => self.finished(token, unit, set_aside),
            Event::Failed { token, class, message } => self.failed(token, class, &message, now),
            Event::SessionLost { session } => self.session_lost(&session, now),
            Event::Cancel => return self.cancel(),
        };
        if self.open == 0 {
            self.state = self.derived_state();
            commands.push(Command::End(self.state));
        }
        commands
    }

    /// After the end, only late results need an answer.
    fn step_ended(&self, event: &Event) -> Vec<Command> {
        match *event {
            Event::Finished { token, unit, .. } => vec![self.late(token, unit)],
            Event::SliceFree { .. }
            | Event::Failed { .. }
            | Event::SessionLost { .. }
            | Event::Cancel => Vec::new(),
        }
    }

    fn grant(
        &mut self,
        session: SessionId,
        slice: SliceId,
        components: &[Component],
        token: FencingToken,
        now: Millis,
    ) -> Vec<Command> {
        while let Some(&(at, unit)) = self.delayed.first() {
            if at > now {
                break;
            }
            self.delayed.pop_first();
            self.ready.insert(self.preference(unit));
        }
        let allowed = |(component, ..): &&(Component, u32, UnitId)| components.contains(component);
        let Some(&entry) = self.ready.iter().find(allowed) else { return Vec::new() };
        self.ready.remove(&entry);
        let unit = entry.2;
        let UnitState::Open(failures) = self.units[unit.0 as usize] else {
            unreachable!("only open units are ready")
        };
        let attempt = Attempt { unit, number: failures.total() + 1, token, session, slice };
        self.units[unit.0 as usize] = UnitState::Leased(failures);
        self.live.insert(token, attempt.clone());
        vec![Command::Grant(attempt)]
    }

    fn finished(&mut self, token: FencingToken, unit: UnitId, set_aside: bool) -> Vec<Command> {
        let Some(attempt) = self.live.get(&token).filter(|attempt| attempt.unit == unit) else {
            return vec![self.late(token, unit)];
        };
        let attempt = attempt.clone();
        self.live.remove(&token);
        self.set_aside |= set_aside;
        self.end_unit(unit, UnitOutcome::Committed(token));
        let waiting: Vec<UnitId> = self
            .ranges_with(unit)
            .filter_map(|range| self.needed.get(&range))
            .filter(|needed| needed.missing == 0)
            .flat_map(|needed| needed.by.iter().copied())
            .collect();
        for id in waiting {
            self.offer(id);
        }
        vec![Command::Commit(attempt)]
    }

    fn late(&self, token: FencingToken, unit: UnitId) -> Command {
        match self.outcome(unit) {
            Some(UnitOutcome::Committed(committed)) if *committed == token => {
                Command::AlreadyCommitted(unit)
            }
            _ => Command::Fence { unit, token },
        }
    }

    fn failed(
        &mut self,
        token: FencingToken,
        class: FailureClass,
        message: &str,
        now: Millis,
    ) -> Vec<Command> {
        let Some(attempt) = self.live.remove(&token) else { return Vec::new() };
        let unit = attempt.unit;
        let UnitState::Leased(mut failures) = self.units[unit.0 as usize] else {
            unreachable!("a live attempt's unit is leased")
        };
        let last = failures.add(class);
        let mut commands =
            vec![Command::Failure { attempt, class, message: message.to_owned(), last }];
        if last {
            self.end_unit(unit, UnitOutcome::Failed { class, message: message.to_owned() });
            commands.extend(self.abandon_dependents(unit));
        } else {
            self.units[unit.0 as usize] = UnitState::Open(failures);
            self.delayed.insert((now.after(backoff(failures.total())), unit));
        }
        commands
    }

    fn session_lost(&mut self, session: &SessionId, now: Millis) -> Vec<Command> {
        let lost: Vec<FencingToken> = self
            .live
            .values()
            .filter(|attempt| attempt.session == *session)
            .map(|attempt| attempt.token)
            .collect();
        let class = FailureClass::Infrastructure;
        lost.into_iter()
            .flat_map(|token| self.failed(token, class, "its worker was lost", now))
            .collect()
    }

    fn cancel(&mut self) -> Vec<Command> {
        let mut commands: Vec<Command> = std::mem::take(&mut self.live)
            .into_values()
            .map(|attempt| Command::Revoke { session: attempt.session, token: attempt.token })
            .collect();
        for index in 0..self.units.len() {
            if !matches!(self.units[index], UnitState::Ended(_)) {
                let unit = self.plan.units[index].id;
                self.end_unit(unit, UnitOutcome::Cancelled);
                commands.push(Command::Abandon { unit, outcome: UnitOutcome::Cancelled });
            }
        }
        self.ready.clear();
        self.delayed.clear();
        self.state = RunState::Cancelled;
        commands.push(Command::End(RunState::Cancelled));
        commands
    }

    /// Ends every unit that can no longer get its inputs, however far down the line.
    fn abandon_dependents(&mut self, failed: UnitId) -> Vec<Command> {
        let mut commands = Vec::new();
        let mut causes = vec![failed];
        while let Some(cause) = causes.pop() {
            let blocked: Vec<UnitId> = self
                .plan
                .units
                .iter()
                .filter(|unit| unit.needs.iter().any(|need| need.contains(cause)))
                .map(|unit| unit.id)
                .filter(|unit| self.outcome(*unit).is_none())
                .collect();
            for unit in blocked {
                let outcome = UnitOutcome::Failed {
                    class: FailureClass::Invalid,
                    message: format!("it needs unit {cause}, which failed"),
                };
                self.end_unit(unit, outcome.clone());
                commands.push(Command::Abandon { unit, outcome });
                causes.push(unit);
            }
        }
        commands
    }

    fn end_unit(&mut self, unit: UnitId, outcome: UnitOutcome) {
        debug_assert!(self.outcome(unit).is_none(), "ended units stay ended");
        if matches!(outcome, UnitOutcome::Committed(_)) {
            let ranges: Vec<UnitRange> = self.ranges_with(unit).collect();
            for range in ranges {
                if let Some(needed) = self.needed.get_mut(&range) {
                    needed.missing -= 1;
                }
            }
        }
        self.units[unit.0 as usize] = UnitState::Ended(outcome);
        self.open -= 1;
    }

    /// Ranges that may be needed and hold `unit`.
    fn ranges_with(&self, unit: UnitId) -> impl Iterator<Item = UnitRange> {
        let single = UnitRange { start: unit.0, end: unit.0 + 1 };
        let wide = self.wide.iter().copied();
        wide.filter(move |range| range.contains(unit)).chain([single])
    }

    /// Makes a unit ready if its inputs are there and nobody has it.
    fn offer(&mut self, id: UnitId) {
        let open = matches!(self.units[id.0 as usize], UnitState::Open(_));
        let needs = &self.plan.units[id.0 as usize].needs;
        if open && needs.iter().all(|need| self.needed[need].missing == 0) {
            self.ready.insert(self.preference(id));
        }
    }

    /// The plan's order of preference among units that are ready.
    fn preference(&self, id: UnitId) -> (Component, u32, UnitId) {
        let unit = &self.plan.units[id.0 as usize];
        (unit.component(), unit.turn, id)
    }

    fn derived_state(&self) -> RunState {
        if self.open > 0 {
            RunState::Running
        } else if !self.set_aside
            && self
                .units
                .iter()
                .all(|unit| matches!(unit, UnitState::Ended(UnitOutcome::Committed(_))))
        {
            RunState::Complete
        } else {
            RunState::Incomplete
        }
    }
}
