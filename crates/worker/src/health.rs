//! What the agent knows of its GPUs' health, and what follows for a slice.
//!
//! Decisions about news are [`DeviceHealth::hear`], a function of the news and the time; who brings
//! the news is [`program`].
//!
//! - An application's error condemns the executor of its GPU: it is killed and its unit fails, counted
//!   against the unit. Of a MIG instance nobody tells whose error it was, so there it is only logged:
//!   an executor that it hits finds out by itself.
//! - A fault of the GPU fences the slice: its executor is killed, its unit goes elsewhere uncounted,
//!   and the slice is withdrawn. Nothing here resets a GPU, so that a slice stays fenced until the
//!   agent is started anew; only a GPU that was merely silent is offered again when it answers.
//! - Where nothing can be watched (no NVML, no permission), work goes on without.

mod program;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use orchestrator_types::{DeviceId, DeviceNews, DeviceUse, XidClass};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::vacancy::Known;

/// How long news of a GPU may be behind the death of a process that it explains; also how long an
/// executor is too young to be what an application's error is about.
const SETTLE: Duration = Duration::from_secs(1);
/// How long the first readings may take. Whoever waits for them starts without.
const FIRST: Duration = Duration::from_secs(5);

/// Why an executor must not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// Of what it did itself.
    Application(String),
    /// Its GPU cannot be trusted.
    Fault(String),
}

/// One device.
#[derive(Clone, Debug, Default)]
struct DeviceHealth {
    reading: Option<(Instant, DeviceUse)>,
    application: Option<(Instant, String)>,
    fault: Option<Fault>,
}

/// Why a device is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    told: String,
    /// No later reading mends it.
    lasting: bool,
}

impl DeviceHealth {
    fn hear(&mut self, news: DeviceNews, now: Instant) {
        match news {
            DeviceNews::Reading { usage, .. } => {
                self.reading = Some((now, usage));
                self.fault = self.fault.take().filter(|fault| fault.lasting);
            }
            DeviceNews::Xid { class: XidClass::Application, device, told, .. } => {
                tracing::warn!(%device, "{told}");
                if !matches!(device, DeviceId::Mig(_)) {
                    self.application = Some((now, told));
                }
            }
            DeviceNews::Xid { class: XidClass::Fault, told, .. } => {
                self.fails(format!("the driver reports {told}"), true);
            }
            DeviceNews::Xid { class: XidClass::NeedsReset, told, .. } => {
                let told = format!("the driver reports {told}; the GPU or the node must be reset");
                self.fails(told, true);
            }
            DeviceNews::Lost { .. } => {
                self.fails("it is lost, and must be reset (see the kernel's log)".to_owned(), true);
            }
            DeviceNews::Deaf { why, .. } => {
                self.fails(format!("its errors cannot be heard any more: {why}"), true);
            }
            DeviceNews::Timeout { asked, .. } => {
                self.fails(format!("NVML does not answer when asked for {asked}"), false);
            }
            DeviceNews::Unwatched { device, why } => {
                tracing::warn!(%device, "health is not watched: {why}; work goes on without");
            }
        }
    }

    /// The first fault stays, as the cause of others, unless it could be mended and this one not.
    fn fails(&mut self, told: String, lasting: bool) {
        if self.fault.as_ref().is_none_or(|fault| lasting && !fault.lasting) {
            self.fault = Some(Fault { told, lasting });
        }
    }

    /// What concerns an executor that is watched for errors from `since` on.
    fn alarm(&self, since: Instant) -> Option<Alarm> {
        if let Some(Fault { told, .. }) = &self.fault {
            return Some(Alarm::Fault(told.clone()));
        }
        let (_, told) = self.application.as_ref().filter(|(at, _)| *at >= since)?;
        Some(Alarm::Application(told.clone()))
    }
}

type Devices = BTreeMap<DeviceId, DeviceHealth>;

/// The watch over all GPUs of an agent. Dropping it ends the program that watches.
#[derive(Debug)]
pub(crate) struct Health {
    shared: Shared,
    end: CancellationToken,
    work: AbortOnDropHandle<()>,
}

#[derive(Clone, Debug)]
struct Shared {
    devices: Arc<watch::Sender<Devices>>,
    requests: mpsc::Sender<()>,
}

impl Health {
    /// Watches those of the devices that are GPUs, by the executor's `program`; without one, nothing
    /// is started. Waits a moment for the first readings.
    pub(crate) async fn watch(program: PathBuf, devices: Vec<DeviceId>) -> Self {
        let mut gpus = devices;
        gpus.retain(|device| *device != DeviceId::Cpu);
        gpus.sort();
        gpus.dedup();
        let (requests, requested) = mpsc::channel(1);
        let shared = Shared { devices: Arc::default(), requests };
        let end = CancellationToken::new();
        let mut readings = shared.devices.subscribe();
        let expected = gpus.len();
        let work = program::run(program, gpus, Arc::clone(&shared.devices), requested, end.clone());
        let work = AbortOnDropHandle::new(tokio::spawn(work));
        // An early end of the program has been told, and a late reading is only a missing figure.
        let first = readings.wait_for(|devices| devices.len() >= expected);
        drop(timeout(FIRST, first).await);
        Self { shared, end, work }
    }

    /// One slice's view.
    pub(crate) fn of(&self, device: &DeviceId) -> Watched {
        Watched { device: device.clone(), shared: self.shared.clone() }
    }

    /// Ends the program; it is reaped, unless the driver holds it.
    pub(crate) async fn stop(self) {
        self.end.cancel();
        if let Err(error) = self.work.await {
            tracing::error!(%error, "the watch over the GPUs failed");
        }
    }
}

/// The health of one slice's device. Of the processor there is never any news.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    device: DeviceId,
    shared: Shared,
}

impl Watched {
    fn look<T>(&self, at: impl FnOnce(&DeviceHealth) -> Option<T>) -> Option<T> {
        self.shared.devices.borrow().get(&self.device).and_then(at)
    }

    /// Why the device is not to be used, if so.
    pub(crate) fn fault(&self) -> Option<String> {
        self.look(|device| device.fault.as_ref().map(|fault| fault.told.clone()))
    }

    /// Its use as last read.
    pub(crate) fn usage(&self) -> Option<DeviceUse> {
        self.look(|device| device.reading.as_ref().map(|(_, usage)| usage.clone()))
    }

    /// Its use as read after `since`.
    pub(crate) fn usage_since(&self, since: Instant) -> Known {
        match self.look(|device| device.reading.clone()) {
            None => Known::Unwatched,
            Some((at, usage)) if at > since => Known::Read(usage),
            Some(_) => Known::Unread,
        }
    }

    /// Asks for a reading. One that is asked for already is enough.
    pub(crate) fn request(&self) {
        if self.shared.requests.try_send(()).is_err() {
            tracing::trace!("a reading is asked for already");
        }
    }

    /// Waits until an executor that was started at `started` must not go on; else for ever.
    pub(crate) fn alarm(&self, started: Instant) -> impl Future<Output = Alarm> + use<> {
        let (device, mut devices) = (self.device.clone(), self.shared.devices.subscribe());
        // The sender is kept, so that the wait does not end before an alarm.
        let sender = Arc::clone(&self.shared.devices);
        let since = (started + SETTLE).max(Instant::now());
        async move {
            let _open = sender;
            loop {
                let alarm = devices.borrow_and_update().get(&device).and_then(|d| d.alarm(since));
                if let Some(alarm) = alarm {
                    return alarm;
                }
                if devices.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    /// Why a process on the device died, if the device is at fault: its word may come a moment later.
    pub(crate) async fn explanation(&self) -> Option<String> {
        self.usage()?;
        self.request();
        let faulty = async {
            while self.fault().is_none() {
                sleep(SETTLE / 20).await;
            }
        };
        drop(timeout(SETTLE, faulty).await);
        self.fault()
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_types::ByteCount;

    use super::*;

    /// Health whose news come from the test. Requests reach nobody.
    struct Told(Shared);

    impl Told {
        fn new() -> Self {
            Self(Shared { devices: Arc::default(), requests: mpsc::channel(1).0 })
        }

        fn tell(&self, news: DeviceNews) {
            program::hear(&self.0.devices, news);
        }

        fn watched(&self, device: &DeviceId) -> Watched {
            Watched { device: device.clone(), shared: self.0.clone() }
        }
    }

    fn gpu() -> DeviceId {
        "GPU-1".parse().unwrap()
    }

    fn reading(used: ByteCount) -> DeviceNews {
        let total_bytes = ByteCount::gib(80);
        let usage = DeviceUse { used_bytes: used, total_bytes, processes: None };
        DeviceNews::Reading { device: gpu(), usage }
    }

    fn xid(class: XidClass) -> DeviceNews {
        DeviceNews::Xid { device: gpu(), xid: 1, class, told: format!("XID of {class:?}") }
    }

    fn silence() -> DeviceNews {
        DeviceNews::Timeout { device: gpu(), asked: "its memory".to_owned() }
    }

    fn after(news: impl IntoIterator<Item = DeviceNews>) -> DeviceHealth {
        let mut health = DeviceHealth::default();
        news.into_iter().for_each(|news| health.hear(news, Instant::now()));
        health
    }

    #[test]
    fn news_that_are_faults_say_what_to_do() {
        let lost = DeviceNews::Lost { device: gpu() };
        let deaf = DeviceNews::Deaf { device: gpu(), why: "not found".to_owned() };
        let all = [xid(XidClass::Fault), xid(XidClass::NeedsReset), lost, deaf, silence()];
        let told = all.map(|news| after([news]).fault.unwrap().told).join("\n");
        insta::assert_snapshot!(told, @r"
        the driver reports XID of Fault
        the driver reports XID of NeedsReset; the GPU or the node must be reset
        it is lost, and must be reset (see the kernel's log)
        its errors cannot be heard any more: not found
        NVML does not answer when asked for its memory
        ");
    }

    #[test]
    fn a_silence_is_mended_by_an_answer_and_nothing_else_is() {
        assert_eq!(after([silence(), reading(ByteCount::ZERO)]).fault, None);
        let worse = after([silence(), xid(XidClass::Fault), reading(ByteCount::ZERO), silence()]);
        assert_eq!(worse.fault.unwrap().told, "the driver reports XID of Fault");
        let first = after([xid(XidClass::NeedsReset), xid(XidClass::Fault)]).fault.unwrap();
        assert!(first.lasting && first.told.contains("XID of NeedsReset"), "the cause: {first:?}");
    }

    #[test]
    fn an_applications_error_concerns_the_executor_that_lived_then() {
        let before = Instant::now();
        let health = after([xid(XidClass::Application)]);
        let told = "XID of Application".to_owned();
        assert_eq!(health.alarm(before), Some(Alarm::Application(told)));
        assert_eq!(health.alarm(Instant::now() + Duration::from_millis(1)), None, "a later one");
        assert_eq!(health.fault, None);
    }

    #[test]
    fn what_may_be_a_neighbours_error_or_is_not_watched_changes_nothing() {
        let device: DeviceId = "MIG-1".parse().unwrap();
        let class = XidClass::Application;
        let xid = DeviceNews::Xid { device: device.clone(), xid: 13, class, told: "13".to_owned() };
        let unwatched = DeviceNews::Unwatched { device, why: "no permission".to_owned() };
        let start = Instant::now();
        assert_eq!(after([xid, unwatched]).alarm(start), None);
    }

    #[tokio::test(start_paused = true)]
    async fn alarms_reach_whoever_waits_for_them() {
        let told = Told::new();
        let watched = told.watched(&gpu());
        let waiting = tokio::spawn(watched.alarm(Instant::now()));
        told.tell(reading(ByteCount::gib(1)));
        // Too early: it is about a process that died before.
        told.tell(xid(XidClass::Application));
        sleep(SETTLE * 2).await;
        assert!(!waiting.is_finished());
        told.tell(xid(XidClass::Application));
        assert_eq!(waiting.await.unwrap(), Alarm::Application("XID of Application".to_owned()));
        told.tell(xid(XidClass::Fault));
        let fault = "the driver reports XID of Fault".to_owned();
        assert_eq!(watched.alarm(Instant::now()).await, Alarm::Fault(fault));
    }

    #[tokio::test(start_paused = true)]
    async fn a_death_is_explained_by_news_that_come_a_moment_later() {
        let told = Arc::new(Told::new());
        let watched = told.watched(&gpu());
        assert_eq!(watched.explanation().await, None, "nobody watches");
        told.tell(reading(ByteCount::gib(1)));
        assert_eq!(watched.explanation().await, None);
        let late = Arc::clone(&told);
        tokio::spawn(async move {
            sleep(SETTLE / 2).await;
            late.tell(xid(XidClass::Fault));
        });
        assert_eq!(watched.explanation().await.unwrap(), "the driver reports XID of Fault");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_later_reading_tells_what_is_left() {
        let told = Told::new();
        let watched = told.watched(&gpu());
        let death = Instant::now();
        assert_eq!(watched.usage_since(death), Known::Unwatched);
        told.tell(reading(ByteCount::gib(9)));
        assert_eq!(watched.usage_since(death), Known::Unread);
        sleep(Duration::from_millis(1)).await;
        told.tell(reading(ByteCount::gib(1)));
        let Known::Read(usage) = watched.usage_since(death) else { panic!("it is read") };
        assert_eq!(usage.used_bytes, ByteCount::gib(1));
    }
}
