//! What probes hear: a service is ready when it can do its work, and no longer when it starts to leave.

use std::time::Duration;

use orchestrator_tests::{
    cluster::{Cluster, Setup, document, wait_until},
    small_evaluation,
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// What a probe of this service hears; none: nobody answers.
fn probe(address: &str, service: &str) -> Option<ServingStatus> {
    let (address, service) = (format!("http://{address}"), service.to_owned());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = HealthClient::new(orchestrator_proto::connect(&address).await.ok()?);
        let asked = client.check(HealthCheckRequest { service });
        let answer = tokio::time::timeout(Duration::from_secs(10), asked).await.ok()?;
        Some(answer.ok()?.into_inner().status())
    })
}

#[test]
fn a_worker_is_ready_while_it_takes_work_and_alive_until_it_is_gone() {
    let mut cluster = Cluster::start(Setup {
        certified: true,
        coordinator: ["--health", "127.0.0.1:0"].map(str::to_owned).to_vec(),
        ..Setup::default()
    });
    let coordinator = cluster.health("coordinator");
    for service in ["", "liveness", "readiness"] {
        assert_eq!(probe(&coordinator, service), Some(ServingStatus::Serving), "{service:?}");
    }
    // The plaintext port tells health and nothing else.
    assert_eq!(probe(&coordinator, "orchestrator.v1.Coordinator"), None);
    let nodes = cluster.home().run(&["nodes", "--coordinator", &format!("http://{coordinator}")]);
    assert_eq!(nodes.code, Some(6), "{nodes:#?}");

    // Nobody to work for yet.
    cluster.kill_coordinator();
    let home = format!("home={}", cluster.home().path().display());
    let data = format!("data={}", orchestrator_tests::data().display());
    let arguments = ["--health", "127.0.0.1:0", "--data-root", &home, "--data-root", &data];
    cluster.begin_worker("a", &arguments);
    let worker = cluster.health("a");
    assert_eq!(probe(&worker, "liveness"), Some(ServingStatus::Serving));
    assert_eq!(probe(&worker, "readiness"), Some(ServingStatus::NotServing));
    cluster.start_coordinator();
    cluster.let_be_ready("a");
    wait_until("readiness", || probe(&worker, "readiness") == Some(ServingStatus::Serving));

    // The coordinator is away for two heartbeats: no work can come.
    cluster.pause_coordinator();
    wait_until("unreadiness", || probe(&worker, "") == Some(ServingStatus::NotServing));
    orchestrator_tests::cluster::go_on(cluster.coordinator_pid());
    wait_until("readiness", || probe(&worker, "") == Some(ServingStatus::Serving));

    let evaluation = small_evaluation(cluster.home(), 700, "[auto]");
    let submit = cluster.submit(&evaluation, &[]);
    cluster.freeze_encoding("a");
    cluster.ask_worker_to_leave("a");
    wait_until("drain", || probe(&worker, "readiness") == Some(ServingStatus::NotServing));
    assert_eq!(probe(&worker, "liveness"), Some(ServingStatus::Serving));
    cluster.continue_executors("a");
    assert_eq!(cluster.worker_left("a"), Some(0));
    assert_eq!(probe(&worker, "liveness"), None);
    // What it had in work was finished, and the rest goes to others.
    assert_eq!(cluster.history().count("unit_failed"), 0);
    cluster.start_worker("b");
    document(submit, 0);
}
