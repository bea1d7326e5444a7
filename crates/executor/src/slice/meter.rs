//! What was measured: peaks by phase, readings over time, predictions beside measurements.
//!
//! Invariant: a peak of the allocator is folded into the account before it is reset.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use orchestrator_device::{Library, Nvml as _, host_memory};
use orchestrator_ledger::{
    Account, Breach, ForecastReading, Holder, HostReading, Ledger, PhaseReadings, Sample,
};
use orchestrator_torch::{Device, allocator, pinned};
use orchestrator_types::{AllocatorSettings, ByteCount, DeviceId, Phase};

/// Time between two readings.
const INTERVAL: Duration = Duration::from_millis(200);
/// Readings kept between two accounts; then every second one goes.
const MOST_SAMPLES: usize = 256;

/// The meter of one slice. Its thread ends with it.
pub(crate) struct Meter {
    shared: Arc<Shared>,
}

struct Shared {
    device: Device,
    id: DeviceId,
    ledger: Ledger,
    nvml: Option<Library>,
    /// Asked for once: it cannot change under a running process.
    driver: Option<String>,
    /// What others used before CUDA was started here.
    baseline: Option<ByteCount>,
    started_at_unix_ms: i64,
    state: Mutex<State>,
}

struct State {
    settings: AllocatorSettings,
    defaults: AllocatorSettings,
    quota: ByteCount,
    phase: Phase,
    since: Instant,
    phases: PhaseReadings,
    predicted_peak: ByteCount,
    allocated_peak: ByteCount,
    reserved_peak: ByteCount,
    fragmentation: Option<f64>,
    device_peak: Option<ByteCount>,
    outside_peak: Option<ByteCount>,
    splits: u64,
    forecasts: Vec<ForecastReading>,
    most_leased: ByteCount,
    peak_holders: Vec<Holder>,
    breaching: bool,
    breaches: Vec<Breach>,
    samples: Vec<Sample>,
}

impl Meter {
    pub(crate) fn start(
        device: Device,
        id: DeviceId,
        ledger: &Ledger,
        settings: AllocatorSettings,
        nvml: Option<Library>,
        baseline: Option<ByteCount>,
    ) -> Self {
        let state = State {
            defaults: settings.clone(),
            settings,
            quota: ByteCount::ZERO,
            phase: Phase::Load,
            since: Instant::now(),
            phases: PhaseReadings::default(),
            predicted_peak: ByteCount::ZERO,
            allocated_peak: ByteCount::ZERO,
            reserved_peak: ByteCount::ZERO,
            fragmentation: None,
            device_peak: None,
            outside_peak: None,
            splits: 0,
            forecasts: Vec::new(),
            most_leased: ByteCount::ZERO,
            peak_holders: Vec::new(),
            breaching: false,
            breaches: Vec::new(),
            samples: Vec::new(),
        };
        let driver = nvml.as_ref().and_then(|nvml| nvml.driver_version().ok());
        let shared = Arc::new(Shared {
            device,
            id,
            ledger: ledger.clone(),
            nvml,
            driver,
            baseline,
            started_at_unix_ms: unix_ms(),
            state: Mutex::new(state),
        });
        let watched = Arc::downgrade(&shared);
        let watch = move || {
            while let Some(shared) = watched.upgrade() {
                shared.sample();
                drop(shared);
                thread::sleep(INTERVAL);
            }
        };
        if let Err(error) = thread::Builder::new().name("meter".to_owned()).spawn(watch) {
            tracing::warn!(%error, "no readings over time: no thread for them");
        }
        Self { shared }
    }

    pub(crate) fn settings(&self) -> AllocatorSettings {
        self.shared.state().settings.clone()
    }

    /// What is in force unless a run asks for something else.
    pub(crate) fn default_settings(&self) -> AllocatorSettings {
        self.shared.state().defaults.clone()
    }

    pub(crate) fn set_settings(&self, settings: AllocatorSettings) {
        self.shared.state().settings = settings;
    }

    pub(crate) fn set_quota(&self, quota: ByteCount) {
        self.shared.state().quota = quota;
    }

    /// Device memory of this process that the allocator does not know of; `None` where nobody can
    /// tell.
    pub(crate) fn outside_allocator(&self) -> Option<ByteCount> {
        let used = self.shared.device_used()?;
        let reserved = allocator::statistics(self.shared.device).ok()?.reserved.current;
        Some(ByteCount::bytes(used.as_u64().saturating_sub(reserved.as_u64())))
    }

    /// Ends the phase at hand and begins another.
    pub(crate) fn enter(&self, phase: Phase) {
        self.shared.sample();
        let mut state = self.shared.state();
        self.shared.fold(&mut state);
        let spent = state.since.elapsed().as_secs_f64();
        let ended = state.phase;
        state.phases.of_mut(ended).seconds += spent;
        state.since = Instant::now();
        state.phase = phase;
    }

    /// An attempt begins: until something is loaded, it runs. Time at which no attempt runs belongs
    /// to no phase.
    pub(crate) fn resume(&self) {
        let mut state = self.shared.state();
        state.since = Instant::now();
        state.phase = Phase::Run;
    }

    /// The attempt is over: its time counts, what follows does not.
    pub(crate) fn pause(&self) {
        let mut state = self.shared.state();
        let (phase, spent) = (state.phase, state.since.elapsed().as_secs_f64());
        state.phases.of_mut(phase).seconds += spent;
        state.since = Instant::now();
    }

    /// Peak of what is allocated during `work`, above what was before it; with the result of `work`.
    pub(crate) fn peak_of<T>(&self, work: impl FnOnce() -> T) -> (T, ByteCount) {
        let device = self.shared.device;
        self.fold_and_reset();
        let current = |()| allocator::statistics(device).unwrap_or_default();
        let before = current(()).allocated.current;
        let result = work();
        let peak = current(()).allocated.peak;
        self.fold_and_reset();
        (result, ByteCount::bytes(peak.as_u64().saturating_sub(before.as_u64())))
    }

    /// A lease was granted; `predicted` is what tensors may now take.
    pub(crate) fn note_leases(&self, ledger: &Ledger, predicted: ByteCount) {
        let held = ledger.held();
        let mut state = self.shared.state();
        state.predicted_peak = state.predicted_peak.max(predicted);
        if held > state.most_leased {
            state.most_leased = held;
            state.peak_holders = ledger.holders();
        }
    }

    pub(crate) fn note_split(&self) {
        self.shared.state().splits += 1;
    }

    /// The newest reading of a component and shape replaces the one before.
    pub(crate) fn note_forecast(&self, reading: ForecastReading) {
        let mut state = self.shared.state();
        let same = |known: &ForecastReading| {
            (known.component, &known.model, known.precision, known.rows, known.tokens)
                == (
                    reading.component,
                    &reading.model,
                    reading.precision,
                    reading.rows,
                    reading.tokens,
                )
        };
        state.forecasts.retain(|known| !same(known));
        state.forecasts.push(reading);
    }

    /// Everything since the executor started; samples and breaches since the last account.
    pub(crate) fn account(&self, ledger: &Ledger, weights: ByteCount) -> Account {
        self.shared.sample();
        let counts = allocator::statistics(self.shared.device).unwrap_or_default();
        let host = self.host();
        let mut state = self.shared.state();
        self.shared.fold(&mut state);
        let elapsed = state.since.elapsed().as_secs_f64();
        let mut phases = state.phases;
        phases.of_mut(state.phase).seconds += elapsed;
        Account {
            started_at_unix_ms: self.shared.started_at_unix_ms,
            device: self.shared.id.clone(),
            driver: self.shared.driver.clone(),
            quota_bytes: state.quota,
            allocator: self.describe(&state.settings),
            baseline_bytes: self.shared.baseline,
            weights_bytes: weights,
            predicted_peak_bytes: state.predicted_peak,
            allocated_peak_bytes: state.allocated_peak,
            reserved_peak_bytes: state.reserved_peak,
            device_peak_bytes: state.device_peak,
            outside_allocator_bytes: state.outside_peak,
            host,
            fragmentation: state.fragmentation,
            ooms: counts.ooms,
            retries: counts.retries,
            splits: state.splits,
            phases,
            forecasts: state.forecasts.clone(),
            holders: ledger.holders(),
            peak_holders: state.peak_holders.clone(),
            breaches: std::mem::take(&mut state.breaches),
            samples: std::mem::take(&mut state.samples),
        }
    }

    /// The allocator in one line.
    pub(crate) fn allocator(&self) -> String {
        self.describe(&self.settings())
    }

    fn describe(&self, settings: &AllocatorSettings) -> String {
        match self.shared.device {
            Device::Cpu => "counting".to_owned(),
            Device::Cuda(_) => format!("caching, {settings}"),
        }
    }

    fn host(&self) -> HostReading {
        let memory = host_memory();
        HostReading {
            resident_bytes: memory.resident.unwrap_or_default(),
            resident_peak_bytes: memory.resident_peak.unwrap_or_default(),
            anonymous_bytes: memory.anonymous.unwrap_or_default(),
            mapped_bytes: memory.mapped.unwrap_or_default(),
            pinned_bytes: match self.shared.device {
                Device::Cpu => ByteCount::ZERO,
                Device::Cuda(_) => pinned::statistics()
                    .map_or(ByteCount::ZERO, |statistics| statistics.allocated.current),
            },
            cgroup_limit_bytes: memory.cgroup_limit,
            cgroup_used_bytes: memory.cgroup_used,
        }
    }

    /// Phases so far.
    pub(crate) fn phases(&self) -> PhaseReadings {
        let mut state = self.shared.state();
        self.shared.fold(&mut state);
        let mut phases = state.phases;
        phases.of_mut(state.phase).seconds += state.since.elapsed().as_secs_f64();
        phases
    }

    fn fold_and_reset(&self) {
        // The cache is at its fullest after a pass.
        self.shared.sample();
        let mut state = self.shared.state();
        self.shared.fold(&mut state);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the allocator's peaks for the phase at hand and for good, and resets them.
    fn fold(&self, state: &mut State) {
        let Ok(counts) = allocator::statistics(self.device) else { return };
        let (allocated, reserved) = (counts.allocated.peak, counts.reserved.peak);
        if reserved > state.reserved_peak && reserved > ByteCount::ZERO {
            let unused = reserved.as_u64().saturating_sub(allocated.as_u64());
            state.fragmentation = Some(unused as f64 / reserved.as_u64() as f64);
        }
        state.allocated_peak = state.allocated_peak.max(allocated);
        state.reserved_peak = state.reserved_peak.max(reserved);
        let host = host_memory().resident.unwrap_or_default();
        let phase = state.phase;
        let reading = state.phases.of_mut(phase);
        reading.allocated_peak_bytes = reading.allocated_peak_bytes.max(allocated);
        reading.reserved_peak_bytes = reading.reserved_peak_bytes.max(reserved);
        reading.host_peak_bytes = reading.host_peak_bytes.max(host);
        if allocator::reset_peaks(self.device).is_err() {
            tracing::debug!("the allocator's peaks are not reset");
        }
    }

    /// Use of the device by everybody, less the baseline.
    fn device_used(&self) -> Option<ByteCount> {
        let used = match (&self.nvml, self.device) {
            (_, Device::Cpu) => return None,
            (Some(nvml), Device::Cuda(_)) => {
                orchestrator_device::memory(nvml, &self.id).ok().map(|memory| memory.used())
            }
            (None, Device::Cuda(_)) => None,
        };
        let used = used.or_else(|| {
            let memory = allocator::free_and_total(self.device).ok().flatten()?;
            memory.total.checked_sub(memory.free)
        })?;
        Some(ByteCount::bytes(used.as_u64().saturating_sub(self.baseline?.as_u64())))
    }

    /// Takes a reading.
    fn sample(&self) {
        let Ok(counts) = allocator::statistics(self.device) else { return };
        let used = self.device_used();
        let host = host_memory();
        let mut state = self.state();
        let at_unix_ms = unix_ms();
        if let Some(used) = used {
            Self::judge(&mut state, used, counts.reserved.current, at_unix_ms);
        }
        let sample = Sample {
            at_unix_ms,
            phase: state.phase,
            allocated_bytes: counts.allocated.current,
            reserved_bytes: counts.reserved.current,
            device_bytes: used,
            leased_bytes: self.ledger.held(),
            resident_bytes: host.resident.unwrap_or_default(),
            anonymous_bytes: host.anonymous.unwrap_or_default(),
            mapped_bytes: host.mapped.unwrap_or_default(),
            cgroup_used_bytes: host.cgroup_used,
        };
        if state.samples.len() >= MOST_SAMPLES {
            let mut keep = false;
            state.samples.retain(|_| {
                keep = !keep;
                keep
            });
        }
        state.samples.push(sample);
    }

    /// Compares a reading with the quota, and names who breaks it.
    fn judge(state: &mut State, used: ByteCount, reserved: ByteCount, at_unix_ms: i64) {
        let outside = ByteCount::bytes(used.as_u64().saturating_sub(reserved.as_u64()));
        let ours = state.outside_peak.unwrap_or_default();
        let breaching = used > state.quota && state.quota > ByteCount::ZERO;
        state.device_peak = Some(state.device_peak.unwrap_or_default().max(used));
        let phase = state.phase;
        let reading = state.phases.of_mut(phase);
        reading.device_peak_bytes = Some(reading.device_peak_bytes.unwrap_or_default().max(used));
        if !breaching {
            state.outside_peak = Some(ours.max(outside));
        } else if !state.breaching {
            let by = if outside > ours {
                "other processes on the device, or its runtime: memory outside our allocator grew"
            } else {
                "our allocator"
            };
            tracing::warn!(%used, quota = %state.quota, by, "more device memory in use than the quota");
            state.breaches.push(Breach {
                at_unix_ms,
                quota_bytes: state.quota,
                used_bytes: used,
                by: by.to_owned(),
            });
        }
        state.breaching = breaching;
    }
}

fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
