//! The blobs of this host: files named by the digest of their bytes, shared with the executors.
//!
//! Invariants: a blob that somebody has pinned stays; without pins the folder stays below its
//! bound, and the blobs used longest ago leave first. A file that has a blob's name is complete:
//! it appears by a rename.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use orchestrator_types::{ByteCount, Digest};

/// The folder and what is known to be in it.
#[derive(Debug)]
pub(crate) struct Blobs {
    folder: PathBuf,
    known: Mutex<Shelf>,
}

/// Keeps one blob on the disk.
#[derive(Debug)]
pub(crate) struct Pin {
    blobs: Arc<Blobs>,
    digest: Digest,
}

/// A file that is being written. Dropped before it is kept, it is removed.
#[derive(Debug)]
pub(crate) struct Draft {
    blobs: Arc<Blobs>,
    digest: Digest,
    path: PathBuf,
}

impl Blobs {
    /// An empty folder. Blobs of an earlier life are removed: after a crash of the machine a file
    /// may have its name and not its bytes.
    pub(crate) fn empty(folder: PathBuf, bound: ByteCount) -> io::Result<Self> {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(&folder)?,
        }
        Ok(Self { folder, known: Mutex::new(Shelf::new(bound)) })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps a blob that is there already.
    pub(crate) fn pin(self: &Arc<Self>, digest: Digest) -> Option<Pin> {
        self.known().pin(digest).then(|| Pin { blobs: Arc::clone(self), digest })
    }

    /// Keeps a blob whose file has just appeared.
    pub(crate) fn add(self: &Arc<Self>, digest: Digest, size: ByteCount) -> Pin {
        let mut known = self.known();
        known.add(digest, size);
        self.clear(&mut known);
        Pin { blobs: Arc::clone(self), digest }
    }

    /// Where to write a blob that is to come.
    pub(crate) fn draft(self: &Arc<Self>, digest: Digest) -> Draft {
        let number = self.known().tick();
        let path = self.folder.join(format!(".{digest}.fetched.{number}"));
        Draft { blobs: Arc::clone(self), digest, path }
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.folder.join(digest.to_string())
    }

    fn known(&self) -> MutexGuard<'_, Shelf> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The lock is held while files are unlinked, so that none of them is pinned in between.
    fn clear(&self, known: &mut Shelf) {
        while let Some(digest) = known.evict() {
            if let Err(error) = fs::remove_file(self.path(digest)) {
                tracing::warn!(%digest, %error, "cannot remove a blob");
            }
        }
    }
}

impl Pin {
    /// The blob's file.
    pub(crate) fn path(&self) -> PathBuf {
        self.blobs.path(self.digest)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut known = self.blobs.known();
        known.unpin(self.digest);
        self.blobs.clear(&mut known);
    }
}

impl Draft {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the complete file its name.
    pub(crate) fn keep(self, size: ByteCount) -> io::Result<Pin> {
        fs::rename(&self.path, self.blobs.path(self.digest))?;
        Ok(self.blobs.add(self.digest, size))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After `keep` there is nothing to remove, and before the first byte neither.
        drop(fs::remove_file(&self.path));
    }
}

/// Which blobs are there; pure.
#[derive(Debug)]
struct Shelf {
    bound: u64,
    bytes: u64,
    clock: u64,
    blobs: BTreeMap<Digest, Entry>,
    /// Blobs that nobody needs, by when they were used last.
    idle: BTreeMap<u64, Digest>,
}

#[derive(Debug)]
struct Entry {
    bytes: u64,
    pins: u32,
    used: u64,
}

impl Shelf {
    const fn new(bound: ByteCount) -> Self {
        let bound = bound.as_u64();
        Self { bound, bytes: 0, clock: 0, blobs: BTreeMap::new(), idle: BTreeMap::new() }
    }

    const fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn pin(&mut self, digest: Digest) -> bool {
        let Some(entry) = self.blobs.get_mut(&digest) else { return false };
        self.idle.remove(&entry.used);
        entry.pins += 1;
        true
    }

    fn add(&mut self, digest: Digest, size: ByteCount) {
        if !self.pin(digest) {
            let bytes = size.as_u64();
            self.blobs.insert(digest, Entry { bytes, pins: 1, used: 0 });
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    fn unpin(&mut self, digest: Digest) {
        let now = self.tick();
        let Some(entry) = self.blobs.get_mut(&digest) else { return };
        entry.pins -= 1;
        if entry.pins == 0 {
            entry.used = now;
            self.idle.insert(now, digest);
        }
    }

    /// Forgets one blob too many, whose file is to be removed.
    fn evict(&mut self) -> Option<Digest> {
        if self.bytes <= self.bound {
            return None;
        }
        let (_, digest) = self.idle.pop_first()?;
        let entry = self.blobs.remove(&digest).expect("an idle blob is on the shelf");
        self.bytes -= entry.bytes;
        Some(digest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn written(blobs: &Arc<Blobs>, content: u8) -> Pin {
        let bytes = [content; 10];
        let draft = blobs.draft(Digest::of(&bytes));
        fs::write(draft.path(), bytes).unwrap();
        draft.keep(ByteCount::bytes(10)).unwrap()
    }

    #[test]
    fn a_draft_that_is_not_kept_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::empty(folder.path().join("blobs"), ByteCount::ZERO).unwrap();
        let draft = Arc::new(blobs).draft(Digest::of(b"x"));
        fs::write(draft.path(), b"half of it").unwrap();
        drop(draft);
        assert_eq!(names(&folder.path().join("blobs")), BTreeSet::new());
    }

    proptest! {
        /// Steps: pin blob n again or bring it (true), or let one pin of it go.
        #[test]
        fn pinned_blobs_stay_and_others_leave_beyond_the_bound(
            steps in prop::collection::vec((0_u8..6, any::<bool>()), 0..60),
            room in 0_u64..5,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let bound = ByteCount::bytes(room * 10);
            let blobs = Arc::new(Blobs::empty(folder.path().join("blobs"), bound).unwrap());
            let mut pins: Vec<(u8, Pin)> = Vec::new();
            for (content, bring) in steps {
                if bring {
                    let there = blobs.pin(Digest::of(&[content; 10]));
                    pins.push((content, there.unwrap_or_else(|| written(&blobs, content))));
                } else if let Some(at) = pins.iter().position(|(pinned, _)| *pinned == content) {
                    pins.swap_remove(at);
                }
                let files = names(blobs.folder());
                let pinned: BTreeSet<u8> = pins.iter().map(|(content, _)| *content).collect();
                for content in &pinned {
                    prop_assert!(files.contains(&Digest::of(&[*content; 10]).to_string()));
                }
                let bound = usize::try_from(room).unwrap().max(pinned.len());
                prop_assert!(files.len() <= bound, "{} files, {} allowed", files.len(), bound);
            }
        }
    }

    #[test]
    fn the_blob_used_longest_ago_leaves_first() {
        let folder = tempfile::tempdir().unwrap();
        let bound = ByteCount::bytes(20);
        let blobs = Arc::new(Blobs::empty(folder.path().join("blobs"), bound).unwrap());
        drop(written(&blobs, 1));
        drop(written(&blobs, 2));
        drop(blobs.pin(Digest::of(&[1; 10])));
        drop(written(&blobs, 3));
        let left = [1, 3].map(|content| Digest::of(&[content; 10]).to_string());
        assert_eq!(names(blobs.folder()), BTreeSet::from(left));
    }
}
