//! One assignment after the other, on a thread of its own.
//!
//! Invariant: whatever an assignment brings, exactly one last update comes out and the thread goes
//! on. Async code never computes, and this thread never runs async code.

use std::{io, path::PathBuf, thread, time::Duration};

use orchestrator_ledger::Owner;
use orchestrator_proto::domain::{AssignedWork, Assignment, ExecutorReading, Timing, UnitResult};
use orchestrator_types::{ByteCount, DeviceId, OnOom};
use tokio::sync::mpsc;
use tracing::{error, info, info_span, warn};

use crate::{
    attempt::{Attempt, Update, micros, millis},
    blobs::BlobFolder,
    crew::guarded,
    decoded::DecodedCache,
    encode_images::encode_images,
    encode_texts::encode_texts,
    error::ExecuteError,
    numerics,
    product::Product,
    rank::rank,
    residents::Residents,
    roots,
    slice::{Slice, StartError},
    text_cache::TextCache,
};

/// Where an executor works, and with how much.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of blobs, shared with the agent.
    pub blobs: PathBuf,
    /// Folder of what outlives the process.
    pub cache: PathBuf,
    /// Decoded samples that all executors of this host share.
    pub decoded: Option<DecodedFolder>,
    /// Compute threads, at least one.
    pub threads: usize,
    /// Where towers run. A GPU or MIG instance has to be the only one that CUDA shows.
    pub device: DeviceId,
    /// Most memory of the device that may be used.
    pub ceiling: ByteCount,
    /// Folders, without links, that data and models are read from; none: from anywhere.
    pub roots: Vec<PathBuf>,
}

/// A folder of decoded samples.
#[derive(Clone, Debug)]
pub struct DecodedFolder {
    /// Where it is; made if missing.
    pub folder: PathBuf,
    /// Most that its files may take, over all executors.
    pub limit: ByteCount,
}

/// An assignment and who waits for it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) assignment: Assignment,
    pub(crate) updates: mpsc::Sender<Update>,
}

/// Why the thread does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetUpError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Slice(#[from] StartError),
}

/// Starts the thread. It ends when the sender is dropped and the job at hand is done.
pub(crate) fn start(
    settings: Settings,
) -> Result<(mpsc::Sender<Job>, thread::JoinHandle<()>), SetUpError> {
    let decoded = settings.decoded.filter(|decoded| decoded.limit > ByteCount::ZERO);
    let decoded = decoded.map(|it| DecodedCache::open(it.folder, it.limit)).transpose()?;
    let mut executor = Executor {
        slice: Slice::start(settings.device, settings.ceiling)?,
        blobs: BlobFolder::open(settings.blobs)?,
        cache: TextCache::open(&settings.cache, numerics::fingerprint()?)?,
        decoded,
        threads: settings.threads.max(1),
        residents: Residents::new(roots::files(&settings.roots)?),
    };
    // One may wait; whoever comes after it waits in its own call.
    let (sender, mut jobs) = mpsc::channel::<Job>(1);
    let thread = thread::Builder::new().name("attempts".to_owned()).spawn(move || {
        while let Some(job) = jobs.blocking_recv() {
            executor.run(job);
        }
        executor.close();
    })?;
    Ok((sender, thread))
}

/// How long a last update may take to leave.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Exit code of an executor whose device gives only errors.
const DEVICE_LOST: i32 = 70;

/// Where a unit is computed, and how far it may go.
#[derive(Clone, Copy)]
pub(crate) struct Bench<'a> {
    pub(crate) slice: &'a Slice,
    pub(crate) threads: usize,
    pub(crate) attempt: &'a Attempt,
    pub(crate) on_oom: OnOom,
}

struct Executor {
    blobs: BlobFolder,
    cache: TextCache,
    decoded: Option<DecodedCache>,
    threads: usize,
    residents: Residents,
    slice: Slice,
}

impl Executor {
    /// Lets everything go. What is still leased then was never returned: a defect.
    fn close(&mut self) {
        self.residents = Residents::new(self.residents.files.clone());
        let left = self.slice.ledger().held_by(|owner| *owner != Owner::Runtime);
        if left > ByteCount::ZERO {
            error!(%left, holders = ?self.slice.ledger().holders(), "leases are left at the end");
        }
        debug_assert_eq!(left, ByteCount::ZERO, "every lease is returned");
    }

    fn run(&mut self, job: Job) {
        let Job { assignment, updates } = job;
        let Assignment {
            run,
            unit,
            token,
            work,
            memory,
            // The agent has started this process for it.
            alone: _,
            set_aside,
            set_aside_reason,
        } = assignment;
        let _span = info_span!("attempt", %run, %unit, %token).entered();
        let attempt = Attempt::new(updates).without(set_aside, set_aside_reason);
        self.slice.meter().resume();
        let outcome = guarded(|| {
            self.slice.adopt(&memory)?;
            self.residents.keep_within_quota(&self.slice)?;
            self.carry_out(&work, memory.on_oom, &attempt)
        });
        self.slice.meter().pause();
        let passes = self.slice.take_passes();
        if matches!(outcome, Err(ExecuteError::Panic(_))) {
            // What a panic left half done is not used again.
            self.residents = Residents::new(self.residents.files.clone());
        }
        let lost = outcome.as_ref().is_err_and(ExecuteError::device_is_lost);
        match outcome.and_then(|product| self.result(product, &attempt)) {
            Ok(result) => {
                info!(rows = result.rows, passes, ms = result.timing.total_ms, "done");
                attempt.end(Update::Result(Box::new(result)));
            }
            Err(error) => {
                let (class, message) = (error.class(), error.message());
                warn!(%class, passes, message, "failed");
                attempt.end(Update::Failure { class, message });
            }
        }
        if lost {
            // No later unit could be computed: the agent starts another process.
            error!("the device's context is dead; this executor ends");
            thread::sleep(LAST_WORDS);
            std::process::exit(DEVICE_LOST);
        }
    }

    fn carry_out(
        &mut self,
        work: &AssignedWork,
        on_oom: OnOom,
        attempt: &Attempt,
    ) -> Result<Product, ExecuteError> {
        let Self { blobs, cache, decoded, threads, residents, slice } = self;
        let bench = Bench { slice, threads: *threads, attempt, on_oom };
        if attempt.is_stopped() {
            return Err(ExecuteError::Cancelled);
        }
        match work {
            AssignedWork::EncodeTexts(work) => encode_texts(work, residents, cache, bench),
            AssignedWork::EncodeImages(work) => {
                encode_images(work, residents, decoded.as_ref(), bench)
            }
            AssignedWork::Rank(work) => rank(work, residents, blobs, bench),
        }
    }

    fn result(&self, product: Product, attempt: &Attempt) -> Result<UnitResult, ExecuteError> {
        let blob = self.blobs.write(&product.bytes)?;
        let timing = Timing {
            load_ms: millis(product.load),
            total_ms: millis(attempt.elapsed()),
            decode_us: micros(product.decode),
            forward_us: micros(product.forward),
        };
        let weights_bytes = self.residents.weights();
        let account = self.slice.account(weights_bytes);
        let reading =
            ExecutorReading { host_peak_bytes: account.host.resident_peak_bytes, weights_bytes };
        Ok(UnitResult {
            rows: product.rows as u64,
            blob,
            partial: product.partial,
            quarantined: product.quarantined,
            timing,
            cached: product.cached,
            reading,
            samples: product.samples,
            account: Some(account),
            rows_per_dispatch: product.dispatch,
            inline: None,
            images: product.images,
        })
    }
}
