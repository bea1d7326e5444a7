//! `orchestrator-executor health`: started, heard, started anew when it ends, and never killed: a
//! monitor that is killed in the middle of a driver call may take the GPU with it. It leaves by
//! itself when its standard input closes, however we end.

use std::{path::PathBuf, process::Stdio, time::Duration};

use orchestrator_types::{DeviceId, DeviceNews};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::Devices;
use crate::{backoff::doubled, last_words::LastWords};

/// Ends in a row after which nobody watches any more.
const MOST_ENDS: u32 = 5;
/// Who lived this long did not fail to start.
const LIVED: Duration = Duration::from_mins(1);
/// How long it may take to leave.
const LEAVE: Duration = Duration::from_secs(2);

/// Keeps the program running until `end`. Without GPUs there is nothing to run.
pub(super) async fn run(
    program: PathBuf,
    gpus: Vec<DeviceId>,
    devices: std::sync::Arc<watch::Sender<Devices>>,
    mut requests: mpsc::Receiver<()>,
    end: CancellationToken,
) {
    let mut ends = 0;
    while !gpus.is_empty() && !end.is_cancelled() {
        let started = Instant::now();
        let why = once(&program, &gpus, &devices, &mut requests, &end).await;
        if end.is_cancelled() {
            return;
        }
        ends = if started.elapsed() < LIVED { ends + 1 } else { 1 };
        tracing::warn!(ends, "the watch over the GPUs ended: {why}");
        if ends >= MOST_ENDS {
            tracing::error!("GPUs are not watched any more; work goes on without");
            // What was read of them grows old and must not hold anything up.
            devices.send_modify(|devices| {
                for device in devices.values_mut() {
                    device.reading = None;
                }
            });
            return;
        }
        tokio::select! {
            () = end.cancelled() => {}
            () = sleep(doubled(ends)) => {}
        }
    }
}

/// One life of the program; why it ended.
async fn once(
    program: &PathBuf,
    gpus: &[DeviceId],
    devices: &watch::Sender<Devices>,
    requests: &mut mpsc::Receiver<()>,
    end: &CancellationToken,
) -> String {
    let mut command = Command::new(program);
    command.arg("health");
    for gpu in gpus {
        command.arg("--device").arg(gpu.to_string());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A signal of the terminal is the agent's business.
    command.process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return format!("{} cannot be started: {error}", program.display()),
    };
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(input), Some(output), Some(errors)) = pipes else {
        return "it has no pipes".to_owned();
    };
    let mut words = LastWords::of("health", None, errors);
    converse(input, output, devices, requests, end).await;
    leave(&mut child, &mut words).await
}

/// Passes requests on and takes news in, until either side ends. Its standard input is then closed.
async fn converse(
    mut input: ChildStdin,
    output: ChildStdout,
    devices: &watch::Sender<Devices>,
    requests: &mut mpsc::Receiver<()>,
    end: &CancellationToken,
) {
    let mut lines = BufReader::new(output).lines();
    loop {
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            line = lines.next_line() => match line {
                Ok(Some(line)) => match serde_json::from_str(&line) {
                    Ok(news) => hear(devices, news),
                    // News of a newer build.
                    Err(error) => tracing::debug!(%error, line, "news that cannot be read"),
                },
                Ok(None) | Err(_) => return,
            },
            Some(()) = requests.recv() => if input.write_all(b"read\n").await.is_err() { return },
        }
    }
}

async fn leave(child: &mut Child, words: &mut LastWords) -> String {
    match timeout(LEAVE, child.wait()).await {
        Ok(Ok(status)) => format!("{status}{}", words.told().await),
        Ok(Err(error)) => error.to_string(),
        Err(_) => {
            let pid = child.id();
            tracing::warn!(?pid, "the watch over the GPUs does not end; the driver may hold it");
            "it does not end".to_owned()
        }
    }
}

/// Takes news in.
pub(super) fn hear(devices: &watch::Sender<Devices>, news: DeviceNews) {
    devices.send_modify(|devices| {
        let device = news.device().clone();
        devices.entry(device).or_default().hear(news, Instant::now());
    });
}
