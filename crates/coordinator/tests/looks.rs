//! A coordinator as those see it who only look: clients, probes, scrapers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, SocketAddr};

use orchestrator_coordinator::{ClusterView, Config, Coordinator, RunLine};
use orchestrator_proto::{
    BUILD, PROTOCOL_VERSION, connect,
    v1::{self, coordinator_client::CoordinatorClient, inspector_client::InspectorClient},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::{Code, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

struct Bench {
    coordinator: Coordinator,
    channel: Channel,
    _state: tempfile::TempDir,
}

async fn bench(reflection: bool) -> Bench {
    let state = tempfile::tempdir().unwrap();
    let config = Config {
        http: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        reflection,
        ..Config::local(state.path().to_owned())
    };
    let coordinator = Coordinator::start(config).await.unwrap();
    let channel = connect(&format!("http://{}", coordinator.address())).await.unwrap();
    Bench { coordinator, channel, _state: state }
}

/// The answer to a plain GET: head and body.
async fn get(address: SocketAddr, path: &str) -> (String, String) {
    get_as("localhost", address, path).await
}

/// The same, asked by this name.
async fn get_as(host: &str, address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn clients_of_another_protocol_are_refused_by_name() {
    let bench = bench(false).await;
    let mut inspector = InspectorClient::new(bench.channel.clone());
    let mut version = async |protocol_version, build: &str| {
        let request = v1::VersionRequest { protocol_version, build: build.to_owned() };
        inspector.version(request).await.map(tonic::Response::into_inner)
    };
    let reply = version(PROTOCOL_VERSION, BUILD).await.unwrap();
    assert!((reply.min_version..=reply.max_version).contains(&PROTOCOL_VERSION));
    assert_eq!(reply.build, BUILD);
    for foreign in [0, reply.min_version - 1, reply.max_version + 1, u32::MAX] {
        let refused = version(foreign, "9.9.9").await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let said = refused.message();
        assert!(said.contains("9.9.9") && said.contains(BUILD), "{said}");
        assert!(said.contains(&format!("version {foreign}")), "{said}");
    }
    bench.coordinator.shutdown().await;
}

#[tokio::test]
async fn an_empty_coordinator_says_so_and_unknown_runs_are_not_found() {
    let bench = bench(false).await;
    let mut inspector = InspectorClient::new(bench.channel.clone());
    let runs = inspector.runs(v1::RunsRequest {}).await.unwrap().into_inner().runs;
    assert_eq!(serde_json::from_slice::<Vec<RunLine>>(&runs).unwrap(), Vec::new());
    let nodes = inspector.nodes(v1::NodesRequest {}).await.unwrap().into_inner().nodes;
    let nodes: ClusterView = serde_json::from_slice(&nodes).unwrap();
    assert_eq!((nodes.epoch, nodes.workers.len()), (1, 0));
    let run = "01k0".to_owned();
    let status = inspector.status(v1::StatusRequest { run: run.clone() }).await.unwrap_err();
    let events = inspector.events(v1::EventsRequest { run, after: 0 }).await.unwrap_err();
    assert_eq!((status.code(), events.code()), (Code::NotFound, Code::NotFound));
    let broken = inspector.status(v1::StatusRequest { run: "../x".to_owned() }).await.unwrap_err();
    assert_eq!(broken.code(), Code::InvalidArgument);
    bench.coordinator.shutdown().await;
}

#[tokio::test]
async fn slices_that_a_worker_withdraws_are_shown_with_the_reason_and_not_counted() {
    let bench = bench(false).await;
    let slice = |name: &str| v1::Slice {
        id: name.to_owned(),
        device: "cpu".to_owned(),
        memory_bytes: 1 << 30,
        threads: 1,
    };
    let reason = "its GPU is lost".to_owned();
    let withdrawn = v1::WithdrawnSlice { slice: Some(slice("n.0")), reason: reason.clone() };
    let mut worker = CoordinatorClient::new(bench.channel.clone());
    let register = v1::RegisterRequest {
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        build: BUILD.to_owned(),
        node: "n".to_owned(),
        slices: vec![slice("n.1")],
        libtorch: "2.11.0".to_owned(),
        session: "s".to_owned(),
        held: Vec::new(),
        // One that means nothing is left out: this is for people only.
        withdrawn: vec![withdrawn, v1::WithdrawnSlice::default()],
    };
    worker.register(register.clone()).await.unwrap();
    let mut inspector = InspectorClient::new(bench.channel.clone());
    let mut slices = async || {
        let nodes = inspector.nodes(v1::NodesRequest {}).await.unwrap().into_inner().nodes;
        let nodes: ClusterView = serde_json::from_slice(&nodes).unwrap();
        let slices = nodes.workers.into_iter().flat_map(|worker| worker.slices);
        slices.map(|slice| (slice.slice.to_string(), slice.withdrawn)).collect::<Vec<_>>()
    };
    let both = [("n.0".to_owned(), Some(reason)), ("n.1".to_owned(), None)];
    assert_eq!(slices().await, both);
    let lease = v1::LeaseRequest {
        session: "s".to_owned(),
        slice: "n.0".to_owned(),
        ..v1::LeaseRequest::default()
    };
    assert!(worker.lease(lease).await.is_err(), "it gets no work");
    let all = vec![slice("n.0"), slice("n.1")];
    worker
        .register(v1::RegisterRequest { slices: all, withdrawn: Vec::new(), ..register })
        .await
        .unwrap();
    assert_eq!(slices().await, [("n.0".to_owned(), None), ("n.1".to_owned(), None)]);
    bench.coordinator.shutdown().await;
}

#[tokio::test]
async fn health_is_told_over_grpc_and_http_and_metrics_to_scrapers() {
    let bench = bench(false).await;
    let mut health = HealthClient::new(bench.channel.clone());
    for service in ["", "orchestrator.v1.Coordinator"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service:?}");
    }
    let http = bench.coordinator.http().unwrap();
    let (head, body) = get(http, "/healthz").await;
    assert!(head.starts_with("HTTP/1.1 200") && body == "ok\n", "{head}\n{body}");
    let (head, body) = get(http, "/metrics").await;
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.contains("orchestrator_sessions 0"), "{body}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    // A page that has its own name lead to this machine.
    let (head, _) = get_as("evil.example:7071", http, "/metrics").await;
    assert!(head.starts_with("HTTP/1.1 421"), "{head}");
    let (head, _) = get(http, "/other").await;
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    bench.coordinator.shutdown().await;
}

async fn services(channel: Channel) -> Result<Vec<String>, tonic::Status> {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let stream = client.server_reflection_info(tokio_stream::iter([request])).await?;
    let answer = stream.into_inner().message().await?.unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    Ok(list.service.into_iter().map(|service| service.name).collect())
}

#[tokio::test]
async fn reflection_is_there_on_request_only() {
    let open = bench(true).await;
    let listed = services(open.channel.clone()).await.unwrap();
    for service in ["orchestrator.v1.Coordinator", "orchestrator.v1.Inspector"] {
        assert!(listed.iter().any(|name| name == service), "{listed:?}");
    }
    open.coordinator.shutdown().await;
    let closed = bench(false).await;
    assert_eq!(services(closed.channel.clone()).await.unwrap_err().code(), Code::Unimplemented);
    closed.coordinator.shutdown().await;
}
