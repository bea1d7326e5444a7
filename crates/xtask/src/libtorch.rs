//! What running needs of libtorch: its libraries and NVIDIA's, with their licences. Not Python's
//! part, nor headers.

use crate::checkout::Checkout;
use crate::setup;
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Only Python loads it.
const LEFT_OUT: &str = "libtorch_python.so";

/// Copies into `folder`: the libraries below `libtorch-VERSION`, and `libtorch`, the link that the
/// executor's rpath names.
pub(crate) fn copy(checkout: &Checkout, folder: &Path) -> Result<()> {
    let torch = setup::libtorch(checkout)?;
    let home = torch.parent().context("libtorch lies in a folder")?;
    let name = format!("libtorch-{}", setup::LIBTORCH_VERSION);
    let target = folder.join(&name);
    copy_libraries(&torch.join("lib"), &target.join("torch/lib"))?;
    if home.join("nvidia").exists() {
        copy_libraries(&home.join("nvidia"), &target.join("nvidia"))?;
    }
    copy_licences(home, &target)?;
    symlink(Path::new(&name).join("torch/lib"), folder.join("libtorch"))
        .with_context(|| format!("cannot link in {}", folder.display()))
}

fn copy_libraries(from: &Path, to: &Path) -> Result<()> {
    copy_tree(from, to, &|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (name.ends_with(".so") || name.contains(".so.")) && name != LEFT_OUT
    })
}

fn copy_licences(home: &Path, target: &Path) -> Result<()> {
    for entry in fs::read_dir(home).with_context(|| format!("cannot read {}", home.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", home.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_owned();
        let ours =
            ["torch-", "nvidia_"].iter().any(|start| name.to_string_lossy().starts_with(start));
        if ours && path.extension().is_some_and(|extension| extension == "dist-info") {
            copy_tree(&path, &target.join(name), &|_| true)?;
        }
    }
    Ok(())
}

/// Copies the wanted files and the folders that they lie in; links are followed.
fn copy_tree(from: &Path, to: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", from.display()))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_tree(&path, &target, wanted)?;
        } else if wanted(&path) {
            fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
            fs::copy(&path, &target)
                .with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_alone_are_copied() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("cu13/lib")).unwrap();
        fs::create_dir_all(from.join("cu13/include")).unwrap();
        for file in ["libc10.so", LEFT_OUT, "cu13/lib/libcudart.so.13", "cu13/include/cuda.h"] {
            fs::write(from.join(file), "x").unwrap();
        }
        copy_libraries(&from, &to).unwrap();
        assert!(to.join("libc10.so").exists() && to.join("cu13/lib/libcudart.so.13").exists());
        assert!(!to.join(LEFT_OUT).exists() && !to.join("cu13/include").exists());
    }
}
