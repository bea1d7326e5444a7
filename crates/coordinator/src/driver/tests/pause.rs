//! A disk that is full for a while.

use super::*;
use crate::access::Caller;

/// Until the next attempt to write.
const RETRY_MS: u64 = 1_000;

#[test]
fn while_nothing_can_be_stored_callers_are_refused_and_workers_stay() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    let held = bench.lease(&worker).unwrap();
    bench.driver.store.refuse_writes(true);
    let refused = |bench: &mut Bench| {
        let cancelled =
            bench.send(|reply| Request::Cancel(run.clone(), Caller::default(), reply)).try_recv();
        assert!(cancelled.is_err(), "no answer: the handler tells the reason");
    };
    refused(&mut bench);
    let reason = bench.driver.pause.reason().expect("the store cannot be written");
    assert!(reason.contains("goes on by itself"), "{reason}");

    // Much longer than a lease, and every attempt to write fails.
    let call = Bench::call(&worker, "x", 2 * RETRY_MS);
    let mut waiting = bench.send(|reply| Request::Lease(call, reply));
    for second in 0..5 {
        assert_eq!(bench.heartbeat(&worker, &[held.token]), []);
        bench.pass(RETRY_MS);
        assert_eq!(waiting.try_recv().is_ok(), second == 1, "let go when its time is up");
        refused(&mut bench);
    }
    let snapshot = bench.ask(Request::Snapshot).unwrap();
    assert_eq!(snapshot.runs[&run].waits.as_deref(), Some(&*reason), "status tells it");

    bench.driver.store.refuse_writes(false);
    refused(&mut bench);
    bench.pass(RETRY_MS);
    assert_eq!(bench.driver.pause.reason(), None);
    assert_eq!(bench.commit(&worker, &held), Ok(CommitOutcome::Committed));
    assert_eq!(bench.finish(&worker), units - 1);
    assert_eq!(bench.state_of(&run), RunState::Complete);
    assert_eq!(bench.count(&run, |event| matches!(event, RunEvent::WorkerLost { .. })), 0);
    assert_eq!(crate::check_store(bench.state.path()).unwrap(), []);
}

#[tokio::test]
async fn a_caller_is_told_why_nothing_can_be_stored() {
    let mut bench = Bench::new();
    bench.worker("a");
    let (run, _) = bench.submit("r");
    let (handle, mut requests) = handle(crate::life::Life::default(), bench.driver.pause.clone());
    bench.driver.store.refuse_writes(true);
    let asking = tokio::spawn(async move {
        let ask = |reply| Request::Cancel(run, Caller::default(), reply);
        handle.ask(std::time::Duration::from_secs(10), ask).await
    });
    let request = requests.recv().await.unwrap();
    assert!(bench.driver.turn(vec![request]).is_err());
    let refusal = asking.await.unwrap().unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Unavailable);
    assert!(refusal.message.starts_with("the coordinator cannot write to its disk ("), "{refusal}");
}
