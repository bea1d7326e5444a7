//! No loop around NVML turns without waiting, whatever NVML answers; and one thread at a time waits
//! for it, however many devices there are.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod recorded;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::bounded;
use orchestrator_device::{
    Answer, DeviceMemory, DeviceProcess, Nvml, Pace, Place, Refused, Utilisation, Version,
    XidEvent, Xids, watch,
};
use orchestrator_types::DeviceId;
use recorded::Recorded;

/// The least time of a turn.
const TURN: Duration = Duration::from_millis(100);
/// Waits that are watched: with one thread and one wait a turn they take two thirds of a second.
const WAITS: usize = 8;

/// A machine whose NVML never waits.
struct Hasty {
    recorded: Recorded,
    answer: fn() -> Answer<Option<XidEvent>>,
    waits: Waits,
}

#[derive(Default)]
struct Waits {
    begun: AtomicUsize,
    subscriptions: AtomicUsize,
}

impl Nvml for Hasty {
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
        self.recorded.memory(device)
    }
    fn utilisation(&self, device: &DeviceId) -> Answer<Utilisation> {
        self.recorded.utilisation(device)
    }
    fn processes(&self, device: &DeviceId) -> Answer<Vec<DeviceProcess>> {
        self.recorded.processes(device)
    }
    fn xids<'a>(&'a self, _: &[DeviceId]) -> Result<Box<dyn Xids + 'a>, Refused> {
        self.waits.subscriptions.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Errors(self)))
    }
}

struct Errors<'a>(&'a Hasty);

impl Xids for Errors<'_> {
    fn next(&mut self, _: Duration) -> Answer<Option<XidEvent>> {
        self.0.waits.begun.fetch_add(1, Ordering::Relaxed);
        (self.0.answer)()
    }
}

/// Watches two GPUs until NVML was waited for often enough: how many subscriptions there were, and
/// how many waits in which time.
fn watched(answer: fn() -> Answer<Option<XidEvent>>) -> (usize, usize, Duration) {
    let machine =
        Arc::new(Hasty { recorded: Recorded::load("h200"), answer, waits: Waits::default() });
    let devices = [0, 1].map(|index| machine.gpu(index).unwrap()).to_vec();
    let (stop, requests) = bounded(1);
    let begun = Instant::now();
    let nvml: Arc<dyn Nvml> = Arc::clone(&machine) as _;
    let thread =
        thread::spawn(move || watch(&nvml, devices, &requests, Pace::default(), &mut |_| Ok(())));
    while machine.waits.begun.load(Ordering::Relaxed) < WAITS {
        thread::sleep(TURN / 10);
    }
    let waits = machine.waits.begun.load(Ordering::Relaxed);
    let took = begun.elapsed();
    drop(stop);
    thread.join().unwrap().unwrap();
    (machine.waits.subscriptions.load(Ordering::Relaxed), waits, took)
}

#[test]
fn an_nvml_that_answers_at_once_is_not_asked_at_once_again() {
    let answers: [fn() -> Answer<Option<XidEvent>>; 2] =
        [|| Ok(None), || Ok(Some(XidEvent { devices: vec![0, 1], number: 13 }))];
    for answer in answers {
        let (subscriptions, waits, took) = watched(answer);
        assert_eq!(subscriptions, 1, "both devices share the wait");
        // A busy machine makes it fewer, never more.
        let most = took.as_millis() / TURN.as_millis() + 1;
        assert!(waits as u128 <= most, "{waits} waits in {took:?}");
    }
}
