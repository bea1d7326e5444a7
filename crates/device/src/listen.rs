//! Listening for critical errors: one thread, one subscription, all devices.
//!
//! A process with two such threads, one a GPU, was seen to take a whole core where one takes nothing.
//! Why was not looked at in the driver; so there is one thread, and NVML is not trusted to wait.
//!
//! Invariant: [`listen`] turns at most once in [`TURN`], whatever NVML answers, or has a device less
//! to listen to.

use std::{
    thread,
    time::{Duration, Instant},
};

use orchestrator_types::{DeviceId, DeviceNews};

use crate::{
    Nvml, NvmlError, Xids,
    watch::{chain, no_answer},
    xid,
};

/// How long one look for errors takes where there is none: the sign of life of that thread.
pub(crate) const LISTEN: Duration = Duration::from_secs(1);
/// How long a turn takes at least. Errors that come faster wait in the driver.
const TURN: Duration = Duration::from_millis(100);

/// What is heard, by the position of the device.
pub(crate) enum Heard {
    /// Errors, or that there was none for a while: a sign of life for all that are listened to.
    News(Vec<(usize, DeviceNews)>),
    /// Why no error of this device will be heard any more.
    Ended(usize, DeviceNews),
}

/// Reports errors of `devices` until none will come, or until nobody hears the reports.
pub(crate) fn listen(nvml: &dyn Nvml, devices: Vec<DeviceId>, report: &dyn Fn(Heard) -> bool) {
    let mut left: Vec<(usize, DeviceId)> = devices.into_iter().enumerate().collect();
    while let Some(mut xids) = subscribe(nvml, &mut left, report) {
        let Some(error) = hear(&mut *xids, &left, report) else { return };
        drop(xids);
        for device in drain_failed(nvml, &mut left, &error) {
            if !end(device, &error, report) {
                return;
            }
        }
    }
}

/// Leaves out who is refused, until the rest is not; `None` where nobody is left to listen to.
fn subscribe<'a>(
    nvml: &'a dyn Nvml,
    left: &mut Vec<(usize, DeviceId)>,
    report: &dyn Fn(Heard) -> bool,
) -> Option<Box<dyn Xids + 'a>> {
    while !left.is_empty() {
        let devices: Vec<DeviceId> = left.iter().map(|(_, device)| device.clone()).collect();
        match nvml.xids(&devices) {
            Ok(xids) => return Some(xids),
            Err(refused) => {
                let (index, device) = left.remove(refused.device);
                if !report(Heard::Ended(index, no_answer(&device, "its errors", &refused.error))) {
                    return None;
                }
            }
        }
    }
    None
}

/// Reports errors until NVML fails; `None` when nobody hears the reports.
fn hear(
    xids: &mut dyn Xids,
    left: &[(usize, DeviceId)],
    report: &dyn Fn(Heard) -> bool,
) -> Option<NvmlError> {
    loop {
        let begun = Instant::now();
        let event = match xids.next(LISTEN) {
            Ok(event) => event,
            Err(error) => return Some(error),
        };
        let news = event.into_iter().flat_map(|event| {
            let concerned = event.devices.into_iter().filter_map(|position| left.get(position));
            concerned.map(move |(index, device)| (*index, critical(device, event.number)))
        });
        if !report(Heard::News(news.collect())) {
            return None;
        }
        thread::sleep(TURN.saturating_sub(begun.elapsed()));
    }
}

/// Takes out those for which NVML failed. It fails for all at once and does not say for whom, so
/// each device is asked whether it is lost; where none is, nobody can be listened to any more.
fn drain_failed(
    nvml: &dyn Nvml,
    left: &mut Vec<(usize, DeviceId)>,
    error: &NvmlError,
) -> Vec<Failed> {
    let alone = left.len() == 1;
    let is_lost = |device: &DeviceId| {
        let told = alone && matches!(error, NvmlError::Lost);
        told || !alone && matches!(nvml.memory(device), Err(NvmlError::Lost))
    };
    let failed = |lost| move |(index, device)| Failed { index, device, lost };
    let lost: Vec<Failed> =
        left.extract_if(.., |(_, device)| is_lost(device)).map(failed(true)).collect();
    if lost.is_empty() { left.drain(..).map(failed(false)).collect() } else { lost }
}

/// A device that is not listened to any more.
struct Failed {
    index: usize,
    device: DeviceId,
    lost: bool,
}

fn end(
    Failed { index, device, lost }: Failed,
    why: &NvmlError,
    report: &dyn Fn(Heard) -> bool,
) -> bool {
    let news = if lost {
        DeviceNews::Lost { device }
    } else {
        DeviceNews::Deaf { device, why: chain(why) }
    };
    report(Heard::Ended(index, news))
}

fn critical(device: &DeviceId, number: u64) -> DeviceNews {
    let xid = xid(number);
    let (class, told) = (xid.class(), xid.to_string());
    DeviceNews::Xid { device: device.clone(), xid: number, class, told }
}
