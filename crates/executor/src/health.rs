//! `orchestrator-executor health`: news of GPUs for the agent, which may not link NVML.
//!
//! Invariant: it ends when its standard input does, also while NVML hangs. Nobody should kill it: a
//! process that is killed in the middle of a driver call may take the GPU with it.

use std::{
    io::{self, BufRead as _, Write as _},
    sync::Arc,
    thread,
};

use crossbeam_channel::{Receiver, TrySendError, bounded};
use orchestrator_device::{Library, Nvml, NvmlError, Pace, watch};
use orchestrator_types::{DeviceId, DeviceNews};

/// Watches `devices` and prints their news until standard input ends. Each line of it asks for a
/// reading. Without NVML it prints that, and waits for the end.
///
/// # Errors
/// When nobody reads the news any more.
pub fn health(devices: Vec<DeviceId>) -> io::Result<()> {
    let requests = lines()?;
    let mut tell = |news: &DeviceNews| {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, news)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    match Library::open() {
        Ok(library) => {
            let nvml: Arc<dyn Nvml> = Arc::new(library);
            watch(&nvml, devices, &requests, Pace::default(), &mut tell)
        }
        Err(error) => {
            for device in devices {
                tell(&unwatched(device, &error))?;
            }
            requests.iter().for_each(drop);
            Ok(())
        }
    }
}

fn unwatched(device: DeviceId, error: &NvmlError) -> DeviceNews {
    let why = format!("there is no NVML ({error})");
    DeviceNews::Unwatched { device, why }
}

/// One message for each line of standard input; closed at its end.
fn lines() -> io::Result<Receiver<()>> {
    // One request waits; whoever asks more often is answered by the same reading.
    let (sender, receiver) = bounded(1);
    thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        for line in io::stdin().lock().lines() {
            if line.is_err() || matches!(sender.try_send(()), Err(TrySendError::Disconnected(()))) {
                break;
            }
        }
    })?;
    Ok(receiver)
}
