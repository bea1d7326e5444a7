//! GPUs that fall ill: the agent against a program that tells recorded news of them.
//!
//! The device of a test is named after its folder, so that the program finds what to tell: it prints
//! what is added to the file `news`, and the file `reading` at its start and on request.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use orchestrator_proto::v1::FailureClass;
use orchestrator_types::{ByteCount, DeviceId, DeviceNews, DeviceUse, XidClass};
use orchestrator_worker::Agent;

use crate::{
    coordinator::Notes,
    executor::HANGS,
    trials,
    workplace::{Workplace, is_gone, until},
};

trials![
    an_applications_error_kills_its_executor_and_counts,
    a_fault_withdraws_the_slice_and_the_unit_is_not_blamed,
    a_fault_of_an_idle_gpu_withdraws_its_slice,
    a_silent_gpu_is_offered_again_when_it_answers,
    memory_that_stays_in_use_fences_the_slice_until_it_is_free,
    without_nvml_work_goes_on,
    the_watch_ends_with_its_agent,
    a_watch_that_ends_is_started_again,
];

/// The watching program. It leaves when its standard input ends, and its pid in `watching`.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let folder = PathBuf::from(arguments[3].strip_prefix("GPU-").unwrap());
    let mut news = File::open(folder.join("news")).unwrap();
    news.seek(SeekFrom::End(0)).unwrap();
    replace(&folder, "watching", &std::process::id().to_string());
    let tell_reading = |folder: &Path| {
        if let Ok(reading) = fs::read_to_string(folder.join("reading")) {
            print(&reading);
        }
    };
    tell_reading(&folder);
    std::thread::spawn(move || {
        loop {
            let mut text = String::new();
            news.read_to_string(&mut text).unwrap();
            print(&text);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    for line in BufReader::new(std::io::stdin()).lines() {
        assert_eq!(line.unwrap(), "read");
        tell_reading(&folder);
    }
    ExitCode::SUCCESS
}

/// Writes a file that is never read half written.
fn replace(folder: &Path, name: &str, text: &str) {
    let new = folder.join(format!("{name}.new"));
    fs::write(&new, text).unwrap();
    fs::rename(new, folder.join(name)).unwrap();
}

fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).unwrap();
    out.flush().unwrap();
}

fn device(workplace: &Workplace) -> DeviceId {
    format!("GPU-{}", workplace.folder().display()).parse().unwrap()
}

/// Slice 0 has a GPU, the others have not.
async fn agent(workplace: &Workplace, slices: u32) -> Agent {
    File::create(workplace.folder().join("news")).unwrap();
    let mut config = workplace.config(slices);
    config.slices[0].device = device(workplace);
    Agent::start(config).await.unwrap()
}

fn tell(workplace: &Workplace, news: &DeviceNews) {
    let mut file = OpenOptions::new().append(true).open(workplace.folder().join("news")).unwrap();
    writeln!(file, "{}", serde_json::to_string(news).unwrap()).unwrap();
}

fn error(workplace: &Workplace, class: XidClass) {
    let told = format!("XID of {class:?}");
    tell(workplace, &DeviceNews::Xid { device: device(workplace), xid: 1, class, told });
}

/// What readings say from now on.
fn reads(workplace: &Workplace, used: ByteCount) {
    let total_bytes = ByteCount::gib(80);
    let usage = DeviceUse { used_bytes: used, total_bytes, processes: None };
    let news = DeviceNews::Reading { device: device(workplace), usage };
    let text = serde_json::to_string(&news).unwrap() + "\n";
    replace(workplace.folder(), "reading", &text);
}

fn watching(workplace: &Workplace) -> i32 {
    fs::read_to_string(workplace.folder().join("watching")).unwrap().parse().unwrap()
}

/// Waits for this many registrations; the slices of the last.
async fn offered(workplace: &Workplace, registrations: usize) -> Vec<String> {
    let coordinator = &workplace.coordinator;
    coordinator.until("a registration", |n| n.registered.len() == registrations).await;
    let slices = &coordinator.notes().registered[registrations - 1].slices;
    slices.iter().map(|slice| slice.id.clone()).collect()
}

/// What the last registration tells of slices that are not offered: names and reasons.
fn withdrawn(workplace: &Workplace) -> Vec<(String, String)> {
    let notes = workplace.coordinator.notes();
    let withdrawn = notes.registered.last().unwrap().withdrawn.iter();
    withdrawn.map(|gone| (gone.slice.as_ref().unwrap().id.clone(), gone.reason.clone())).collect()
}

fn told((slice, reason): (&str, &str)) -> (String, String) {
    (slice.to_owned(), reason.to_owned())
}

/// An executor is too young in its first second for news of an earlier one's errors.
async fn grown_up() {
    tokio::time::sleep(Duration::from_millis(1200)).await;
}

async fn an_applications_error_kills_its_executor_and_counts() {
    let workplace = Workplace::new().await;
    reads(&workplace, ByteCount::gib(1));
    let agent = agent(&workplace, 1).await;
    let before = workplace.executors();
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    grown_up().await;
    error(&workplace, XidClass::Application);
    let (class, message) = workplace.failed(HANGS).await;
    let device = device(&workplace);
    let expected = format!("the executor was killed because of {device}: XID of Application");
    assert_eq!((class, message), (FailureClass::Crash, expected));
    workplace.hand_out(1);
    workplace.committed(1).await;
    assert!(is_gone(before[0]));
    agent.shutdown().await;
    assert_eq!(workplace.coordinator.notes().registered.len(), 1, "the slice stays offered");
}

async fn a_fault_withdraws_the_slice_and_the_unit_is_not_blamed() {
    let workplace = Workplace::new().await;
    let agent = agent(&workplace, 1).await;
    let ended = tokio::spawn(async move {
        let mut agent = agent;
        agent.ended().await
    });
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    error(&workplace, XidClass::NeedsReset);
    let (class, message) = workplace.failed(HANGS).await;
    let device = device(&workplace);
    let why = "the driver reports XID of NeedsReset; the GPU or the node must be reset";
    let expected = format!("the executor was killed because of {device}: {why}");
    assert_eq!((class, message), (FailureClass::Infrastructure, expected));
    // It was the only one.
    let error = ended.await.unwrap().unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(
        error.to_string(),
        "no slice is left to work on: slice here.0 has no executor and gets none"
    );
    assert_eq!(cause, format!("the slice is fenced: {why}"));
    assert!(workplace.executors().is_empty());
}

async fn a_fault_of_an_idle_gpu_withdraws_its_slice() {
    let workplace = Workplace::new().await;
    let agent = agent(&workplace, 2).await;
    let gpu = workplace.executor(0);
    error(&workplace, XidClass::Fault);
    assert_eq!(offered(&workplace, 2).await, ["here.1"]);
    assert_eq!(withdrawn(&workplace), [("here.0", "the driver reports XID of Fault")].map(told));
    assert!(is_gone(gpu) && workplace.executors().len() == 1);
    workplace.hand_out(1);
    workplace.committed(1).await;
    agent.shutdown().await;
    let notes = workplace.coordinator.notes();
    assert!(notes.failed.is_empty() && notes.registered.len() == 2);
}

async fn a_silent_gpu_is_offered_again_when_it_answers() {
    let workplace = Workplace::new().await;
    let agent = agent(&workplace, 2).await;
    let asked = "its memory".to_owned();
    tell(&workplace, &DeviceNews::Timeout { device: device(&workplace), asked });
    assert_eq!(offered(&workplace, 2).await, ["here.1"]);
    reads(&workplace, ByteCount::gib(1));
    assert_eq!(offered(&workplace, 3).await, ["here.0", "here.1"]);
    assert_eq!(withdrawn(&workplace), [], "nothing is left to tell");
    until("both executors", || workplace.executors().len() == 2).await;
    agent.shutdown().await;
}

async fn memory_that_stays_in_use_fences_the_slice_until_it_is_free() {
    let workplace = Workplace::new().await;
    reads(&workplace, ByteCount::gib(1));
    let agent = agent(&workplace, 2).await;
    reads(&workplace, ByteCount::gib(40));
    let executor = workplace.executor(0);
    kill(Pid::from_raw(executor), Signal::SIGKILL).unwrap();
    assert_eq!(offered(&workplace, 2).await, ["here.1"]);
    assert_eq!(workplace.executors().len(), 1, "no other executor is started beside that memory");
    reads(&workplace, ByteCount::gib(1));
    assert_eq!(offered(&workplace, 3).await, ["here.0", "here.1"]);
    until("both executors", || workplace.executors().len() == 2).await;
    agent.shutdown().await;
}

async fn without_nvml_work_goes_on() {
    let workplace = Workplace::new().await;
    let agent = agent(&workplace, 1).await;
    let why = "there is no NVML".to_owned();
    tell(&workplace, &DeviceNews::Unwatched { device: device(&workplace), why });
    kill(Pid::from_raw(workplace.executor(0)), Signal::SIGKILL).unwrap();
    until("its end", || workplace.executors().is_empty()).await;
    workplace.hand_out(1);
    let ended = |notes: &mut Notes| !notes.committed.is_empty() || !notes.failed.is_empty();
    workplace.coordinator.until("an end of unit 1", ended).await;
    if workplace.coordinator.notes().committed.is_empty() {
        // The agent had not seen the death yet. Now it has.
        workplace.hand_out(2);
        workplace.committed(2).await;
    }
    agent.shutdown().await;
    assert_eq!(workplace.coordinator.notes().registered.len(), 1);
}

async fn the_watch_ends_with_its_agent() {
    let workplace = Workplace::new().await;
    let agent = agent(&workplace, 1).await;
    let pid = watching(&workplace);
    assert!(!is_gone(pid));
    agent.shutdown().await;
    assert!(is_gone(pid));
}

async fn a_watch_that_ends_is_started_again() {
    let workplace = Workplace::new().await;
    let agent = agent(&workplace, 2).await;
    let first = watching(&workplace);
    kill(Pid::from_raw(first), Signal::SIGTERM).unwrap();
    until("another one", || watching(&workplace) != first).await;
    error(&workplace, XidClass::Fault);
    assert_eq!(offered(&workplace, 2).await, ["here.1"]);
    agent.shutdown().await;
}
