//! Describing, waiting, cancelling.

use std::time::{Duration, Instant};

use orchestrator_proto::{
    PROTOCOL_VERSION,
    domain::AssignedWork,
    v1::{self, execute_event::Event},
};

use crate::{
    bench::{Bench, request},
    fixtures::{IMAGES, folder, images},
};

#[tokio::test]
async fn an_executor_says_what_it_is_and_refuses_an_empty_message() {
    let bench = Bench::start(1).await;
    let reply = bench.client().describe(v1::DescribeRequest {}).await.unwrap().into_inner();
    assert_eq!(reply.protocol_version, PROTOCOL_VERSION);
    assert_eq!((reply.build.as_str(), reply.libtorch.as_str()), ("test", "2.11.0"));
    assert_eq!(reply.pid, std::process::id());
    let status = bench.client().execute(v1::ExecuteRequest { assignment: None }).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert_eq!(status.message(), "invalid message: assignment is missing");
}

#[tokio::test]
async fn dropping_the_stream_stops_the_attempt_within_a_second() {
    let (fluent, _) = folder();
    let bench = Bench::start(2).await;
    let all = AssignedWork::EncodeImages(images(&fluent, 0, IMAGES));
    let mut events = bench.client().execute(request(all)).await.unwrap().into_inner();
    let first = events.message().await.unwrap().unwrap().event;
    assert!(matches!(first, Some(Event::Progress(_))), "{first:?}");
    // The next attempt waits for the first one to be gone; it is refused as soon as it is looked at.
    let next = AssignedWork::EncodeImages(images(&fluent, IMAGES, IMAGES + 1));
    let waiting = bench.client().execute(request(next)).await.unwrap();
    let dropped = Instant::now();
    drop(events);
    let answer = waiting.into_inner().message().await.unwrap().unwrap().event;
    assert!(matches!(answer, Some(Event::Failure(_))), "{answer:?}");
    assert!(dropped.elapsed() < Duration::from_secs(1), "{:?}", dropped.elapsed());
}

#[tokio::test]
async fn one_attempt_runs_and_the_others_wait_their_turn() {
    let (fluent, _) = folder();
    let bench = Bench::start(2).await;
    let work = |start| bench.execute(AssignedWork::EncodeImages(images(&fluent, start, start + 8)));
    let (a, b, c, d) = tokio::join!(work(0), work(8), work(16), work(24));
    for result in [a, b, c, d] {
        assert_eq!(result.unwrap().rows, 8);
    }
}
