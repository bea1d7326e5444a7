//! What is told of watched devices, also when NVML hangs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod recorded;

use std::{sync::Arc, thread, time::Duration};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use orchestrator_device::{
    Answer, DeviceMemory, DeviceProcess, Nvml, NvmlError, Pace, Place, Refused, Utilisation,
    Version, XidEvent, Xids, watch,
};
use orchestrator_types::{ByteCount, DeviceId, DeviceNews, DeviceUse, ProcessUse, XidClass};
use recorded::Recorded;

const GPU: &str = "GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000002";
/// Far above what anything takes here.
const PATIENCE: Duration = Duration::from_secs(30);

/// A recorded machine whose errors come from the test, and which answers questions about memory one
/// by one, as the test lets it.
struct Machine {
    recorded: Recorded,
    answers: Receiver<()>,
    errors: Receiver<Answer<XidEvent>>,
    /// For which there is no subscription.
    refused: Option<DeviceId>,
}

impl Nvml for Machine {
    fn driver_version(&self) -> Answer<String> {
        self.recorded.driver_version()
    }
    fn gpu_count(&self) -> Answer<u32> {
        self.recorded.gpu_count()
    }
    fn gpu(&self, index: u32) -> Answer<DeviceId> {
        self.recorded.gpu(index)
    }
    fn mig_slots(&self, gpu: &DeviceId) -> Answer<u32> {
        self.recorded.mig_slots(gpu)
    }
    fn mig(&self, gpu: &DeviceId, slot: u32) -> Answer<DeviceId> {
        self.recorded.mig(gpu, slot)
    }
    fn cuda_version(&self) -> Answer<Version> {
        self.recorded.cuda_version()
    }
    fn place(&self, instance: &DeviceId) -> Answer<Place> {
        self.recorded.place(instance)
    }
    fn capability(&self, device: &DeviceId) -> Answer<Version> {
        self.recorded.capability(device)
    }
    fn name(&self, device: &DeviceId) -> Answer<String> {
        self.recorded.name(device)
    }
    fn memory(&self, device: &DeviceId) -> Answer<DeviceMemory> {
        self.answers.recv().unwrap();
        self.recorded.memory(device)
    }
    fn utilisation(&self, device: &DeviceId) -> Answer<Utilisation> {
        self.recorded.utilisation(device)
    }
    fn processes(&self, device: &DeviceId) -> Answer<Vec<DeviceProcess>> {
        self.recorded.processes(device)
    }
    fn xids<'a>(&'a self, devices: &[DeviceId]) -> Result<Box<dyn Xids + 'a>, Refused> {
        let refused = devices.iter().position(|device| Some(device) == self.refused.as_ref());
        if let Some(device) = refused {
            return Err(Refused { device, error: NvmlError::NoPermission });
        }
        Ok(Box::new(Errors(self.errors.clone())))
    }
}

struct Errors(Receiver<Answer<XidEvent>>);

impl Xids for Errors {
    fn next(&mut self, limit: Duration) -> Answer<Option<XidEvent>> {
        match self.0.recv_timeout(limit) {
            Ok(answer) => answer.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(NvmlError::NotFound),
        }
    }
}

/// A watch under way.
struct Watch {
    news: Receiver<DeviceNews>,
    requests: Option<Sender<()>>,
    answers: Sender<()>,
    errors: Option<Sender<Answer<XidEvent>>>,
    thread: Option<thread::JoinHandle<std::io::Result<()>>>,
}

impl Watch {
    fn of(recording: &str, device: &str) -> Self {
        Self::of_all(recording, &[device], None)
    }

    fn of_all(recording: &str, devices: &[&str], refused: Option<&str>) -> Self {
        let (answers, answered) = unbounded();
        let (errors, heard) = unbounded();
        let recorded = Recorded::load(recording);
        let nvml: Arc<dyn Nvml> = Arc::new(Machine {
            recorded,
            answers: answered,
            errors: heard,
            refused: refused.map(|device| device.parse().unwrap()),
        });
        let (requests, requested) = bounded(1);
        let (told, news) = unbounded();
        let pace = Pace { interval: Duration::from_hours(1), deadline: Duration::from_millis(50) };
        let devices = devices.iter().map(|device| device.parse().unwrap()).collect();
        let thread = thread::spawn(move || {
            watch(&nvml, devices, &requested, pace, &mut |news| {
                told.send(news.clone()).map_err(std::io::Error::other)
            })
        });
        let (requests, errors) = (Some(requests), Some(errors));
        Self { news, requests, answers, errors, thread: Some(thread) }
    }

    fn next(&self) -> DeviceNews {
        self.news.recv_timeout(PATIENCE).unwrap()
    }

    fn error(&self, devices: &[usize], number: u64) {
        let event = XidEvent { devices: devices.to_vec(), number };
        self.errors.as_ref().unwrap().send(Ok(event)).unwrap();
    }

    fn request(&self) {
        self.requests.as_ref().unwrap().send(()).unwrap();
    }
}

fn gpu() -> DeviceId {
    GPU.parse().unwrap()
}

fn reading() -> DeviceNews {
    let used_bytes = Some(ByteCount::bytes(75_380_031_488));
    let usage = DeviceUse {
        used_bytes: ByteCount::bytes(150_754_820_096 - 74_711_040_000),
        total_bytes: ByteCount::bytes(150_754_820_096),
        processes: Some(vec![ProcessUse { pid: 2_114_907, used_bytes }]),
    };
    DeviceNews::Reading { device: gpu(), usage }
}

#[test]
fn readings_come_at_first_and_when_asked_and_the_end_is_an_end() {
    let mut watch = Watch::of("h200", GPU);
    watch.answers.send(()).unwrap();
    assert_eq!(watch.next(), reading());
    watch.answers.send(()).unwrap();
    watch.request();
    assert_eq!(watch.next(), reading());
    drop(watch.requests.take());
    watch.thread.take().unwrap().join().unwrap().unwrap();
}

#[test]
fn a_call_that_hangs_is_told_each_request_is_answered_and_errors_are_heard() {
    let watch = Watch::of("h200", GPU);
    let silence = DeviceNews::Timeout { device: gpu(), asked: "its memory".to_owned() };
    assert_eq!(watch.next(), silence, "without a request");
    for _ in 0..3 {
        watch.request();
        assert_eq!(watch.next(), silence);
    }
    watch.error(&[0], 79);
    let DeviceNews::Xid { xid: 79, class: XidClass::NeedsReset, told, .. } = watch.next() else {
        panic!("the other thread hangs too")
    };
    assert!(told.starts_with("XID 79: GPU has fallen off the bus"), "{told}");
    watch.answers.send(()).unwrap();
    assert_eq!(watch.next(), reading(), "late, and told");
}

#[test]
fn errors_are_told_with_their_class_and_a_lost_device_ends_them() {
    let watch = Watch::of("h200", GPU);
    watch.answers.send(()).unwrap();
    assert_eq!(watch.next(), reading());
    for (number, expected) in [(13, XidClass::Application), (95, XidClass::Fault)] {
        watch.error(&[0], number);
        let DeviceNews::Xid { device, xid, class, .. } = watch.next() else { panic!("other news") };
        assert_eq!((device, xid, class), (gpu(), number, expected));
    }
    watch.errors.as_ref().unwrap().send(Err(NvmlError::Lost)).unwrap();
    assert_eq!(watch.next(), DeviceNews::Lost { device: gpu() });
}

#[test]
fn whoever_cannot_hear_errors_says_so_once() {
    let mut watch = Watch::of("h200", GPU);
    watch.answers.send(()).unwrap();
    assert_eq!(watch.next(), reading());
    drop(watch.errors.take());
    assert_eq!(watch.next(), DeviceNews::Deaf { device: gpu(), why: "not found".to_owned() });
    watch.answers.send(()).unwrap();
    watch.request();
    assert_eq!(watch.next(), reading(), "readings go on");
}

const FIRST: &str = "GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000001";

fn first() -> DeviceId {
    FIRST.parse().unwrap()
}

/// The next news that are no readings, of each of the devices.
fn two(watch: &Watch) -> Vec<DeviceNews> {
    let other = |news: &DeviceNews| !matches!(news, DeviceNews::Reading { .. });
    let mut news = Vec::new();
    while news.len() < 2 {
        news.extend(Some(watch.next()).filter(other));
    }
    news
}

fn concerned(news: &[DeviceNews]) -> Vec<(DeviceId, u64)> {
    let xid = |news: &DeviceNews| match news {
        DeviceNews::Xid { device, xid, .. } => (device.clone(), *xid),
        other => panic!("{other:?}"),
    };
    news.iter().map(xid).collect()
}

#[test]
fn an_error_is_told_of_those_whom_it_concerns_also_after_another_was_refused() {
    let watch = Watch::of_all("h200", &[FIRST, GPU], None);
    watch.answers.send(()).unwrap();
    watch.answers.send(()).unwrap();
    watch.error(&[1], 13);
    watch.error(&[0], 31);
    assert_eq!(concerned(&two(&watch)), [(gpu(), 13), (first(), 31)]);
    watch.error(&[0, 1], 94);
    assert_eq!(concerned(&two(&watch)), [(first(), 94), (gpu(), 94)]);

    let watch = Watch::of_all("h200", &[FIRST, GPU], Some(FIRST));
    watch.answers.send(()).unwrap();
    watch.answers.send(()).unwrap();
    watch.error(&[0], 31);
    let news = two(&watch);
    let why = "its errors: no permission".to_owned();
    assert_eq!(news[0], DeviceNews::Unwatched { device: first(), why });
    assert_eq!(concerned(&news[1..]), [(gpu(), 31)], "the first of those that are left");
}

#[test]
fn a_lost_device_is_found_among_several_and_the_others_are_heard() {
    let well: DeviceId = "GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000005".parse().unwrap();
    let lost: DeviceId = "GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000006".parse().unwrap();
    let watch = Watch::of_all("trouble", &[&well.to_string(), &lost.to_string()], None);
    // Each is asked once for a reading, and once whether it is the lost one.
    for _ in 0..4 {
        watch.answers.send(()).unwrap();
    }
    watch.errors.as_ref().unwrap().send(Err(NvmlError::Lost)).unwrap();
    watch.error(&[0], 13);
    let mut news = Vec::new();
    while !matches!(news.last(), Some(DeviceNews::Xid { .. })) {
        news.push(watch.next());
    }
    assert!(news.contains(&DeviceNews::Lost { device: lost }), "{news:?}");
    assert_eq!(concerned(&news[news.len() - 1..]), [(well, 13)]);
}

#[test]
fn where_nvml_fails_for_nobody_in_particular_all_are_deaf() {
    let watch = Watch::of_all("h200", &[FIRST, GPU], None);
    for _ in 0..4 {
        watch.answers.send(()).unwrap();
    }
    watch.errors.as_ref().unwrap().send(Err(NvmlError::NotFound)).unwrap();
    let deaf = |device| DeviceNews::Deaf { device, why: "not found".to_owned() };
    assert_eq!(two(&watch), [deaf(first()), deaf(gpu())]);
}

#[test]
fn a_device_that_may_not_be_asked_is_told_once() {
    let watch = Watch::of("forbidden", GPU);
    let refused = |watch: &Watch| {
        watch.answers.send(()).unwrap();
        watch.request();
    };
    watch.answers.send(()).unwrap();
    let why = "its memory: not found".to_owned();
    assert_eq!(watch.next(), DeviceNews::Unwatched { device: gpu(), why });
    refused(&watch);
    watch.error(&[0], 63);
    assert!(matches!(watch.next(), DeviceNews::Xid { xid: 63, .. }), "and nothing in between");
}

#[test]
fn news_travel_as_lines_of_json() {
    let xid = DeviceNews::Xid {
        device: gpu(),
        xid: 31,
        class: XidClass::Application,
        told: "XID 31".to_owned(),
    };
    let lines = [reading(), xid, DeviceNews::Lost { device: gpu() }];
    let text: Vec<String> = lines.iter().map(|news| serde_json::to_string(news).unwrap()).collect();
    insta::assert_snapshot!(text.join("\n"), @r#"
    {"kind":"reading","device":"GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000002","used_bytes":76043780096,"total_bytes":150754820096,"processes":[{"pid":2114907,"used_bytes":75380031488}]}
    {"kind":"xid","device":"GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000002","xid":31,"class":"application","told":"XID 31"}
    {"kind":"lost","device":"GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000002"}
    "#);
    for (line, news) in text.iter().zip(&lines) {
        assert_eq!(serde_json::from_str::<DeviceNews>(line).unwrap(), *news);
    }
}
