//! One assignment after the other, on a thread of its own.
//!
//! Invariant: whatever an assignment brings, exactly one last update comes out and the thread goes
//! on. Async code never computes, and this thread never runs async code.

use std::{io, path::PathBuf, thread};

use orchestrator_proto::domain::{AssignedWork, Assignment, ExecutorReading, Timing, UnitResult};
use tokio::sync::mpsc;
use tracing::{info, info_span, warn};

use crate::{
    attempt::{Attempt, Update, micros, millis},
    blobs::BlobFolder,
    crew::guarded,
    encode_images::encode_images,
    encode_texts::encode_texts,
    error::ExecuteError,
    numerics,
    product::Product,
    rank::rank,
    reading,
    residents::Residents,
    text_cache::TextCache,
};

/// Where an executor works, and with how much.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of blobs, shared with the agent.
    pub blobs: PathBuf,
    /// Folder of what outlives the process.
    pub cache: PathBuf,
    /// Compute threads, at least one.
    pub threads: usize,
}

/// An assignment and who waits for it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) assignment: Assignment,
    pub(crate) updates: mpsc::Sender<Update>,
}

/// Starts the thread. It ends when the sender is dropped and the job at hand is done.
pub(crate) fn start(settings: Settings) -> io::Result<(mpsc::Sender<Job>, thread::JoinHandle<()>)> {
    let mut executor = Executor {
        blobs: BlobFolder::open(settings.blobs)?,
        cache: TextCache::open(&settings.cache, numerics::fingerprint()?)?,
        threads: settings.threads.max(1),
        residents: Residents::new(),
    };
    // One may wait; whoever comes after it waits in its own call.
    let (sender, mut jobs) = mpsc::channel::<Job>(1);
    let thread = thread::Builder::new().name("attempts".to_owned()).spawn(move || {
        while let Some(job) = jobs.blocking_recv() {
            executor.run(job);
        }
    })?;
    Ok((sender, thread))
}

struct Executor {
    blobs: BlobFolder,
    cache: TextCache,
    threads: usize,
    residents: Residents,
}

impl Executor {
    fn run(&mut self, job: Job) {
        let Job { assignment, updates } = job;
        let Assignment { run, unit, token, work, memory: _ } = assignment;
        let _span = info_span!("attempt", %run, %unit, %token).entered();
        let attempt = Attempt::new(updates);
        let outcome = guarded(|| self.carry_out(&work, &attempt));
        if matches!(outcome, Err(ExecuteError::Panic(_))) {
            // What a panic left half done is not used again.
            self.residents = Residents::new();
        }
        match outcome.and_then(|product| self.result(product, &attempt)) {
            Ok(result) => {
                info!(rows = result.rows, ms = result.timing.total_ms, "done");
                attempt.end(Update::Result(Box::new(result)));
            }
            Err(error) => {
                let (class, message) = (error.class(), error.message());
                warn!(%class, message, "failed");
                attempt.end(Update::Failure { class, message });
            }
        }
    }

    fn carry_out(
        &mut self,
        work: &AssignedWork,
        attempt: &Attempt,
    ) -> Result<Product, ExecuteError> {
        let Self { blobs, cache, threads, residents } = self;
        if attempt.is_stopped() {
            return Err(ExecuteError::Cancelled);
        }
        match work {
            AssignedWork::EncodeTexts(work) => {
                encode_texts(work, residents, cache, *threads, attempt)
            }
            AssignedWork::EncodeImages(work) => encode_images(work, residents, *threads, attempt),
            AssignedWork::Rank(work) => rank(work, residents, blobs, *threads, attempt),
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
        let reading = ExecutorReading {
            host_peak_bytes: reading::host_peak(),
            weights_bytes: self.residents.weights(),
        };
        Ok(UnitResult {
            rows: product.rows as u64,
            blob,
            partial: product.partial,
            quarantined: product.quarantined,
            timing,
            cached: product.cached,
            reading,
            samples: product.samples,
            account: None,
            rows_per_dispatch: 0,
        })
    }
}
