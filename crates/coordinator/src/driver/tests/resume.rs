//! Going on with a run: from where, on which slices, with which build, and without what is lost.

use super::*;
use crate::access::Caller;

fn resume(bench: &mut Bench, run: &RunId, lost: &[Digest]) -> Result<Resumed, Refusal> {
    let call = Resumption {
        run: run.clone(),
        by: Caller::default(),
        lost: lost.iter().copied().collect(),
    };
    bench.ask(|reply| Request::Resume(call, reply))
}

fn cancel(bench: &mut Bench, run: &RunId) {
    bench.ask(|reply| Request::Cancel(run.clone(), Caller::default(), reply)).unwrap();
}

#[test]
fn cancelling_revokes_and_resuming_keeps_what_was_committed() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    let done = bench.lease(&worker).unwrap();
    bench.commit(&worker, &done).unwrap();
    let held = bench.lease(&worker).unwrap();
    cancel(&mut bench, &run);
    assert_eq!(bench.heartbeat(&worker, &[held.token]), [held.token]);
    assert_eq!(bench.commit(&worker, &held), Ok(CommitOutcome::Fenced));
    assert_eq!(bench.state_of(&run), RunState::Cancelled);
    assert_eq!(bench.lease(&worker), None);

    let last = bench.events(&run).last().unwrap().sequence;
    let resumed = resume(&mut bench, &run, &[]).unwrap();
    assert_eq!(resumed, Resumed { committed: 1, units, after: last });
    assert_eq!(bench.finish(&worker), units - 1);
    assert_eq!(bench.state_of(&run), RunState::Complete);
    let end = bench.events(&run).last().unwrap().sequence;
    let again = resume(&mut bench, &run, &[]).unwrap();
    assert_eq!(again, Resumed { committed: units, units, after: end - 1 }, "its end is told");
    assert_eq!(bench.state_of(&run), RunState::Complete, "complete is for good");
}

#[test]
fn a_run_that_fits_no_slice_is_refused_with_the_bytes() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    cancel(&mut bench, &run);
    bench.lose(&worker);
    let refusal = resume(&mut bench, &run, &[]).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Unavailable, "{refusal}");

    let offer = SliceOffer { memory_bytes: ByteCount::mib(2), ..fixtures::offer("a", 0) };
    let small = bench.worker_with(offer);
    let refusal = resume(&mut bench, &run, &[]).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::DoesNotFit);
    assert!(
        refusal.message.starts_with("no slice can hold the component text: ")
            && refusal.message.ends_with("the largest slice offers 2.00 MiB; offer a larger one"),
        "{refusal}"
    );
    let planned = Inventory { slices: vec![fixtures::offer("a", 0)] };
    let submitted = Box::new(fixtures::submitted("other", &planned));
    let refusal = bench.ask(|reply| Request::Submit(submitted, reply)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::DoesNotFit);
    assert_eq!(bench.state_of(&run), RunState::Cancelled, "a refusal changes nothing");
    assert_eq!(bench.lease(&small), None);

    let large = bench.worker("b");
    resume(&mut bench, &run, &[]).unwrap();
    assert_eq!(bench.finish(&large), units);
}

#[test]
fn a_run_waits_for_slices_that_left() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    bench.lose(&worker);
    bench.pass(60_000);
    assert!(bench.driver.runs[&run].homeless.is_some(), "it was logged");
    assert_eq!(bench.state_of(&run), RunState::Running);
    let worker = bench.worker("a");
    assert_eq!(bench.driver.runs[&run].homeless, None);
    assert_eq!(bench.finish(&worker), units);
}

#[test]
fn units_whose_blobs_are_lost_are_computed_again() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    let mut blobs = BTreeMap::new();
    while let Some(assignment) = bench.lease(&worker) {
        *blobs.entry(fixtures::result(&assignment).blob.digest).or_insert(0) += 1;
        bench.commit(&worker, &assignment).unwrap();
    }
    let (&lost, &of) = blobs.first_key_value().unwrap();
    let resumed = resume(&mut bench, &run, &[lost]).unwrap();
    assert_eq!(resumed.committed, units - of);
    assert_eq!(bench.state_of(&run), RunState::Running);
    assert_eq!(bench.finish(&worker), of);
    assert_eq!(bench.state_of(&run), RunState::Complete);
}

#[test]
fn another_build_goes_on_only_where_nothing_is_committed() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (begun, _) = bench.submit("r");
    let done = bench.lease(&worker).unwrap();
    bench.commit(&worker, &done).unwrap();
    cancel(&mut bench, &begun);
    let (fresh, units) = bench.submit("s");
    cancel(&mut bench, &fresh);
    bench.driver.settings.build = "9.9.9".into();
    let refusal = resume(&mut bench, &begun, &[]).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Stale);
    let expected = format!(
        "run {begun} was begun by build {}, and this is build 9.9.9; go on with the build that \
         began it, or submit the evaluation again",
        orchestrator_proto::BUILD
    );
    assert_eq!(refusal.message, expected);
    resume(&mut bench, &fresh, &[]).unwrap();
    assert_eq!(bench.finish(&worker), units);
    let documents = Reader::open(bench.state.path()).unwrap().documents(&fresh).unwrap();
    assert_eq!(documents.unwrap().build, "9.9.9");
}

#[test]
fn a_run_that_set_samples_aside_is_incomplete_also_when_resumed() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    while let Some(assignment) = bench.lease(&worker) {
        let mut result = fixtures::result(&assignment);
        if let AssignedWork::EncodeImages(work) = &assignment.work
            && work.shard.start == 0
        {
            let sample = SampleId("x.jpg".into());
            result.quarantined.push(QuarantinedSample {
                position: 3,
                sample,
                reason: "torn".into(),
            });
        }
        bench.commit_with(&worker, &assignment, result).unwrap();
    }
    assert_eq!(bench.state_of(&run), RunState::Incomplete);
    let last = bench.events(&run).last().unwrap().sequence;
    // Nothing is left to compute.
    bench.lose(&worker);
    let resumed = resume(&mut bench, &run, &[]).unwrap();
    assert_eq!(resumed, Resumed { committed: units, units, after: last });
    assert_eq!(bench.state_of(&run), RunState::Incomplete);
    let states: Vec<RunEvent> = bench
        .events(&run)
        .into_iter()
        .skip_while(|event| event.sequence <= last)
        .map(|recorded| recorded.event)
        .collect();
    let changed = |state| RunEvent::StateChanged { state };
    assert_eq!(states, [changed(RunState::Running), changed(RunState::Incomplete)]);
}

#[test]
fn results_of_an_earlier_end_go_when_the_run_is_opened_again() {
    let mut bench = Bench::new();
    bench.worker("a");
    let (run, _) = bench.submit("r");
    cancel(&mut bench, &run);
    let folder = crate::run_folder(bench.state.path(), &run);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("report.json"), "old").unwrap();
    resume(&mut bench, &run, &[]).unwrap();
    assert!(!folder.exists());
}

#[test]
fn other_bytes_behind_one_path_are_refused_by_name() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, _) = bench.submit("r");
    let mut refused = 0;
    while let Some(assignment) = bench.lease(&worker) {
        let mut result = fixtures::result(&assignment);
        if let AssignedWork::EncodeImages(work) = &assignment.work
            && work.dataset.name.as_str() == "a"
            && work.shard.start == 0
        {
            // Two trials read this shard, in two lives of the coordinator.
            result.samples = Some(Digest::of(&[refused]));
            refused += 1;
            let answer = bench.commit_with(&worker, &assignment, result);
            if refused == 1 {
                answer.unwrap();
                continue;
            }
            let Ok(CommitOutcome::Refused(problem)) = answer else { panic!("{answer:?}") };
            assert!(
                problem.contains("samples 0..256 of dataset `a` are not the bytes"),
                "{problem}"
            );
            continue;
        }
        bench.commit_with(&worker, &assignment, result).unwrap();
    }
    assert_eq!(refused, 2, "a unit with other bytes is not tried again");
    assert_eq!(bench.state_of(&run), RunState::Incomplete);
}
