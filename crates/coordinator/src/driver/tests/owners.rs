//! Runs and names belong to who holds their certificate.

use orchestrator_tls::{Identity, Role};

use super::*;
use crate::access::Caller;

fn submit_as(bench: &mut Bench, owner: &Caller) -> RunId {
    let inventory = bench.ask(Request::Inventory).unwrap();
    let mut submitted = Box::new(fixtures::submitted("r", &inventory));
    submitted.submission.owner = owner.name();
    bench.ask(|reply| Request::Submit(submitted, reply)).unwrap().0
}

#[test]
fn a_run_is_changed_by_its_owner_also_after_a_restart_and_by_nobody_else() {
    let mut bench = Bench::new();
    bench.worker("a");
    let [owner, other] = ["owner", "other"].map(|name| Caller::known(Role::Client, name));
    let run = submit_as(&mut bench, &owner);
    let cancel = |bench: &mut Bench, by: &Caller| {
        bench.ask(|reply| Request::Cancel(run.clone(), by.clone(), reply))
    };
    let resume = |bench: &mut Bench, by: &Caller| {
        let call = Resumption { run: run.clone(), by: by.clone(), lost: BTreeSet::new() };
        bench.ask(|reply| Request::Resume(call, reply))
    };
    assert_eq!(cancel(&mut bench, &other).unwrap_err().code, RefusalCode::Denied);
    assert_eq!(resume(&mut bench, &other).unwrap_err().code, RefusalCode::Denied);
    assert_eq!(bench.state_of(&run), RunState::Running);
    let mut bench = bench.crash_and_restart();
    bench.worker("a");
    assert_eq!(cancel(&mut bench, &other).unwrap_err().code, RefusalCode::Denied);
    cancel(&mut bench, &owner).unwrap();
    assert_eq!(bench.state_of(&run), RunState::Cancelled);
    assert_eq!(resume(&mut bench, &other).unwrap_err().code, RefusalCode::Denied);
    resume(&mut bench, &Caller::known(Role::Admin, "root")).unwrap();
    assert_eq!(bench.state_of(&run), RunState::Running);
}

#[test]
fn a_name_is_taken_over_by_the_same_certificate_only() {
    let mut bench = Bench::new();
    let [mine, other] = ["mine", "other"].map(|name| Identity::new(Role::Worker, name).unwrap());
    let mut register = |identity: &Identity, unique| {
        let offer = fixtures::offer("a", 0);
        let registration = Registration {
            session: identity.session(unique),
            identity: Some(identity.short().to_owned()),
            node: offer.node.clone(),
            slices: vec![offer],
            libtorch: "2.11.0".into(),
            held: Vec::new(),
            withdrawn: Vec::new(),
        };
        bench.ask(|reply| Request::Register(registration, reply))
    };
    register(&mine, "s1").unwrap();
    let refusal = register(&other, "s2").unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Denied);
    assert!(refusal.message.contains("a worker with another certificate"), "{refusal}");
    register(&mine, "s3").unwrap();
    let view = bench.ask(Request::Snapshot).unwrap().cluster;
    let [worker] = view.workers.as_slice() else { panic!("{view:?}") };
    assert_eq!(worker.session, mine.session("s3"));
    assert_eq!(worker.identity.as_deref(), Some("worker/mine"));
}
