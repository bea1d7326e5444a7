//! Unpacking wheels (zip files): headers, libraries and licences, no Python.
//!
//! Invariant: nothing is written outside the target folder, and a stamp arrives last.

use anyhow::{Context, Result, bail};
use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path};
use zip::ZipArchive;
use zip::read::ZipFile;

/// Unpacks one wheel into `folder`.
pub(crate) fn wheel(path: &Path, folder: &Path) -> Result<()> {
    eprintln!("unpacking {}", path.file_name().unwrap_or_default().display());
    unpack(path, folder).with_context(|| match free_bytes(folder.parent().unwrap_or(folder)) {
        Ok(free) => format!("cannot unpack {} ({} free there)", path.display(), megabytes(free)),
        Err(_) => format!("cannot unpack {}", path.display()),
    })
}

fn unpack(path: &Path, folder: &Path) -> Result<()> {
    let mut archive = ZipArchive::new(BufReader::new(File::open(path)?))?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let name = entry
            .enclosed_name()
            .with_context(|| format!("entry {index} has a path that leaves the folder"))?;
        if entry.is_dir() || !is_needed(&name) {
            continue;
        }
        write_entry(&mut entry, &folder.join(&name))
            .with_context(|| format!("entry {}", name.display()))?;
    }
    Ok(())
}

fn write_entry<R: Read>(entry: &mut ZipFile<'_, R>, target: &Path) -> Result<()> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if entry.is_symlink() {
        let mut points_at = String::new();
        entry.read_to_string(&mut points_at)?;
        if !stays_beside(Path::new(&points_at)) {
            bail!("a link that leaves its folder: {points_at}");
        }
        return Ok(symlink(points_at, target)?);
    }
    let mut file = File::create(target)?;
    io::copy(entry, &mut file)?;
    // Readable by all users of the cache, executable where the wheel says so.
    let mode = entry.unix_mode().unwrap_or(0o644) & 0o755 | 0o644;
    Ok(file.set_permissions(Permissions::from_mode(mode))?)
}

/// Library links such as `libx.so → libx.so.1` name a file beside them.
fn stays_beside(points_at: &Path) -> bool {
    let mut parts = points_at.components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

fn is_needed(name: &Path) -> bool {
    let parts: Vec<&str> = name.iter().filter_map(|part| part.to_str()).collect();
    match parts.as_slice() {
        ["torch", "version.py"] | ["torch", "lib" | "include", ..] => true,
        ["nvidia", _, "lib" | "include", ..] => {
            name.extension().is_none_or(|extension| extension != "py")
        }
        [folder, "licenses", ..] => folder.ends_with(".dist-info"),
        _ => false,
    }
}

/// Moves what `from` holds into `into`: in one step where `into` is new, else file by file with
/// the stamp last. Files of other sets in `into` stay as they are.
pub(crate) fn promote(from: &Path, into: &Path, stamp: &str) -> Result<()> {
    let moved = || -> io::Result<()> {
        if !into.exists() {
            return fs::rename(from, into);
        }
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            if entry.file_name() != stamp {
                merge(&entry.path(), &into.join(entry.file_name()))?;
            }
        }
        fs::rename(from.join(stamp), into.join(stamp))?;
        fs::remove_dir_all(from)
    };
    moved().with_context(|| format!("cannot move {} to {}", from.display(), into.display()))
}

fn merge(from: &Path, into: &Path) -> io::Result<()> {
    if !(from.is_dir() && into.is_dir()) {
        return fs::rename(from, into);
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        merge(&entry.path(), &into.join(entry.file_name()))?;
    }
    Ok(())
}

/// Refuses early where the disk cannot hold what is coming.
pub(crate) fn require_space(folder: &Path, bytes: u64) -> Result<()> {
    let free = free_bytes(folder)?;
    if free < bytes {
        bail!(
            "{} has {} free, but set-up needs {} there; make room, or name a folder on another \
             disk with ORCHESTRATOR_CACHE",
            folder.display(),
            megabytes(free),
            megabytes(bytes)
        );
    }
    Ok(())
}

fn free_bytes(folder: &Path) -> Result<u64> {
    let disk = nix::sys::statvfs::statvfs(folder)
        .with_context(|| format!("cannot read the free space of {}", folder.display()))?;
    Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::write::{SimpleFileOptions, ZipWriter};

    fn zip_of(path: &Path, files: &[(&str, u32)]) {
        let mut writer = ZipWriter::new(File::create(path).unwrap());
        for (name, mode) in files {
            let options = SimpleFileOptions::default().unix_permissions(*mode);
            writer.start_file(*name, options).unwrap();
            writer.write_all(name.as_bytes()).unwrap();
        }
        writer.add_symlink("torch/lib/libx.so", "libx.so.1", SimpleFileOptions::default()).unwrap();
        writer.finish().unwrap();
    }

    #[test]
    fn libraries_headers_and_licences_are_kept_and_python_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (archive, target) = (folder.path().join("a.whl"), folder.path().join("out"));
        zip_of(
            &archive,
            &[
                ("torch/lib/libx.so.1", 0o755),
                ("torch/include/torch/torch.h", 0o600),
                ("torch/version.py", 0o644),
                ("torch/nn/functional.py", 0o644),
                ("nvidia/cu13/lib/__init__.py", 0o644),
                ("torch-2.11.0.dist-info/licenses/LICENSE", 0o644),
            ],
        );
        wheel(&archive, &target).unwrap();
        let mode = |name| fs::metadata(target.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("torch/lib/libx.so.1"), 0o755);
        assert_eq!(mode("torch/include/torch/torch.h"), 0o644);
        assert_eq!(fs::read(target.join("torch/lib/libx.so")).unwrap(), b"torch/lib/libx.so.1");
        assert!(target.join("torch/version.py").exists());
        assert!(target.join("torch-2.11.0.dist-info/licenses/LICENSE").exists());
        assert!(!target.join("torch/nn").exists() && !target.join("nvidia").exists());
    }

    #[test]
    fn links_may_only_name_a_file_beside_them() {
        assert!(stays_beside(Path::new("libx.so.1")));
        for bad in ["../libx.so.1", "/etc/passwd", "a/b", ""] {
            assert!(!stays_beside(Path::new(bad)), "{bad}");
        }
    }

    #[test]
    fn a_set_joins_another_and_the_stamp_comes_along() {
        let folder = tempfile::tempdir().unwrap();
        let (home, partial) = (folder.path().join("home"), folder.path().join("partial"));
        for (set, stamp) in [("cpu", ".complete-cpu"), ("cuda", ".complete-cuda")] {
            let lib = partial.join("nvidia/cu13/lib");
            fs::create_dir_all(&lib).unwrap();
            fs::write(lib.join(set), "").unwrap();
            fs::write(partial.join(stamp), "").unwrap();
            promote(&partial, &home, stamp).unwrap();
            assert!(!partial.exists());
        }
        for name in
            ["nvidia/cu13/lib/cpu", "nvidia/cu13/lib/cuda", ".complete-cpu", ".complete-cuda"]
        {
            assert!(home.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_full_disk_is_refused_with_a_way_out() {
        let folder = tempfile::tempdir().unwrap();
        require_space(folder.path(), 1).unwrap();
        let message = require_space(folder.path(), u64::MAX).unwrap_err().to_string();
        assert!(message.contains("ORCHESTRATOR_CACHE"), "{message}");
    }
}
