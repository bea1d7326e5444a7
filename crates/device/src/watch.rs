//! Watching devices: how full they are, now and then and when asked; critical errors as they come.
//!
//! NVML may block for ever: a driver in trouble does not answer, and a call cannot be taken back.
//! So each device has a thread that asks how full it is, one thread listens for errors of all of
//! them, and the thread that tells never asks.
//!
//! Invariant: every request is answered for every device within the deadline of a call, if only by
//! the news that NVML is silent. Absent on purpose: what follows from the news.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use orchestrator_types::{DeviceId, DeviceNews, DeviceUse, ProcessUse};

use crate::{
    Answer, DeviceProcess, Nvml, NvmlError,
    listen::{Heard, LISTEN, listen},
};

/// Reports that wait to be told. A thread that finds no room waits, and misses nothing.
const WAITING: usize = 64;

/// How often and how long NVML is asked.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time between readings that nobody asked for.
    pub interval: Duration,
    /// How long a call may take until its silence is news.
    pub deadline: Duration,
}

impl Default for Pace {
    /// A reading every 10 s, 5 s for a call.
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), deadline: Duration::from_secs(5) }
    }
}

/// Tells the news of `devices` until `requests` is closed, or telling fails. A request asks for a
/// reading of every device.
///
/// Threads of calls that do not come back are left behind: the caller's process should end.
///
/// # Errors
/// What `tell` gave.
pub fn watch(
    nvml: &Arc<dyn Nvml>,
    devices: Vec<DeviceId>,
    requests: &Receiver<()>,
    pace: Pace,
    tell: &mut dyn FnMut(&DeviceNews) -> io::Result<()>,
) -> io::Result<()> {
    let (reports, news) = bounded(WAITING);
    start_listening(nvml, devices.clone(), &reports)?;
    let start = |(index, device)| Watched::start(nvml, index, device, &reports);
    let mut watched: Vec<Watched> =
        devices.into_iter().enumerate().map(start).collect::<io::Result<_>>()?;
    let step = (pace.deadline / 10).max(Duration::from_millis(1));
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        if now >= next {
            next = now + pace.interval;
            request(&mut watched, pace, tell)?;
        }
        select! {
            recv(requests) -> request_of_somebody => match request_of_somebody {
                Ok(()) => request(&mut watched, pace, tell)?,
                Err(_) => return Ok(()),
            },
            // The sender is above: it is not closed.
            recv(news) -> report => if let Ok(report) = report {
                take(&mut watched, report).iter().try_for_each(&mut *tell)?;
            },
            default(step) => {}
        }
        for device in &mut watched {
            device.silences(Instant::now(), pace.deadline).iter().try_for_each(&mut *tell)?;
        }
    }
}

/// Asks for a reading of each device. One that owes an earlier answer for too long is told instead.
fn request(
    watched: &mut [Watched],
    pace: Pace,
    tell: &mut dyn FnMut(&DeviceNews) -> io::Result<()>,
) -> io::Result<()> {
    for device in watched {
        device.request(Instant::now(), pace.deadline).iter().try_for_each(&mut *tell)?;
    }
    Ok(())
}

/// What a thread reports.
enum Report {
    /// The answer to a request, with the device's position.
    Read(usize, DeviceNews),
    /// From the thread that listens.
    Heard(Heard),
}

/// What of a report is to be told.
fn take(watched: &mut [Watched], report: Report) -> Vec<DeviceNews> {
    let mut first = |index: usize, news| watched[index].first(news);
    match report {
        Report::Read(index, news) => {
            let told = first(index, news);
            watched[index].reading = Call::default();
            told.into_iter().collect()
        }
        Report::Heard(Heard::News(news)) => {
            let told = news.into_iter().filter_map(|(index, news)| first(index, news)).collect();
            let now = Instant::now();
            let listened_to = watched.iter_mut().filter(|device| device.hearing.since.is_some());
            listened_to.for_each(|device| device.hearing.begin(now));
            told
        }
        Report::Heard(Heard::Ended(index, news)) => {
            let told = first(index, news);
            watched[index].hearing = Call::default();
            told.into_iter().collect()
        }
    }
}

fn start_listening(
    nvml: &Arc<dyn Nvml>,
    devices: Vec<DeviceId>,
    reports: &Sender<Report>,
) -> io::Result<()> {
    let (nvml, out) = (Arc::clone(nvml), reports.clone());
    thread::Builder::new().name("errors".to_owned()).spawn(move || {
        listen(&*nvml, devices, &|heard| out.send(Report::Heard(heard)).is_ok());
    })?;
    Ok(())
}

/// One device as the telling thread sees it.
struct Watched {
    device: DeviceId,
    ask: Sender<()>,
    reading: Call,
    hearing: Call,
    /// Told once and not again.
    unwatched: Vec<String>,
}

/// A call that may be under way.
#[derive(Default)]
struct Call {
    since: Option<Instant>,
    /// Its silence was told.
    told: bool,
}

impl Call {
    fn begin(&mut self, now: Instant) {
        *self = Self { since: Some(now), told: false };
    }

    fn is_late(&self, now: Instant, deadline: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) > deadline)
    }

    /// Whether its silence is news.
    fn falls_silent(&mut self, now: Instant, deadline: Duration) -> bool {
        let news = self.is_late(now, deadline) && !self.told;
        self.told |= news;
        news
    }
}

impl Watched {
    fn start(
        nvml: &Arc<dyn Nvml>,
        index: usize,
        device: DeviceId,
        reports: &Sender<Report>,
    ) -> io::Result<Self> {
        // One request waits while another is answered; more are not needed.
        let (ask, asked) = bounded::<()>(1);
        let (own, id, out) = (Arc::clone(nvml), device.clone(), reports.clone());
        thread::Builder::new().name("reading".to_owned()).spawn(move || {
            let answers = asked.iter().map(|()| Report::Read(index, reading(&*own, &id)));
            answers.map(|report| out.send(report)).find(Result::is_err);
        })?;
        let mut hearing = Call::default();
        hearing.begin(Instant::now());
        Ok(Self { device, ask, reading: Call::default(), hearing, unwatched: Vec::new() })
    }

    fn request(&mut self, now: Instant, deadline: Duration) -> Option<DeviceNews> {
        if self.reading.since.is_none() && self.ask.try_send(()).is_ok() {
            self.reading.begin(now);
        }
        let late = self.reading.is_late(now, deadline);
        self.reading.told |= late;
        late.then(|| self.silence("its memory"))
    }

    /// The news, unless it says again that the device cannot be watched.
    fn first(&mut self, news: DeviceNews) -> Option<DeviceNews> {
        if let DeviceNews::Unwatched { why, .. } = &news {
            if self.unwatched.contains(why) {
                return None;
            }
            self.unwatched.push(why.clone());
        }
        Some(news)
    }

    fn silences(&mut self, now: Instant, deadline: Duration) -> Vec<DeviceNews> {
        let reading = self.reading.falls_silent(now, deadline);
        let hearing = self.hearing.falls_silent(now, LISTEN + deadline);
        let asked = [(reading, "its memory"), (hearing, "its errors")];
        asked.iter().filter(|(late, _)| *late).map(|(_, asked)| self.silence(asked)).collect()
    }

    fn silence(&self, asked: &str) -> DeviceNews {
        DeviceNews::Timeout { device: self.device.clone(), asked: asked.to_owned() }
    }
}

fn reading(nvml: &dyn Nvml, device: &DeviceId) -> DeviceNews {
    let memory = match nvml.memory(device) {
        Ok(memory) => memory,
        Err(error) => return no_answer(device, "its memory", &error),
    };
    let process = |DeviceProcess { pid, used }| ProcessUse { pid, used_bytes: used };
    let processes: Answer<Vec<_>> = nvml.processes(device);
    let processes = processes.ok().map(|all| all.into_iter().map(process).collect());
    let usage = DeviceUse { used_bytes: memory.used(), total_bytes: memory.total, processes };
    DeviceNews::Reading { device: device.clone(), usage }
}

/// A device that is lost is news of the device; any other error says only that it cannot be watched.
pub(crate) fn no_answer(device: &DeviceId, asked: &str, error: &NvmlError) -> DeviceNews {
    let device = device.clone();
    match error {
        NvmlError::Lost => DeviceNews::Lost { device },
        error => DeviceNews::Unwatched { device, why: format!("{asked}: {}", chain(error)) },
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", chain(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}
