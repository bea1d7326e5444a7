//! Decoded samples of a node, shared by all executors of an agent: one file for each image and kind
//! of crop, named by what decides its bytes.
//!
//! The name is the identity of the image's file (device, inode, size, times) and what is done to its
//! pixels. So an image that was edited is another image, and trials, shards and datasets that read
//! one file the same way share it.
//!
//! Invariants:
//! - The files never take more than the limit: they are counted before they are written, under a
//!   lock that all executors of the folder share. The one not used for longest leaves first.
//! - Who decodes an image holds its lock, so that nobody decodes it a second time beside it.
//! - What does not match its checksum is absent. No trouble with the cache fails a unit: what cannot
//!   be kept is decoded, and counted as decoded.
//!
//! What is read is a crop in memory like any other, and is leased as such.

mod entry;
mod lock;
mod room;

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use orchestrator_data::preprocess::Recipe;
use orchestrator_proto::domain::ImageCounts;
use orchestrator_types::{ByteCount, Digest};
use tracing::debug;

use self::{lock::Locks, room::Room};
use crate::{attempt::Attempt, decode::Decoded};

/// The folder of a node's decoded samples.
#[derive(Debug)]
pub(crate) struct DecodedCache {
    folder: PathBuf,
    locks: Locks,
    room: Room,
}

/// Where the images of one unit come from, and how often which.
pub(crate) struct Shelf<'a> {
    cache: Option<&'a DecodedCache>,
    /// What decides a crop's bytes, beside the file.
    crop: String,
    size: (u32, u32),
    decoded: AtomicU64,
    from_cache: AtomicU64,
}

/// An image as it came out of its file, and whether it would come out so again.
pub(crate) struct Fresh {
    pub(crate) image: Decoded,
    pub(crate) lasting: bool,
}

impl DecodedCache {
    /// Makes the folder if it is not there. Other executors may have it open.
    pub(crate) fn open(folder: PathBuf, limit: ByteCount) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let locks = Locks::open(&folder)?;
        let room = Room::new(folder.clone(), limit.as_u64());
        Ok(Self { folder, locks, room })
    }

    /// Keeps an image under its name if there is room.
    fn put(&self, name: &str, image: &Decoded) {
        let kept = self.room.write(&self.locks, name, &entry::to_bytes(image));
        if let Err(error) = kept {
            debug!(folder = %self.folder.display(), %error, "cannot keep a decoded sample");
        }
    }

    /// Whatever is not whole is absent: it may be on its way.
    fn get(&self, name: &str, size: (u32, u32)) -> Option<Decoded> {
        entry::read(&self.folder.join(name), size)?.ok()
    }

    /// The same for who has the image's lock: nobody writes it now, so what is not whole is damaged.
    fn get_or_remove(&self, name: &str, size: (u32, u32)) -> Option<Decoded> {
        let path = self.folder.join(name);
        entry::read(&path, size)?.map_or_else(
            |problem| {
                debug!(path = %path.display(), problem, "a damaged decoded sample is removed");
                self.room.remove(&self.locks, name);
                None
            },
            Some,
        )
    }
}

impl<'a> Shelf<'a> {
    /// For images that `recipe` crops; without a cache all are decoded.
    pub(crate) fn new(cache: Option<&'a DecodedCache>, recipe: &Recipe) -> Self {
        Self {
            cache,
            crop: recipe.describe_crop(),
            size: recipe.size(),
            decoded: AtomicU64::new(0),
            from_cache: AtomicU64::new(0),
        }
    }

    /// The image at `path`, from the cache or from `decode`.
    pub(crate) fn image(
        &self,
        path: &Path,
        attempt: &Attempt,
        decode: impl FnOnce() -> Fresh,
    ) -> Decoded {
        let kept = self.cache.zip(identity(path));
        let Some((cache, identity)) = kept else { return self.fresh(decode).image };
        let name = Digest::of(&[&identity, self.crop.as_bytes()].concat()).to_string();
        if let Some(image) = cache.get(&name, self.size) {
            count(&self.from_cache);
            return image;
        }
        // Without the lock, because whoever has it is stuck or we are to stop, it is decoded twice.
        let lock = cache.locks.of_image(&name, attempt);
        if lock.is_some()
            && let Some(image) = cache.get_or_remove(&name, self.size)
        {
            count(&self.from_cache);
            return image;
        }
        let fresh = self.fresh(decode);
        // The name must belong to the bytes that were read.
        if lock.is_some() && fresh.lasting && self::identity(path) == Some(identity) {
            cache.put(&name, &fresh.image);
        }
        fresh.image
    }

    fn fresh(&self, decode: impl FnOnce() -> Fresh) -> Fresh {
        count(&self.decoded);
        decode()
    }

    /// How many images came from where.
    pub(crate) fn counts(&self) -> ImageCounts {
        let (peak, limit) = self.cache.map_or((0, 0), |cache| {
            (Room::peak(&cache.locks).unwrap_or_default(), cache.room.limit())
        });
        ImageCounts {
            decoded: self.decoded.load(Ordering::Relaxed),
            from_cache: self.from_cache.load(Ordering::Relaxed),
            cache_peak_bytes: ByteCount::bytes(peak),
            cache_limit_bytes: ByteCount::bytes(limit),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What tells a file and its content from any other, without reading it; `None` if there is none.
fn identity(path: &Path) -> Option<[u8; 56]> {
    let found = fs::metadata(path).ok()?;
    let parts = [
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime().cast_unsigned(),
        found.mtime_nsec().cast_unsigned(),
        found.ctime().cast_unsigned(),
        found.ctime_nsec().cast_unsigned(),
    ];
    let mut bytes = [0; 56];
    for (place, part) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(parts) {
        *place = part.to_le_bytes();
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
