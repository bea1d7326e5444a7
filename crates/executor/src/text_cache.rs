//! Text embeddings kept on this host, by everything that decides their bits: a caller's key names
//! what is computed, and the cache adds what it is computed with, because the folder may be one
//! that different hosts share.
//!
//! Invariant: a file whose content does not match its name, its shape or its own checksum is
//! treated as absent and written again. No trouble with the cache fails a unit.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use orchestrator_types::Digest;
use tracing::{debug, warn};

use crate::{
    blobs::write_whole,
    tensors::{TensorReader, TensorWriter},
};

/// The folder never holds more once a file was added.
const LIMIT_BYTES: u64 = 1 << 30;

/// The folder `text` of a node's cache.
#[derive(Clone, Debug)]
pub(crate) struct TextCache {
    folder: PathBuf,
    limit: u64,
    /// See [`crate::numerics`].
    numerics: Digest,
}

impl TextCache {
    /// `numerics` tells hosts apart that compute different bits.
    pub(crate) fn open(cache: &Path, numerics: Digest) -> io::Result<Self> {
        let folder = cache.join("text");
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, limit: LIMIT_BYTES, numerics })
    }

    /// The rows kept under `key`, if they are there and sound.
    pub(crate) fn get(&self, key: Digest, count: usize, width: usize) -> Option<Vec<f32>> {
        let key = self.full(key);
        let path = self.path(key);
        let bytes = fs::read(&path).ok()?;
        match check(&bytes, key, count, width) {
            Ok(rows) => {
                // The time of last use decides who leaves first. Losing it costs little.
                drop(File::open(&path).and_then(|file| file.set_modified(SystemTime::now())));
                Some(rows)
            }
            Err(problem) => {
                warn!(path = %path.display(), problem, "ignored a damaged cache file");
                None
            }
        }
    }

    /// Keeps rows under `key`, and lets old files go.
    pub(crate) fn put(&self, key: Digest, width: usize, rows: &[f32]) {
        let key = self.full(key);
        let mut writer = TensorWriter::default();
        writer.note("key", key.to_string());
        writer.note("checksum", checksum(rows).to_string());
        writer.add_f32("embeddings", &[rows.len() / width, width], rows);
        let bytes = writer.finish();
        let size = bytes.len() as u64;
        if size > self.limit {
            return;
        }
        let stored = self.make_room(size).and_then(|()| write_whole(&self.path(key), &bytes));
        if let Err(error) = stored {
            warn!(folder = %self.folder.display(), %error, "cannot keep text embeddings");
        }
    }

    fn full(&self, key: Digest) -> Digest {
        Digest::of(&[self.numerics.as_bytes().as_slice(), key.as_bytes()].concat())
    }

    fn path(&self, key: Digest) -> PathBuf {
        self.folder.join(format!("{key}.safetensors"))
    }

    fn make_room(&self, size: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Another executor may have removed it.
            let Ok(metadata) = entry.metadata() else { continue };
            files.push((metadata.modified()?, metadata.len(), entry.path()));
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
        for (_, old, path) in files {
            if total + size <= self.limit {
                break;
            }
            debug!(path = %path.display(), "removed the file not used for longest");
            drop(fs::remove_file(path));
            total -= old;
        }
        Ok(())
    }
}

fn check(bytes: &[u8], key: Digest, count: usize, width: usize) -> Result<Vec<f32>, String> {
    let reader = TensorReader::open(bytes)?;
    if reader.noted("key")? != key.to_string() {
        return Err("it belongs to another key".to_owned());
    }
    let (rows, columns, values) = reader.matrix("embeddings")?;
    if (rows, columns) != (count, width) {
        return Err(format!("{rows} × {columns} numbers, expected {count} × {width}"));
    }
    if reader.noted("checksum")? != checksum(&values).to_string() {
        return Err("its numbers do not match its checksum".to_owned());
    }
    Ok(values)
}

fn checksum(rows: &[f32]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for row in rows.chunks(1024) {
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cache(limit: u64) -> (tempfile::TempDir, TextCache) {
        let folder = tempfile::tempdir().unwrap();
        let opened = TextCache::open(folder.path(), Digest::of(b"this host")).unwrap();
        let cache = TextCache { limit, ..opened };
        (folder, cache)
    }

    #[test]
    fn a_damaged_file_is_absent_until_it_is_written_again() {
        let (_folder, cache) = cache(LIMIT_BYTES);
        let key = Digest::of(b"key");
        assert_eq!(cache.get(key, 2, 2), None);
        cache.put(key, 2, &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(cache.get(key, 2, 2), Some(vec![1.0, 2.0, 3.0, 4.0]));
        assert_eq!(cache.get(key, 1, 4), None, "another shape");
        let whole = fs::read(cache.path(cache.full(key))).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let other = cache.path(cache.full(Digest::of(b"other")));
        for (path, bytes) in [
            (cache.path(cache.full(key)), &flipped[..]),
            (cache.path(cache.full(key)), &whole[..20]),
            (other, &whole),
        ] {
            fs::write(&path, bytes).unwrap();
            let asked =
                if path == cache.path(cache.full(key)) { key } else { Digest::of(b"other") };
            assert_eq!(cache.get(asked, 2, 2), None);
        }
        cache.put(key, 2, &[1.0, 2.0, 3.0, 4.0]);
        assert!(cache.get(key, 2, 2).is_some());
    }

    #[test]
    fn a_host_that_computes_other_bits_is_not_served() {
        let (folder, cache) = cache(LIMIT_BYTES);
        let key = Digest::of(b"key");
        cache.put(key, 1, &[1.0]);
        let other = TextCache::open(folder.path(), Digest::of(b"another host")).unwrap();
        assert_eq!(other.get(key, 1, 1), None);
        other.put(key, 1, &[2.0]);
        assert_eq!(
            (cache.get(key, 1, 1), other.get(key, 1, 1)),
            (Some(vec![1.0]), Some(vec![2.0]))
        );
    }

    #[test]
    fn the_file_not_used_for_longest_leaves_first() {
        let one = {
            let (_folder, cache) = cache(LIMIT_BYTES);
            cache.put(Digest::of(b"0"), 1, &[0.0; 256]);
            fs::metadata(cache.path(cache.full(Digest::of(b"0")))).unwrap().len()
        };
        let (_folder, cache) = cache(2 * one);
        let keys = [b"a", b"b", b"c"].map(|name| Digest::of(name));
        let old = SystemTime::now() - Duration::from_mins(1);
        for key in &keys[..2] {
            cache.put(*key, 1, &[0.0; 256]);
            File::open(cache.path(cache.full(*key))).unwrap().set_modified(old).unwrap();
        }
        assert!(cache.get(keys[0], 256, 1).is_some(), "used just now");
        cache.put(keys[2], 1, &[0.0; 256]);
        let kept = keys.map(|key| cache.get(key, 256, 1).is_some());
        assert_eq!(kept, [true, false, true]);
        cache.put(Digest::of(b"d"), 1, &[0.0; 1024]);
        assert_eq!(cache.get(Digest::of(b"d"), 1024, 1), None, "larger than the whole folder");
    }
}
