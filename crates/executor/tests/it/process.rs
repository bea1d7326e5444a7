//! The program: how it starts, and every way in which it ends.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
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

/// Whether no process has this number, not even one that waits to be reaped.
fn is_gone(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "still waiting for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_kernel_ends_it_with_its_agent_although_standard_input_stays_open() {
    let folder = tempfile::tempdir().unwrap();
    let program = command(&folder);
    // A shell for an agent: it stays beside its child, whose pid it tells. Standard input is ours,
    // as if it had leaked to another process.
    let mut agent = Command::new("sh");
    agent.args(["-c", r#"exec 3<&0; "$@" --agent $$ <&3 3<&- & echo $!; wait"#, "sh"]);
    agent.arg(program.get_program()).args(program.get_args());
    let mut agent =
        agent.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(agent.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let pid: u32 = pid.trim().parse().unwrap();
    until("the executor", || folder.path().join("socket").exists());
    // Its own threads are stopped, so that nothing but the kernel can end it.
    kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGSTOP).unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    until("its end", || is_gone(pid));
    assert!(folder.path().join("socket").exists(), "it did not leave in order");
    drop(agent.stdin.take());
}

#[test]
fn it_does_not_start_for_an_agent_that_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let mut child = command(&folder).arg("--agent").arg(gone.id().to_string()).spawn().unwrap();
    let open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(open);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(&format!("the agent, process {}, is gone", gone.id())), "{told}");
}

/// A library that answers like NVML, where the loader finds it.
fn nvml(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/library/nvml.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let library = folder.join("libnvidia-ml.so.1");
    let arguments = ["-shared", "-fPIC", "-o"];
    let status = Command::new(compiler).args(arguments).args([library, source]).status();
    assert!(status.unwrap().success());
}

#[test]
fn health_tells_how_full_a_device_is_and_what_errors_it_has() {
    let folder = tempfile::tempdir().unwrap();
    nvml(folder.path());
    let mut child = Command::new(env!("CARGO_BIN_EXE_orchestrator-executor"))
        .args(["health", "--device", "MIG-0002"])
        .env("LD_LIBRARY_PATH", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let reading = r#"{"kind":"reading","device":"MIG-0002","used_bytes":3221225472,"total_bytes":10737418240,"processes":[{"pid":2000001,"used_bytes":2147483648},{"pid":2000002,"used_bytes":null}]}"#;
    let mut first: Vec<String> = (&mut lines).take(4).collect();
    first.sort();
    let fault = r#"{"kind":"xid","device":"MIG-0002","xid":999,"class":"fault","told":"XID 999, which NVIDIA's catalogue does not explain"}"#;
    let lost = r#"{"kind":"lost","device":"MIG-0002"}"#;
    let needs_reset = r#"{"kind":"xid","device":"MIG-0002","xid":79,"class":"needs_reset","told":"XID 79: GPU has fallen off the bus (NVIDIA advises: restart the machine)"}"#;
    assert_eq!(first, [lost, reading, needs_reset, fault]);
    input.write_all(b"read\n").unwrap();
    assert_eq!(lines.next().unwrap(), reading, "when asked");
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_nvml_health_says_so_and_waits_for_the_end_of_its_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_orchestrator-executor"))
        .args(["health", "--device", "GPU-00000000", "--device", "GPU-00000001"])
        .env("LD_LIBRARY_PATH", "/nowhere")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for device in ["GPU-00000000", "GPU-00000001"] {
        let line = lines.next().unwrap();
        let expected = format!(r#"{{"kind":"unwatched","device":"{device}","why":"#);
        assert!(line.starts_with(&expected), "{line}");
    }
    input.write_all(b"read\n").unwrap();
    thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none(), "it goes on");
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(lines.next(), None);
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
