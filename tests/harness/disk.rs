//! A disk that is soon full.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

/// A file system of its own in memory, of a few MiB. Gone when it is dropped.
pub struct SmallDisk {
    root: PathBuf,
}

impl SmallDisk {
    /// Mounts it on `root`, which is made. The reason if that is not allowed here.
    pub fn mount(root: &Path, mebibytes: u32) -> Result<Self, String> {
        Self::mount_with(root, &format!("size={mebibytes}m"))
    }

    /// Mounts one on `root` that nobody can write to.
    pub fn mount_read_only(root: &Path) -> Result<Self, String> {
        Self::mount_with(root, "size=1m,ro")
    }

    fn mount_with(root: &Path, options: &str) -> Result<Self, String> {
        fs::create_dir_all(root).unwrap();
        let root_text = root.to_str().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "orchestrator-test", root_text])
            .output();
        match mounted {
            Ok(output) if output.status.success() => Ok(Self { root: root.to_owned() }),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("cannot start mount: {error}")),
        }
    }

    fn filler(&self) -> PathBuf {
        self.root.join("filler")
    }

    /// Fills it to the last byte.
    pub fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        for size in [1 << 16, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Gives back what [`SmallDisk::fill`] took.
    pub fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: whoever still uses it keeps what it has.
        drop(Command::new("umount").arg("-l").arg(&self.root).status());
    }
}
