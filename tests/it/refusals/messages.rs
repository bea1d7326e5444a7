//! Messages to a real coordinator that no worker or client of ours sends.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use http_body_util::{BodyExt as _, Full};
use orchestrator_proto::{MESSAGE_LIMIT_BYTES, connect};
use orchestrator_tests::cluster::{Cluster, Setup, is_alive};
use tonic::{
    Status,
    codegen::{Bytes, Service as _, http},
    transport::Channel,
};

use super::{Rows, Seen};

pub(super) fn attack(rows: &mut Rows) {
    let cluster = Cluster::start(Setup::default());
    let pid = cluster.coordinator_pid();
    let mut seen: Vec<(&str, &str, Seen)> = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = connect(&cluster.url()).await.unwrap();
        for (attack, made, method, bytes) in calls() {
            seen.push((attack, made, call(&channel, method, &bytes, None).await));
        }
        let huge = "x".repeat(17 << 10);
        let answer = call(&channel, "Inspector/Runs", &framed(&[]), Some(&huge)).await;
        seen.push(("headers without end", "17 KiB in one header", answer));
    });
    for (attack, made, on_http, words) in bytes() {
        let address = if on_http { cluster.http() } else { cluster.grpc() };
        seen.push((attack, made, raw(address, &words)));
    }
    assert!(is_alive(pid) && cluster.coordinator_pid() == pid);
    for (attack, made, seen) in seen {
        rows.add(attack, made, &seen);
    }
    let nodes = cluster.run(&["nodes"]);
    assert_eq!(nodes.code, Some(0), "{nodes:#?}");
}

/// What it is, how it is made, the method and all bytes of the call.
type Call = (&'static str, &'static str, &'static str, Vec<u8>);

fn calls() -> Vec<Call> {
    let large = vec![0x0a; MESSAGE_LIMIT_BYTES + 1];
    vec![
        ("oversized message", "8 MiB and a byte to Submit", "Coordinator/Submit", framed(&large)),
        (
            "oversized question",
            "2 MiB and a byte to Status",
            "Inspector/Status",
            framed(&large[..=2 << 20]),
        ),
        (
            "message of 4 GiB",
            "a frame that claims it, and ends",
            "Coordinator/Stage",
            vec![0, 0xff, 0xff, 0xff, 0xff],
        ),
        (
            "bytes that are no message",
            "a field that leaves the message",
            "Coordinator/Commit",
            framed(&[0x0a, 0xff, 0xff, 3, 1]),
        ),
        (
            "group without end",
            "a tag of a group that nobody opened",
            "Coordinator/Lease",
            framed(&[0x0c]),
        ),
        (
            "compressed by nobody knows what",
            "a frame with the flag set",
            "Coordinator/Fetch",
            vec![1, 0, 0, 0, 1, 7],
        ),
        (
            "frame that is cut",
            "nine bytes announced, two sent",
            "Coordinator/Heartbeat",
            vec![0, 0, 0, 0, 9, 1, 2],
        ),
        ("message of nothing", "no field", "Coordinator/Register", framed(&[])),
        (
            "run that is a path",
            "`../../etc/passwd` to Results",
            "Coordinator/Results",
            framed(&text(1, "../../etc/passwd")),
        ),
        (
            "run with words for the terminal",
            "an escape to Cancel",
            "Coordinator/Cancel",
            framed(&text(1, "\u{1b}[2J")),
        ),
        ("digest of 31 bytes", "to Fetch", "Coordinator/Fetch", framed(&text(1, &"x".repeat(31)))),
        (
            "failure of nobody",
            "a session that was never given",
            "Coordinator/Heartbeat",
            framed(&text(1, "someone")),
        ),
        ("method that is not there", "Coordinator/Shell", "Coordinator/Shell", framed(&[])),
    ]
}

/// What it is, how it is made, whether it goes to the HTTP port, and what is sent.
type Noise = (&'static str, &'static str, bool, Vec<u8>);

fn bytes() -> Vec<Noise> {
    vec![
        (
            "another protocol on the gRPC port",
            "HTTP/1.1",
            false,
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        ),
        ("noise on the gRPC port", "64 KiB of 0xff", false, vec![0xff; 1 << 16]),
        (
            "a verb that changes something on the HTTP port",
            "`DELETE /metrics`",
            true,
            b"DELETE /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_vec(),
        ),
        (
            "a path that climbs on the HTTP port",
            "`GET /../../etc/passwd`",
            true,
            b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                .to_vec(),
        ),
        (
            "the HTTP port by a name that is not ours",
            "`Host: example.org`, as a page would send it",
            true,
            b"GET /metrics HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n".to_vec(),
        ),
        (
            "headers without end on the HTTP port",
            "1 MiB",
            true,
            [b"GET /metrics HTTP/1.1\r\nA: ".as_slice(), &vec![b'x'; 1 << 20]].concat(),
        ),
    ]
}

/// A message in gRPC's frame: not compressed, its length, itself.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], length.as_slice(), message].concat()
}

/// A text field of fewer than 128 bytes.
fn text(field: u8, content: &str) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    [&[field << 3 | 2, length][..], content.as_bytes()].concat()
}

async fn call(channel: &Channel, method: &str, bytes: &[u8], header: Option<&str>) -> Seen {
    let mut request = http::Request::post(format!("/orchestrator.v1.{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(value) = header {
        request = request.header("x-noise", value);
    }
    let body = tonic::body::Body::new(Full::new(Bytes::copy_from_slice(bytes)));
    let mut channel = channel.clone();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let afterwards = "the same process answers `nodes`".to_owned();
    let answer = match channel.call(request.body(body).unwrap()).await {
        Ok(answer) => answer,
        Err(error) => {
            let (answer, said) = ("no call".to_owned(), error.to_string());
            return Seen { answer, said, afterwards };
        }
    };
    let (head, body) = answer.into_parts();
    if !head.status.is_success() {
        return Seen {
            answer: format!("HTTP {}", head.status.as_u16()),
            said: String::new(),
            afterwards,
        };
    }
    let trailers = match body.collect().await {
        Ok(body) => body.trailers().cloned().unwrap_or_default(),
        Err(status) => {
            let (answer, said) = (format!("{:?}", status.code()), status.message().to_owned());
            return Seen { answer, said, afterwards };
        }
    };
    // An error may stand before the body, which is empty then, or behind it.
    let status = Status::from_header_map(&head.headers);
    let status = status.or_else(|| Status::from_header_map(&trailers)).unwrap();
    Seen { answer: format!("{:?}", status.code()), said: status.message().to_owned(), afterwards }
}

/// What a socket says to these bytes: its first line, as far as that is text.
fn raw(address: &str, words: &[u8]) -> Seen {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let afterwards = "the same process answers `nodes`".to_owned();
    let written = stream.write_all(words);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "nobody hangs up");
    }
    // Who hangs up in the middle may lose its own words with what we sent.
    if written.is_err() || words.len() > 1 << 17 {
        return Seen { answer: "hung up".to_owned(), said: String::new(), afterwards };
    }
    let line = answer.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let said = String::from_utf8(line.to_vec()).ok().filter(|line| line.starts_with("HTTP/"));
    let answer = if said.is_some() { "refused" } else { "hung up" }.to_owned();
    Seen { answer, said: said.unwrap_or_default(), afterwards }
}
