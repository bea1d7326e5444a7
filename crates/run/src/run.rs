//! [`Run`]: the state machine itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use orchestrator_plan::{GroupId, Plan, Units};
use orchestrator_types::{
    Component, FailureClass, FencingToken, SessionId, UnitId,
    planted::{Bug, is_planted},
};

use crate::{
    Attempt, Command, Committed, Event, Millis, RunState, Stragglers, UnitOutcome, backoff,
    grant::Group,
    hunt::Next,
    needs::Needs,
    pace::Pace,
    queue::Queue,
    trouble::{self, Trouble},
    unit::UnitState,
};

/// One run. See the crate's documentation for its invariants.
#[derive(Clone, Debug)]
pub struct Run {
    pub(crate) plan: Arc<Plan>,
    pub(crate) stragglers: Stragglers,
    pub(crate) units: Vec<UnitState>,
    pub(crate) queue: Queue,
    pub(crate) live: BTreeMap<FencingToken, Attempt>,
    /// Live attempts of each unit that has some.
    live_units: BTreeMap<UnitId, u32>,
    pub(crate) troubled: BTreeMap<UnitId, Trouble>,
    /// Whether some units read the same samples as others.
    pub(crate) shares_samples: bool,
    /// If so, those that were worked on.
    pub(crate) groups: BTreeMap<GroupId, Group>,
    pub(crate) pace: Pace,
    needs: Needs,
    /// Units that have not ended.
    pub(crate) open: usize,
    /// Of those, by component.
    open_of: BTreeMap<Component, usize>,
    /// Whether a committed result left out samples.
    set_aside: bool,
    state: RunState,
}

impl Run {
    /// A run of `plan` of which `committed` is known already.
    pub fn new(plan: Arc<Plan>, committed: &BTreeMap<UnitId, Committed>) -> Self {
        let mut open_of = BTreeMap::new();
        for block in plan.units.blocks() {
            *open_of.entry(block.component()).or_default() += block.count as usize;
        }
        let mut run = Self {
            stragglers: Stragglers::default(),
            units: vec![UnitState::Open; plan.units.len()],
            queue: Queue::default(),
            live: BTreeMap::new(),
            live_units: BTreeMap::new(),
            troubled: BTreeMap::new(),
            shares_samples: shares_samples(&plan.units),
            groups: BTreeMap::new(),
            pace: Pace::default(),
            needs: Needs::new(&plan),
            open: plan.units.len(),
            open_of,
            set_aside: false,
            state: RunState::Running,
            plan,
        };
        for (unit, Committed { token, set_aside }) in committed {
            run.set_aside |= *set_aside;
            run.end_unit(*unit, UnitOutcome::Committed(*token));
        }
        for unit in run.plan.units.ids() {
            run.offer(unit);
        }
        run.state = run.derived_state();
        run
    }

    /// The same run, with other terms for slow attempts.
    #[must_use]
    pub fn with_stragglers(mut self, stragglers: Stragglers) -> Self {
        self.stragglers = stragglers;
        self
    }

    /// Takes over an attempt of an earlier life of the coordinator. `false` if its unit has ended:
    /// then it is fenced.
    #[must_use = "an attempt that is not taken over is fenced"]
    pub fn take_over(&mut self, attempt: Attempt) -> bool {
        let unit = attempt.unit;
        let Some(UnitState::Open | UnitState::Leased) = self.units.get(unit.0 as usize) else {
            return false;
        };
        if self.state != RunState::Running {
            return false;
        }
        self.queue.take(&self.plan, unit);
        self.units[unit.0 as usize] = UnitState::Leased;
        self.insert_live(attempt);
        true
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
    pub fn outcome(&self, unit: UnitId) -> Option<UnitOutcome> {
        self.units.get(unit.0 as usize)?.outcome()
    }

    /// How many units have not ended.
    pub const fn open_units(&self) -> usize {
        self.open
    }

    /// The attempts now running, by token.
    pub const fn live(&self) -> &BTreeMap<FencingToken, Attempt> {
        &self.live
    }

    /// Components whose units have not all ended.
    pub fn open_components(&self) -> BTreeSet<Component> {
        let open = self.open_of.iter().filter(|(_, open)| **open > 0);
        open.map(|(component, _)| *component).collect()
    }

    /// Takes in one fact and says what follows from it.
    #[must_use = "commands must be performed, in order"]
    pub fn step(&mut self, event: Event, now: Millis) -> Vec<Command> {
        if self.state != RunState::Running {
            return self.step_ended(&event);
        }
        let mut commands = match event {
            Event::SliceFree { asker, token } => self.grant(asker, token, now),
            Event::Finished { token, unit, set_aside } => {
                self.finished(token, unit, set_aside, now)
            }
            Event::Failed { token, class, message } => self.failed(token, class, &message, now),
            Event::SessionLost { session } => self.session_lost(&session, now),
            Event::Released { session } => self.released(&session),
            Event::Deserted { message } => self.deserted(&message),
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
            | Event::Released { .. }
            | Event::Deserted { .. }
            | Event::Cancel => Vec::new(),
        }
    }

    fn finished(
        &mut self,
        token: FencingToken,
        unit: UnitId,
        set_aside: bool,
        now: Millis,
    ) -> Vec<Command> {
        let live = self.live.get(&token).filter(|attempt| attempt.unit == unit).cloned();
        let Some(attempt) = live.or_else(|| self.planted_attempt(token, unit)) else {
            return vec![self.late(token, unit)];
        };
        self.remove_live(attempt.token);
        if attempt.terms.probe && !is_planted(Bug::ProbesCount) {
            return self.probed(attempt, now);
        }
        if is_planted(Bug::TwinsCountTwice) && self.units[unit.0 as usize].is_ended() {
            return vec![Command::Commit(attempt)];
        }
        self.set_aside |= set_aside;
        self.pace.committed(self.component(unit), now.since(attempt.started));
        let mut commands = vec![Command::Commit(attempt)];
        commands.extend(self.revoke_live_of(unit));
        let met = self.end_unit(unit, UnitOutcome::Committed(token));
        for id in met {
            self.offer(id);
        }
        commands
    }

    /// Only with a bug planted: what passes for an attempt that does not live.
    fn planted_attempt(&self, token: FencingToken, unit: UnitId) -> Option<Attempt> {
        let ended = || self.outcome(unit).is_some_and(|end| end != UnitOutcome::Committed(token));
        if is_planted(Bug::AnyTokenCommits) {
            self.live.values().find(|attempt| attempt.unit == unit).cloned()
        } else if is_planted(Bug::TwinsCountTwice) && ended() {
            Some(Attempt::planted(unit, token))
        } else {
            None
        }
    }

    fn late(&self, token: FencingToken, unit: UnitId) -> Command {
        match self.units.get(unit.0 as usize) {
            Some(UnitState::Committed(committed)) if *committed == token => {
                Command::AlreadyCommitted(unit)
            }
            _ => Command::Fence { unit, token },
        }
    }

    /// A probe's executor lived; its result does not count.
    fn probed(&mut self, attempt: Attempt, now: Millis) -> Vec<Command> {
        let unit = attempt.unit;
        let next = self.troubled.entry(unit).or_default().survived();
        let mut commands = vec![Command::Note(attempt)];
        match next {
            Next::Again => self.reopen(unit, now, 0),
            Next::GiveUp => {
                let message = "it ends its executor, but none of its samples does alone";
                commands.extend(self.give_up(unit, FailureClass::Crash, message.to_owned()));
            }
        }
        commands
    }

    fn failed(
        &mut self,
        token: FencingToken,
        class: FailureClass,
        message: &str,
        now: Millis,
    ) -> Vec<Command> {
        let Some(attempt) = self.remove_live(token) else { return Vec::new() };
        let unit = attempt.unit;
        let rows = self.plan.unit(unit).as_ref().and_then(trouble::bisectable);
        let trouble = self.troubled.entry(unit).or_default();
        let next = trouble.failed(rows, &attempt, class);
        let wait = backoff(trouble.failures());
        // While another attempt of the unit lives, there is hope.
        let last = next == Next::GiveUp && self.live_of(unit) == 0;
        let message = message.to_owned();
        let failure = Command::Failure { attempt, class, message: message.clone(), last };
        let mut commands = vec![failure];
        if last {
            commands.extend(self.give_up(unit, class, message));
        } else if self.live_of(unit) == 0 {
            self.reopen(unit, now, wait);
        }
        commands
    }

    /// Back into the queue, after `wait` milliseconds.
    fn reopen(&mut self, unit: UnitId, now: Millis, wait: u64) {
        self.units[unit.0 as usize] = UnitState::Open;
        if wait == 0 {
            self.queue.offer(&self.plan, unit);
        } else {
            self.queue.delay(unit, now.after(wait));
        }
    }

    /// The unit fails, and so does what needs it.
    fn give_up(&mut self, unit: UnitId, class: FailureClass, message: String) -> Vec<Command> {
        self.end_unit(unit, UnitOutcome::Failed { class, message });
        self.abandon_readers(unit)
    }

    fn session_lost(&mut self, session: &SessionId, now: Millis) -> Vec<Command> {
        let class = FailureClass::Infrastructure;
        self.held_by(session)
            .into_iter()
            .flat_map(|token| self.failed(token, class, "its worker was lost", now))
            .collect()
    }

    /// Work handed back on purpose says nothing about the unit.
    fn released(&mut self, session: &SessionId) -> Vec<Command> {
        let mut commands = Vec::new();
        for token in self.held_by(session) {
            let Some(attempt) = self.remove_live(token) else { continue };
            let unit = attempt.unit;
            commands.push(Command::Release(attempt));
            if self.live_of(unit) == 0 {
                self.reopen(unit, Millis(0), 0);
            }
        }
        commands
    }

    /// Every open unit fails; a resume opens them again.
    fn deserted(&mut self, message: &str) -> Vec<Command> {
        let mut commands = Vec::new();
        let left: Vec<FencingToken> = self.live.keys().copied().collect();
        commands.extend(
            left.into_iter().filter_map(|token| self.remove_live(token)).map(Command::Revoke),
        );
        for unit in self.plan.units.ids() {
            if !self.units[unit.0 as usize].is_ended() {
                let (class, message) = (FailureClass::Infrastructure, message.to_owned());
                let outcome = UnitOutcome::Failed { class, message };
                self.end_unit(unit, outcome.clone());
                commands.push(Command::Abandon { unit, outcome });
            }
        }
        self.queue.clear();
        commands
    }

    fn held_by(&self, session: &SessionId) -> Vec<FencingToken> {
        let held = self.live.values().filter(|attempt| attempt.session == *session);
        held.map(|attempt| attempt.token).collect()
    }

    fn cancel(&mut self) -> Vec<Command> {
        let mut commands: Vec<Command> =
            std::mem::take(&mut self.live).into_values().map(Command::Revoke).collect();
        self.live_units.clear();
        for unit in self.plan.units.ids() {
            if !self.units[unit.0 as usize].is_ended() {
                self.end_unit(unit, UnitOutcome::Cancelled);
            }
        }
        self.queue.clear();
        self.state = RunState::Cancelled;
        commands.push(Command::End(RunState::Cancelled));
        commands
    }

    /// Ends every unit that can no longer get its inputs, however far down the line.
    fn abandon_readers(&mut self, failed: UnitId) -> Vec<Command> {
        let mut commands = Vec::new();
        let mut causes = vec![failed];
        while let Some(cause) = causes.pop() {
            let readers: Vec<UnitId> = self.needs.readers(cause).collect();
            for unit in readers {
                if self.units[unit.0 as usize].is_ended() {
                    continue;
                }
                let message = format!("it needs unit {cause}, which failed");
                let outcome = UnitOutcome::Failed { class: FailureClass::Invalid, message };
                self.end_unit(unit, outcome.clone());
                commands.push(Command::Abandon { unit, outcome });
                causes.push(unit);
            }
        }
        commands
    }

    /// Gives the units that have all their inputs with it.
    fn end_unit(&mut self, unit: UnitId, outcome: UnitOutcome) -> Vec<UnitId> {
        debug_assert!(self.outcome(unit).is_none(), "ended units stay ended");
        let committed = matches!(outcome, UnitOutcome::Committed(_));
        let met = if committed { self.needs.committed(unit) } else { Vec::new() };
        self.queue.take(&self.plan, unit);
        self.troubled.remove(&unit);
        self.units[unit.0 as usize] = outcome.into();
        self.open -= 1;
        let component = self.component(unit);
        if let Some(open) = self.open_of.get_mut(&component) {
            *open -= 1;
        }
        met
    }

    /// Makes a unit ready if its inputs are there and nobody has it.
    fn offer(&mut self, id: UnitId) {
        if matches!(self.units[id.0 as usize], UnitState::Open) && self.needs.are_met(id) {
            self.queue.offer(&self.plan, id);
        }
    }

    pub(crate) fn insert_live(&mut self, attempt: Attempt) {
        *self.live_units.entry(attempt.unit).or_default() += 1;
        if let Some(group) = self.plan.units.group(attempt.unit).filter(|_| self.shares_samples) {
            let home = attempt.node.clone();
            let entry = self.groups.entry(group).or_insert(Group { live: 0, home: home.clone() });
            (entry.live, entry.home) = (entry.live + 1, home);
        }
        self.live.insert(attempt.token, attempt);
    }

    fn remove_live(&mut self, token: FencingToken) -> Option<Attempt> {
        let attempt = self.live.remove(&token)?;
        if let Some(live) = self.live_units.get_mut(&attempt.unit) {
            *live -= 1;
            if *live == 0 {
                self.live_units.remove(&attempt.unit);
            }
        }
        if let Some(group) = self.plan.units.group(attempt.unit)
            && let Some(entry) = self.groups.get_mut(&group)
        {
            entry.live -= 1;
        }
        Some(attempt)
    }

    fn revoke_live_of(&mut self, unit: UnitId) -> Vec<Command> {
        if self.live_of(unit) == 0 || is_planted(Bug::LoserLivesOn) {
            return Vec::new();
        }
        let siblings = self.live.values().filter(|attempt| attempt.unit == unit);
        let siblings: Vec<FencingToken> = siblings.map(|attempt| attempt.token).collect();
        let revoked = siblings.into_iter().filter_map(|token| self.remove_live(token));
        revoked.map(Command::Revoke).collect()
    }

    pub(crate) fn live_of(&self, unit: UnitId) -> u32 {
        self.live_units.get(&unit).copied().unwrap_or(0)
    }

    /// Attempts beside another one of their unit.
    pub(crate) fn twins(&self) -> usize {
        self.live.len() - self.live_units.len()
    }

    pub(crate) fn component(&self, unit: UnitId) -> Component {
        self.plan.units.component(unit)
    }

    fn derived_state(&self) -> RunState {
        let committed = |unit: &UnitState| matches!(unit, UnitState::Committed(_));
        if self.open > 0 {
            RunState::Running
        } else if !self.set_aside && self.units.iter().all(committed) {
            RunState::Complete
        } else {
            RunState::Incomplete
        }
    }
}

/// Whether there are more grouped units than groups, which are numbered from 0.
fn shares_samples(units: &Units) -> bool {
    let grouped = units.blocks().iter().filter_map(|block| Some((block.first.group?, block.count)));
    let (units, groups) = grouped.fold((0, 0), |(units, groups), (GroupId(first), count)| {
        (units + u64::from(count), groups.max(u64::from(first) + u64::from(count)))
    });
    units > groups
}
