//! The executor that the tests use: real process, real socket, invented results. What it does is
//! chosen by the unit's number, and how it behaves as a process by the file `mode` in its cache.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use orchestrator_proto::{
    PROTOCOL_VERSION, server,
    v1::{
        self,
        assignment::Work,
        execute_event::Event,
        executor_server::{Executor, ExecutorServer},
    },
};
use orchestrator_types::Digest;
use tokio::{net::UnixListener, sync::mpsc, time::sleep};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

/// Ends with words on its standard error.
pub(crate) const ABORTS: u32 = 900;
/// Tells the same progress again and again.
pub(crate) const CHATTERS: u32 = 901;
/// Tells progress once and then nothing; leaves the file `stopped` when nobody listens any more.
pub(crate) const HANGS: u32 = 902;
/// Takes more and more memory.
pub(crate) const EATS: u32 = 906;
/// Says that the input is wrong.
pub(crate) const FAILS: u32 = 903;
/// Takes half a second.
pub(crate) const IS_SLOW: u32 = 904;
/// Ends its report without a result, and lives on.
pub(crate) const MUMBLES: u32 = 905;

pub(crate) const BUILD: &str = "test";
pub(crate) const LIBTORCH: &str = "0.0-stand-in";

pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag).unwrap();
        arguments[at + 1].clone()
    };
    let cache = PathBuf::from(value("--cache"));
    let mode = fs::read_to_string(cache.join("mode")).unwrap_or_default();
    if mode == "ends" || (mode == "first ends" && value("--socket").ends_with("/0.sock")) {
        eprintln!("libtorch_cpu.so: cannot open shared object file");
        return ExitCode::from(3);
    }
    assert!(value("--threads").parse::<u32>().unwrap() > 0);
    let build = if mode == "other build" { "other" } else { BUILD };
    let service = StandIn { blobs: value("--blobs").into(), cache, build };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve(service, value("--socket").into(), mode == "stubborn"));
    ExitCode::SUCCESS
}

async fn serve(service: StandIn, socket: PathBuf, stubborn: bool) {
    let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    let serving = server().add_service(ExecutorServer::new(service)).serve_with_incoming(incoming);
    let end_of_input = async {
        let read = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        tokio::task::spawn_blocking(read).await.unwrap().unwrap();
        if stubborn {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        served = serving => served.unwrap(),
        () = end_of_input => std::process::exit(0),
    }
}

struct StandIn {
    blobs: PathBuf,
    cache: PathBuf,
    build: &'static str,
}

#[tonic::async_trait]
impl Executor for StandIn {
    async fn describe(
        &self,
        _: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeReply>, Status> {
        Ok(Response::new(v1::DescribeReply {
            protocol_version: PROTOCOL_VERSION,
            build: self.build.to_owned(),
            libtorch: LIBTORCH.to_owned(),
            pid: std::process::id(),
        }))
    }

    type ExecuteStream = ReceiverStream<Result<v1::ExecuteEvent, Status>>;

    async fn execute(
        &self,
        request: Request<v1::ExecuteRequest>,
    ) -> Result<Response<Self::ExecuteStream>, Status> {
        let assignment = request.into_inner().assignment.unwrap();
        let (sender, events) = mpsc::channel(4);
        let (blobs, cache) = (self.blobs.clone(), self.cache.clone());
        tokio::spawn(async move {
            send(&sender, Event::Progress(v1::Progress { done: 1, total: 10 })).await;
            match assignment.unit {
                ABORTS => {
                    eprintln!("2026-01-02T03:04:05.678Z  INFO executor: nothing to see here");
                    eprintln!("terminate called after throwing an instance of 'c10::Error'");
                    std::process::abort();
                }
                CHATTERS => {
                    while !sender.is_closed() {
                        send(&sender, Event::Progress(v1::Progress { done: 1, total: 10 })).await;
                        sleep(Duration::from_millis(20)).await;
                    }
                }
                HANGS => {
                    sender.closed().await;
                    fs::write(cache.join("stopped"), "").unwrap();
                }
                MUMBLES => {}
                EATS => {
                    let mut eaten = Vec::new();
                    loop {
                        eaten.push(vec![1_u8; 16 << 20]);
                    }
                }
                FAILS => {
                    let class = v1::FailureClass::Invalid.into();
                    let message = "the picture is no picture".to_owned();
                    send(&sender, Event::Failure(v1::Failure { class, message })).await;
                }
                unit => {
                    if unit == IS_SLOW {
                        sleep(Duration::from_millis(500)).await;
                    }
                    let bytes = compute(&assignment, &blobs);
                    send(&sender, Event::Result(result(&bytes, &blobs))).await;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(events)))
    }
}

async fn send(events: &mpsc::Sender<Result<v1::ExecuteEvent, Status>>, event: Event) {
    drop(events.send(Ok(v1::ExecuteEvent { event: Some(event) })).await);
}

/// Ranking puts its inputs together, so that a test sees whether they arrived.
fn compute(assignment: &v1::Assignment, blobs: &std::path::Path) -> Vec<u8> {
    let read = |digest: &Vec<u8>| {
        let digest = Digest::try_from(digest.as_slice()).unwrap();
        fs::read(blobs.join(digest.to_string())).unwrap()
    };
    match assignment.work.as_ref().unwrap() {
        Work::Rank(rank) => rank.text_blobs.iter().flat_map(read).collect(),
        Work::EncodeTexts(_) | Work::EncodeImages(_) => output(assignment.unit),
    }
}

/// What an encoding unit computes.
pub(crate) fn output(unit: u32) -> Vec<u8> {
    let rows = format!("rows of unit {unit}");
    // Every other one is too large to travel with its result.
    if unit.is_multiple_of(2) { rows.into_bytes() } else { rows.repeat(400).into_bytes() }
}

fn result(bytes: &[u8], blobs: &std::path::Path) -> v1::UnitResult {
    let digest = Digest::of(bytes);
    fs::write(blobs.join(digest.to_string()), bytes).unwrap();
    v1::UnitResult {
        rows: 1,
        blob_digest: digest.as_bytes().to_vec(),
        blob_bytes: bytes.len() as u64,
        ..v1::UnitResult::default()
    }
}
