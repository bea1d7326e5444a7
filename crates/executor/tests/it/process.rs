//! The program: how it starts, and every way in which it ends.

use std::{
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use orchestrator_proto::{
    connect_unix,
    v1::{DescribeRequest, executor_client::ExecutorClient},
};
use tempfile::TempDir;

/// Far above what it takes; a process that hangs is found all the same.
const PATIENCE: Duration = Duration::from_secs(30);

struct Program {
    folder: TempDir,
    child: Child,
}

impl Program {
    /// Starts it and waits until it listens.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = command(&folder).spawn().unwrap();
        let mut program = Self { folder, child };
        let started = Instant::now();
        while !program.socket().exists() {
            assert!(program.child.try_wait().unwrap().is_none(), "it ended");
            assert!(started.elapsed() < PATIENCE, "it does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        program
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for its end; the socket is then gone.
    fn end(mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(!self.socket().exists());
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn command(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrator-executor"));
    command
        .arg("--socket")
        .arg(folder.path().join("socket"))
        .arg("--blobs")
        .arg(folder.path().join("blobs"))
        .arg("--cache")
        .arg(folder.path().join("cache"))
        .args(["--threads", "1", "--build", "b1", "--ceiling", "4294967296"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[tokio::test]
async fn it_says_who_it_is_and_ends_when_its_standard_input_closes() {
    let mut program = Program::start();
    let channel = connect_unix(program.socket()).await.unwrap();
    let mut client = ExecutorClient::new(channel);
    let reply = client.describe(DescribeRequest {}).await.unwrap().into_inner();
    assert_eq!((reply.build.as_str(), reply.pid), ("b1", program.child.id()));
    drop(program.child.stdin.take());
    assert!(program.end().success());
}

#[test]
fn it_ends_in_order_on_the_usual_signals_and_ignores_a_terminal_that_hangs_up() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut program = Program::start();
        program.signal(Signal::SIGHUP);
        thread::sleep(Duration::from_millis(200));
        assert!(program.child.try_wait().unwrap().is_none());
        program.signal(signal);
        assert!(program.end().success());
    }
}

#[test]
fn it_survives_the_thread_that_started_it() {
    let mut program = thread::spawn(Program::start).join().unwrap();
    thread::sleep(Duration::from_millis(200));
    assert!(program.child.try_wait().unwrap().is_none());
}

#[test]
fn a_socket_in_use_is_an_error_in_words_and_stays() {
    let program = Program::start();
    let second = command(&program.folder).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let told = String::from_utf8(second.stderr).unwrap();
    assert!(told.contains("cannot listen on "), "{told}");
    assert!(told.contains("is another executor using it?"), "{told}");
    assert!(program.socket().exists());
}

#[test]
fn people_are_told_not_to_start_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrator-executor"));
    let help = command.arg("--help").output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(text.contains("People start `orchestrator submit`"), "{text}");
    for option in ["--socket", "--blobs", "--cache", "--threads", "--build"] {
        assert!(text.contains(option), "{text}");
    }
}
