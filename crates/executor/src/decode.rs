//! Files → crops, a tile at a time and ahead of the vision tower.
//!
//! Invariant: at most as many tiles are decoded and not yet taken over as there are [`Permit`]s,
//! whatever the number of threads. A sample that cannot be read keeps its place in its tile.

use std::{
    io::Read as _,
    path::Path,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded};
use orchestrator_data::{
    dataset::Sample,
    image::{DecodeLimits, decode},
    preprocess::{Crop, Recipe},
};
use orchestrator_files::Files;
use orchestrator_types::{Digest, Shard};

use crate::{
    attempt::Attempt,
    crew::guarded,
    decoded::{Fresh, Shelf},
    error::ExecuteError,
};

/// How often a thread that waits for a permit looks whether it should give up.
const WAIT: Duration = Duration::from_millis(20);

/// One image, read.
pub(crate) struct Decoded {
    /// Digest of the file's bytes; of nothing, if it cannot be opened.
    pub(crate) file: Digest,
    /// The crop, or why there is none.
    pub(crate) crop: Result<Crop, String>,
}

/// Images that are computed together.
pub(crate) struct DecodedTile {
    pub(crate) positions: Shard,
    pub(crate) images: Vec<Decoded>,
    /// How long reading and decoding took.
    pub(crate) took: Duration,
    /// Given back when the images are no longer held.
    pub(crate) permit: Permit,
}

/// The right to hold one decoded tile.
pub(crate) struct Permit {
    back: Sender<()>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        // There is room for every permit; without a receiver nobody needs it any more.
        self.back.try_send(()).unwrap_or_default();
    }
}

/// Permits not in use.
pub(crate) struct Permits {
    free: Receiver<()>,
    back: Sender<()>,
}

impl Permits {
    pub(crate) fn new(count: usize) -> Self {
        let (back, free) = bounded(count);
        let permits = Self { free, back };
        drop((0..count).map(|_| permits.permit()).collect::<Vec<_>>());
        permits
    }

    fn permit(&self) -> Permit {
        Permit { back: self.back.clone() }
    }

    /// Waits for a permit; `None` if the attempt stops first.
    fn take(&self, attempt: &Attempt) -> Option<Permit> {
        while !attempt.is_stopped() {
            if self.free.recv_timeout(WAIT).is_ok() {
                return Some(self.permit());
            }
        }
        None
    }
}

/// What the decoding threads of one attempt share.
pub(crate) struct Decoder<'a> {
    pub(crate) attempt: &'a Attempt,
    pub(crate) files: &'a Files,
    pub(crate) samples: &'a [Sample],
    pub(crate) recipe: &'a Recipe,
    pub(crate) shelf: &'a Shelf<'a>,
    pub(crate) permits: &'a Permits,
    pub(crate) quarantine: bool,
}

impl Decoder<'_> {
    /// Decodes tiles until `next` has none. Failures travel where tiles do.
    pub(crate) fn run(
        &self,
        next: &(impl Fn() -> Option<Shard> + Sync),
        out: &Sender<Result<DecodedTile, ExecuteError>>,
    ) {
        while let Some(permit) = self.permits.take(self.attempt) {
            let Some(positions) = next() else { return };
            let tile = guarded(|| self.tile(positions, permit));
            let failed = tile.is_err();
            if out.send(tile).is_err() || failed {
                return;
            }
        }
    }

    fn tile(&self, positions: Shard, permit: Permit) -> Result<DecodedTile, ExecuteError> {
        let started = Instant::now();
        let mut images = Vec::with_capacity(positions.len() as usize);
        for (position, sample) in (positions.start..).zip(&self.samples[positions.range()]) {
            if let Some(reason) = self.attempt.set_aside(position) {
                // Neither opened nor computed: it keeps its place as a bad sample does.
                let crop = Err(reason.to_owned());
                images.push(Decoded { file: Digest::of(b""), crop });
                continue;
            }
            let read = || read(self.files, &sample.path, self.recipe);
            let decoded = self.shelf.image(&sample.path, self.attempt, read);
            if let (Err(reason), false) = (&decoded.crop, self.quarantine) {
                let (sample, reason) = (sample.id.clone(), reason.clone());
                return Err(ExecuteError::BadSample { position, sample, reason });
            }
            images.push(decoded);
        }
        Ok(DecodedTile { positions, images, took: started.elapsed(), permit })
    }
}

fn read(files: &Files, path: &Path, recipe: &Recipe) -> Fresh {
    let limits = DecodeLimits::default();
    let mut bytes = Vec::new();
    // One byte too many is enough to be refused.
    let opened = files
        .open(path)
        .and_then(|file| file.take(limits.bytes.as_u64() + 1).read_to_end(&mut bytes));
    let file = Digest::of(&bytes);
    let crop = match opened {
        Ok(_) => decode(&bytes, &limits).map(|image| recipe.crop(&image)),
        Err(error) => {
            let crop = Err(format!("cannot read the file: {error}"));
            return Fresh { image: Decoded { file, crop }, lasting: false };
        }
    };
    let image = Decoded { file, crop: crop.map_err(|error| error.to_string()) };
    Fresh { image, lasting: true }
}
