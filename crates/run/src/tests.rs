//! Named invariants of the state machine, under arbitrary histories.

use std::{collections::BTreeMap, sync::Arc};

use orchestrator_plan::{
    DatasetSource, Direction, EncodeImages, EncodeTexts, ModelSource, PLAN_SCHEMA, Plan, Rank,
    SourceKind, TextSet, Unit, UnitRange, Work,
};
use orchestrator_types::{
    ByteCount, Component, Digest, FailureClass, FencingToken, MemoryTerms, Precision, SessionId,
    Shard, UnitId,
};
use proptest::prelude::*;

use crate::{
    Asker, Blob, Command, Committed, Event, ExecutorReading, ImageCounts, Millis, Run, RunState,
    SampleDigests, Stragglers, Timing, UnitOutcome, UnitResult, backoff, validate,
};

const ALL: [Component; 3] = [Component::Text, Component::Vision, Component::Score];

/// One text unit, `images` image units, one ranking of each and one ranking of all.
fn plan(images: u32) -> Arc<Plan> {
    let model = ModelSource {
        folder: "/model".into(),
        weights: Digest::of(b"weights"),
        precision: Precision::Fp32,
    };
    let dataset = DatasetSource {
        name: "set".parse().unwrap(),
        source: SourceKind::Captions { file: "/set.jsonl".into() },
        manifest: Digest::of(b"set"),
    };
    let texts = EncodeTexts {
        model: model.clone(),
        dataset: dataset.clone(),
        texts: TextSet::FirstCaptions,
        part: 0,
        parts: 1,
        batch: 32,
        tile: 32,
    };
    let mut units = vec![Work::EncodeTexts(texts)];
    for index in 0..images {
        let work = EncodeImages {
            model: model.clone(),
            dataset: dataset.clone(),
            shard: Shard { start: index * 4, end: index * 4 + 4 },
            batch: 4,
            tile: 4,
            quarantine_bad_samples: true,
            recipe: None,
        };
        units.push(Work::EncodeImages(work));
    }
    let text_units = UnitRange { start: 0, end: 1 };
    let all = UnitRange { start: 1, end: 1 + images };
    let rank = |direction, image_units| Rank {
        dataset: dataset.clone(),
        texts: TextSet::FirstCaptions,
        direction,
        queries: Shard { start: 0, end: 4 },
        depth: 1,
        text_units,
        image_units,
    };
    for image in all.iter() {
        let own = UnitRange { start: image.0, end: image.0 + 1 };
        units.push(Work::Rank(rank(Direction::ImageToText, own)));
    }
    units.push(Work::Rank(rank(Direction::TextToImage, all)));
    let units = (0..)
        .map(UnitId)
        .zip(units)
        .map(|(id, work)| Unit { id, work, rows: 4, turn: 0, group: None })
        .collect();
    Arc::new(Plan {
        schema: PLAN_SCHEMA.into(),
        name: "test".into(),
        placement: Vec::new(),
        trials: Vec::new(),
        units,
        reasons: Vec::new(),
        memory: MemoryTerms::default(),
        split: orchestrator_plan::Split::Auto,
        costs: Vec::new(),
    })
}

/// The first `units` units, of which `set_aside` left samples out.
fn committed(units: u32, set_aside: Option<u32>) -> BTreeMap<UnitId, Committed> {
    let one = |unit| Committed { token: FencingToken(7), set_aside: set_aside == Some(unit) };
    (0..units).map(|unit| (UnitId(unit), one(unit))).collect()
}

fn session(number: u8) -> SessionId {
    format!("session-{number}").parse().unwrap()
}

/// A slice of a host of its own, in a cluster with other hosts.
fn asker(number: u8) -> Asker {
    Asker {
        session: session(number),
        node: format!("node-{number}").parse().unwrap(),
        slice: format!("node-{number}.0").parse().unwrap(),
        components: ALL.to_vec(),
        elsewhere: ALL.to_vec(),
    }
}

fn ask(number: u8, token: u64) -> Event {
    Event::SliceFree { asker: asker(number), token: FencingToken(token) }
}

/// A step of a random history; indices are taken modulo what there is.
#[derive(Clone, Debug)]
enum Act {
    Ask(u8),
    Finish(usize),
    FinishStale(u64),
    Fail(usize, FailureClass),
    Lose(u8),
    Release(u8),
    Wait(u16),
    Cancel,
}

fn act() -> impl Strategy<Value = Act> {
    let class = prop_oneof![
        Just(FailureClass::Invalid),
        Just(FailureClass::Crash),
        Just(FailureClass::Infrastructure),
        Just(FailureClass::Resource),
    ];
    prop_oneof![
        10 => (0..3_u8).prop_map(Act::Ask),
        8 => any::<usize>().prop_map(Act::Finish),
        2 => (0..40_u64).prop_map(Act::FinishStale),
        2 => (any::<usize>(), class).prop_map(|(index, class)| Act::Fail(index, class)),
        1 => (0..3_u8).prop_map(Act::Lose),
        1 => (0..3_u8).prop_map(Act::Release),
        3 => any::<u16>().prop_map(Act::Wait),
        1 => Just(Act::Cancel),
    ]
}

/// Drives a run and keeps a plain book beside it.
struct Observed {
    run: Run,
    now: Millis,
    next_token: u64,
    commits: BTreeMap<UnitId, FencingToken>,
    ended: Option<RunState>,
}

impl Observed {
    fn new(images: u32) -> Self {
        Self {
            run: Run::new(plan(images), &BTreeMap::new())
                .with_stragglers(Stragglers { least_ms: 5_000 }),
            now: Millis(0),
            next_token: 1,
            commits: BTreeMap::new(),
            ended: None,
        }
    }

    fn apply(&mut self, act: &Act) {
        let live: Vec<_> = self.run.live().values().cloned().collect();
        let event = match act {
            Act::Ask(number) => {
                self.next_token += 1;
                ask(*number, self.next_token)
            }
            Act::Finish(index) if live.is_empty() => {
                let unit = UnitId(u32::try_from(index % 5).unwrap());
                Event::Finished { token: FencingToken(0), unit, set_aside: false }
            }
            Act::Finish(index) => {
                let attempt = &live[index % live.len()];
                Event::Finished { token: attempt.token, unit: attempt.unit, set_aside: false }
            }
            Act::FinishStale(token) => {
                Event::Finished { token: FencingToken(*token), unit: UnitId(0), set_aside: false }
            }
            Act::Fail(_, _) if live.is_empty() => return,
            Act::Fail(index, class) => Event::Failed {
                token: live[index % live.len()].token,
                class: *class,
                message: "planted".into(),
            },
            Act::Lose(number) => Event::SessionLost { session: session(*number) },
            Act::Release(number) => Event::Released { session: session(*number) },
            Act::Wait(ms) => {
                self.now = self.now.after(u64::from(*ms));
                return;
            }
            Act::Cancel => Event::Cancel,
        };
        let before = self.run.clone();
        for command in self.run.step(event, self.now) {
            self.check(&command, &before);
        }
        self.check_state();
    }

    fn check(&mut self, command: &Command, before: &Run) {
        match command {
            Command::Grant(attempt) => {
                assert_eq!(before.state(), RunState::Running, "an ended run grants nothing");
                let unit = self.run.plan().unit(attempt.unit).unwrap();
                for need in unit.needs().flat_map(UnitRange::iter) {
                    assert!(self.commits.contains_key(&need), "granted before its inputs");
                }
            }
            Command::Commit(attempt) => {
                assert!(before.live().contains_key(&attempt.token), "committed a dead attempt");
                let earlier = self.commits.insert(attempt.unit, attempt.token);
                assert_eq!(earlier, None, "committed twice");
            }
            Command::AlreadyCommitted(unit) => assert!(self.commits.contains_key(unit)),
            Command::End(state) => {
                assert_eq!(self.ended.replace(*state), None, "a run ends once");
            }
            Command::Fence { unit, token } => {
                let live = before.live().get(token).map(|attempt| attempt.unit);
                assert_ne!(live, Some(*unit), "fenced a live attempt on its own unit");
            }
            Command::Revoke(attempt) | Command::Release(attempt) | Command::Note(attempt) => {
                assert!(before.live().contains_key(&attempt.token), "ended a dead attempt");
                assert!(!self.run.live().contains_key(&attempt.token), "it lives on");
            }
            Command::Failure { .. } | Command::Abandon { .. } => {}
        }
    }

    fn check_state(&self) {
        for (unit, token) in &self.commits {
            assert_eq!(self.run.outcome(*unit), Some(UnitOutcome::Committed(*token)));
        }
        assert_eq!(self.ended.is_some(), self.run.state() != RunState::Running);
        if self.ended.is_some() {
            assert!(self.run.live().is_empty(), "an ended run has no live attempt");
            assert_eq!(self.run.twins(), 0);
            assert!(self.run.open_components().is_empty(), "an ended run has no open unit");
        }
    }

    /// After the faults stop: an honest worker brings the run to its end.
    fn drain(&mut self) {
        for turn in 0..10_000_u32 {
            if self.run.state() != RunState::Running {
                return;
            }
            // Two hosts: one alone may be the one that a unit failed on.
            self.apply(&Act::Ask((turn % 2) as u8));
            self.apply(&Act::Finish(0));
            self.apply(&Act::Wait(1_000));
        }
        panic!("the run does not end: {:?}", self.run);
    }
}

proptest! {
    #[test]
    fn invariants_hold_under_any_history(
        images in 1..6_u32,
        acts in prop::collection::vec(act(), 0..120),
    ) {
        let mut observed = Observed::new(images);
        for act in &acts {
            observed.apply(act);
        }
        observed.drain();
    }
}

#[test]
fn an_undisturbed_run_commits_every_unit() {
    let mut observed = Observed::new(3);
    observed.drain();
    assert_eq!(observed.ended, Some(RunState::Complete));
    assert_eq!(observed.commits.len(), 8);
}

#[test]
fn committed_units_are_not_granted_again_after_a_restart() {
    let committed = committed(4, None);
    let mut run = Run::new(plan(3), &committed);
    assert_eq!(run.open_components(), [Component::Score].into());
    let commands = run.step(ask(0, 100), Millis(0));
    let [Command::Grant(attempt)] = commands.as_slice() else { panic!("{commands:?}") };
    assert_eq!(attempt.unit, UnitId(4), "the first ranking, for everything before is committed");
    assert_eq!(Run::new(plan(3), &self::committed(8, None)).state(), RunState::Complete);
}

#[test]
fn a_run_that_set_samples_aside_is_incomplete_now_and_when_loaded_again() {
    let mut run = Run::new(plan(1), &committed(3, None));
    let commands = run.step(ask(0, 100), Millis(0));
    let [Command::Grant(attempt)] = commands.as_slice() else { panic!("{commands:?}") };
    let (token, unit) = (attempt.token, attempt.unit);
    let commands = run.step(Event::Finished { token, unit, set_aside: true }, Millis(0));
    assert_eq!(commands.last(), Some(&Command::End(RunState::Incomplete)));
    let again = Run::new(plan(1), &committed(4, Some(3)));
    assert_eq!(again.state(), RunState::Incomplete);
}

fn samples(digest: &[u8]) -> UnitResult {
    UnitResult {
        rows: 4,
        blob: Blob { digest: Digest::of(b"blob"), size_bytes: ByteCount::bytes(4) },
        partial: String::new(),
        quarantined: Vec::new(),
        timing: Timing::default(),
        cached: false,
        reading: ExecutorReading::default(),
        samples: Some(Digest::of(digest)),
        account: None,
        rows_per_dispatch: 0,
        inline: None,
        images: ImageCounts::default(),
    }
}

proptest! {
    /// Executors cut parts at tiles; what they make of any set must be accepted.
    #[test]
    fn a_part_of_whole_tiles_is_a_valid_result(texts in 1..200_000_u32, parts in 1..20_u32) {
        let mut unit = plan(1).unit(UnitId(0)).unwrap();
        let Work::EncodeTexts(work) = &mut unit.work else { unreachable!("texts come first") };
        work.parts = parts;
        for part in 0..parts {
            let starts = EncodeTexts { part, ..work.clone() }.starts(texts);
            let end = starts.end.next_multiple_of(work.tile).min(texts);
            let start = starts.start.next_multiple_of(work.tile).min(end);
            let planned = Unit {
                rows: EncodeTexts::most_rows(texts, parts, work.tile),
                ..plan(1).unit(UnitId(0)).unwrap()
            };
            let result = UnitResult { rows: u64::from(end - start), ..samples(b"") };
            prop_assert_eq!(validate(&planned, &result), Ok(()));
        }
    }
}

#[test]
fn more_rows_than_a_part_can_have_are_refused() {
    let rows = EncodeTexts::most_rows(20_000, 2, 32);
    let planned = Unit { rows, ..plan(1).unit(UnitId(0)).unwrap() };
    let of = |rows| validate(&planned, &UnitResult { rows, ..samples(b"") });
    assert_eq!(of(10_016), Ok(()), "two shares of 10,000, and a tile that spans them");
    assert_eq!(of(10_032), Err("10032 rows of at most 10031".into()));
}

#[test]
fn other_bytes_behind_one_path_are_found_by_shard() {
    let plan = plan(2);
    let mut known = SampleDigests::default();
    known.add(&plan.unit(UnitId(1)).unwrap(), &samples(b"one"));
    assert_eq!(known.check(&plan.unit(UnitId(1)).unwrap(), &samples(b"one")), Ok(()));
    assert_eq!(
        known.check(&plan.unit(UnitId(2)).unwrap(), &samples(b"two")),
        Ok(()),
        "another shard"
    );
    let error = known.check(&plan.unit(UnitId(1)).unwrap(), &samples(b"two")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the samples 0..4 of dataset `set` are not the bytes that another unit of this run read; \
         make every worker see the same files, unchanged while a run lasts, and submit again"
    );
}

#[test]
fn a_slice_gets_only_units_of_its_components() {
    let mut run = Run::new(plan(1), &BTreeMap::new());
    let asker = Asker { components: vec![Component::Vision], ..asker(1) };
    let vision_only = Event::SliceFree { asker, token: FencingToken(1) };
    let commands = run.step(vision_only.clone(), Millis(0));
    assert!(matches!(&commands[..], [Command::Grant(attempt)] if attempt.unit == UnitId(1)));
    assert_eq!(run.step(vision_only, Millis(0)), []);
}

/// Grants the only unit that this slice gets, and lets it fail.
fn fail_next(run: &mut Run, number: u8, token: u64, class: FailureClass) -> Vec<Command> {
    let now = Millis(token * 20_000);
    let commands = run.step(ask(number, token), now);
    let [Command::Grant(attempt)] = commands.as_slice() else { panic!("{commands:?}") };
    assert_eq!(attempt.unit, UnitId(0));
    let (token, message) = (attempt.token, "killed by signal 9".to_owned());
    run.step(Event::Failed { token, class, message }, now)
}

#[test]
fn texts_that_kill_two_executors_run_alone_and_are_then_given_up_with_what_needs_them() {
    let mut run = Run::new(plan(1), &BTreeMap::new());
    for number in [1_u8, 2] {
        let failed = fail_next(&mut run, number, number.into(), FailureClass::Crash);
        assert!(matches!(&failed[..], [Command::Failure { last: false, attempt, .. }]
            if !attempt.terms.alone));
    }
    let ended = fail_next(&mut run, 1, 3, FailureClass::Crash);
    assert!(matches!(&ended[0], Command::Failure { last: true, attempt, .. }
        if attempt.terms.alone));
    let abandoned = ended.iter().filter(|command| matches!(command, Command::Abandon { .. }));
    assert_eq!(abandoned.count(), 2, "both rankings need the texts");
    assert_eq!(run.state(), RunState::Running, "the images can still be encoded");
}

#[test]
fn a_unit_that_failed_on_one_host_is_tried_on_another_and_believed_then() {
    let mut run = Run::new(plan(0), &BTreeMap::new());
    let failed = fail_next(&mut run, 1, 1, FailureClass::Invalid);
    assert!(matches!(&failed[..], [Command::Failure { last: false, .. }]));
    assert_eq!(run.step(ask(1, 2), Millis(60_000)), [], "not on the same host again");
    let failed = fail_next(&mut run, 2, 4, FailureClass::Invalid);
    assert!(matches!(&failed[0], Command::Failure { last: true, .. }));

    let mut run = Run::new(plan(0), &BTreeMap::new());
    let asker = Asker { elsewhere: Vec::new(), ..asker(1) };
    let commands = run.step(Event::SliceFree { asker, token: FencingToken(1) }, Millis(0));
    assert_eq!(commands.len(), 1);
    let (token, class) = (FencingToken(1), FailureClass::Invalid);
    let failed = run.step(Event::Failed { token, class, message: "no".into() }, Millis(0));
    assert!(matches!(&failed[0], Command::Failure { last: true, .. }), "nobody else to ask");
}

/// Found by the property above: both hosts left the unit to each other for ever.
#[test]
fn a_unit_that_failed_differently_on_two_hosts_goes_on_there() {
    let mut run = Run::new(plan(0), &BTreeMap::new());
    drop(fail_next(&mut run, 1, 1, FailureClass::Invalid));
    drop(fail_next(&mut run, 2, 2, FailureClass::Crash));
    let commands = run.step(ask(1, 3), Millis(60_000));
    assert!(matches!(&commands[..], [Command::Grant(attempt)] if attempt.unit == UnitId(0)));
}

/// A run in which images are the only units left, and image 2 kills whoever computes it.
#[test]
fn a_sample_that_kills_its_executor_is_set_aside_and_the_rest_counts() {
    let mut run = Run::new(plan(1), &committed(1, None));
    let mut result = None;
    for token in 10..100_u64 {
        let now = Millis(token * 20_000);
        let commands = run.step(ask((token % 3) as u8, token), now);
        let [Command::Grant(attempt)] = commands.as_slice() else { panic!("{commands:?}") };
        assert_eq!(attempt.unit, UnitId(1));
        let terms = attempt.terms.clone();
        let aside = |row: usize| terms.set_aside.iter().any(|part| part.range().contains(&row));
        let (token, unit) = (attempt.token, attempt.unit);
        let event = if aside(2) {
            let set_aside = !terms.set_aside.is_empty();
            Event::Finished { token, unit, set_aside }
        } else {
            Event::Failed { token, class: FailureClass::Crash, message: "signal 9".into() }
        };
        let commands = run.step(event, now);
        if let Some(Command::Commit(attempt)) = commands.first() {
            result = Some(attempt.terms.clone());
            break;
        }
    }
    let terms = result.expect("the unit is committed without the sample");
    assert!(terms.alone && !terms.probe);
    assert_eq!(terms.set_aside, [Shard { start: 2, end: 3 }]);
}

/// Commits units 0 to 4 in a second each and leaves the last image to host 1.
fn run_with_a_straggler() -> (Run, FencingToken) {
    let mut run =
        Run::new(plan(12), &committed(1, None)).with_stragglers(Stragglers { least_ms: 10_000 });
    let vision = |number| Asker { components: vec![Component::Vision], ..asker(number) };
    let mut straggler = None;
    for token in 1..=12_u64 {
        let event = Event::SliceFree { asker: vision(1), token: FencingToken(token) };
        let commands = run.step(event, Millis(0));
        let [Command::Grant(attempt)] = commands.as_slice() else { panic!("{commands:?}") };
        if token == 1 {
            straggler = Some(attempt.token);
            continue;
        }
        let (token, unit) = (attempt.token, attempt.unit);
        let event = Event::Finished { token, unit, set_aside: false };
        assert_eq!(run.step(event, Millis(1_000)).len(), 1);
    }
    for token in 20.. {
        let commands = run.step(ask(1, token), Millis(1_000));
        let [Command::Grant(attempt)] = commands.as_slice() else { break };
        let (token, unit) = (attempt.token, attempt.unit);
        drop(run.step(Event::Finished { token, unit, set_aside: false }, Millis(1_000)));
    }
    (run, straggler.unwrap())
}

#[test]
fn a_straggler_gets_one_twin_on_another_host_and_the_first_result_counts() {
    let (mut run, straggler) = run_with_a_straggler();
    let unit = run.live()[&straggler].unit;
    assert_eq!(run.step(ask(2, 100), Millis(9_999)), [], "not slow yet");
    assert_eq!(run.step(ask(1, 101), Millis(10_000)), [], "not on the same host");
    let commands = run.step(ask(2, 102), Millis(10_000));
    assert!(matches!(&commands[..], [Command::Grant(attempt)] if attempt.unit == unit));
    assert_eq!(run.step(ask(3, 103), Millis(99_000)), [], "one twin");
    let token = FencingToken(102);
    let commands = run.step(Event::Finished { token, unit, set_aside: false }, Millis(11_000));
    assert!(matches!(&commands[..2], [Command::Commit(winner), Command::Revoke(loser)]
        if winner.token == token && loser.token == straggler));
    let late =
        run.step(Event::Finished { token: straggler, unit, set_aside: false }, Millis(12_000));
    assert_eq!(late, [Command::Fence { unit, token: straggler }]);
}

#[test]
fn the_failure_of_a_twin_leaves_the_other_attempt() {
    let (mut run, straggler) = run_with_a_straggler();
    let unit = run.live()[&straggler].unit;
    drop(run.step(ask(2, 102), Millis(10_000)));
    let (token, class) = (FencingToken(102), FailureClass::Crash);
    let failed = run.step(Event::Failed { token, class, message: "x".into() }, Millis(10_000));
    assert!(matches!(&failed[..], [Command::Failure { last: false, .. }]));
    let event = Event::Finished { token: straggler, unit, set_aside: false };
    assert!(matches!(&run.step(event, Millis(10_001))[0], Command::Commit(_)));
}

#[test]
fn attempts_of_an_earlier_life_are_taken_over_and_work_that_was_handed_back_is_given_out_again() {
    let mut before = Run::new(plan(1), &BTreeMap::new());
    let commands = before.step(ask(1, 1), Millis(5));
    let [Command::Grant(attempt)] = commands.as_slice() else { panic!("{commands:?}") };
    let mut run = Run::new(plan(1), &BTreeMap::new());
    assert!(run.take_over(attempt.clone()));
    let next = run.step(ask(2, 2), Millis(0));
    assert!(matches!(&next[..], [Command::Grant(other)] if other.unit != attempt.unit));
    let released = run.step(Event::Released { session: session(1) }, Millis(1));
    assert_eq!(released, [Command::Release(attempt.clone())]);
    let next = run.step(ask(3, 3), Millis(1));
    assert!(
        matches!(&next[..], [Command::Grant(again)]
        if again.unit == attempt.unit && again.number == 1),
        "it counts against no unit"
    );
    let mut ended = Run::new(plan(1), &committed(1, None));
    assert!(!ended.take_over(attempt.clone()), "its unit is committed");
}

#[test]
fn waits_double_up_to_ten_seconds() {
    assert_eq!(
        (1..=8).map(backoff).collect::<Vec<_>>(),
        [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
    );
}

#[test]
fn units_of_one_component_are_granted_in_the_order_of_their_turns() {
    let mut turned = (*plan(4)).clone();
    let turns = [0, 9, 3, 7, 3, 5, 6, 7, 8, 9];
    turned.units =
        turned.units.iter().zip(turns).map(|(unit, turn)| Unit { turn, ..unit }).collect();
    let mut run = Run::new(Arc::new(turned), &BTreeMap::new());
    let mut granted = Vec::new();
    for token in 1..=5 {
        for command in run.step(ask(0, token), Millis(0)) {
            let Command::Grant(attempt) = command else { unreachable!("nothing else is due") };
            granted.push(attempt.unit.0);
        }
    }
    assert_eq!(granted, [0, 2, 4, 3, 1], "texts first, then images by turn and id");
}
