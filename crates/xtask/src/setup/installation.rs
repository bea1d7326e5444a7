//! A libtorch on disk: is it the right one, and the checkout's link to it.

use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Checks that `torch` (the folder with `lib/` and `include/`) holds libtorch `version`.
pub(crate) fn check(torch: &Path, version: &str) -> Result<()> {
    for needed in ["lib/libtorch_cpu.so", "lib/libc10.so", "include/torch"] {
        if !torch.join(needed).exists() {
            bail!("{} is not a libtorch: it has no {needed}", torch.display());
        }
    }
    let found = version_of(torch).with_context(|| {
        format!("cannot tell the version of {}: no version.py, no build-version", torch.display())
    })?;
    if found != version {
        bail!(
            "{} is PyTorch {found}, but this version of the project is built for {version} \
             exactly; unset LIBTORCH to let `cargo xtask setup` fetch it",
            torch.display()
        );
    }
    Ok(())
}

/// From `version.py` (wheels) or `build-version` (the C++ distribution).
fn version_of(torch: &Path) -> Option<String> {
    if let Ok(text) = fs::read_to_string(torch.join("version.py")) {
        return version_in_python(&text);
    }
    fs::read_to_string(torch.join("build-version")).ok().map(|text| public_part(text.trim()))
}

/// Finds `__version__ = '2.11.0+cu130'` and drops the local part.
fn version_in_python(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("__version__"))?;
    let value = line.trim_start().strip_prefix('=')?.trim();
    let unquoted = value.strip_prefix(['\'', '"'])?.strip_suffix(['\'', '"'])?;
    (!unquoted.is_empty()).then(|| public_part(unquoted))
}

fn public_part(version: &str) -> String {
    version.split('+').next().unwrap_or(version).to_owned()
}

/// Points `link` at `target`, replacing an older link in one step.
pub(crate) fn link(link: &Path, target: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|now| now == target) {
        return Ok(());
    }
    let folder = link.parent().context("the link has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let next = folder.join(format!(".next-{}", std::process::id()));
    symlink(target, &next).with_context(|| format!("cannot make the link {}", next.display()))?;
    fs::rename(&next, link)
        .with_context(|| format!("cannot put a link at {}; remove what is there", link.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_py_is_read_without_its_local_part() {
        let text = "from typing import Optional\n\n__all__ = ['__version__']\n\
                    __version__ = '2.11.0+cu130'\ndebug = False\n";
        assert_eq!(version_in_python(text).as_deref(), Some("2.11.0"));
        assert_eq!(version_in_python("__version__ = \"2.12.1\"").as_deref(), Some("2.12.1"));
        assert_eq!(version_in_python("__all__ = ['__version__']"), None);
        assert_eq!(version_in_python("__version__ = ''"), None);
    }

    fn fake_libtorch(version: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("lib")).unwrap();
        fs::create_dir_all(folder.path().join("include/torch")).unwrap();
        for name in ["lib/libtorch_cpu.so", "lib/libc10.so"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::write(folder.path().join("version.py"), format!("__version__ = '{version}'\n"))
            .unwrap();
        folder
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let message = check(fake_libtorch("2.10.0+cpu").path(), "2.11.0").unwrap_err().to_string();
        assert!(message.contains("is PyTorch 2.10.0") && message.contains("2.11.0 exactly"));
        check(fake_libtorch("2.11.0+cu130").path(), "2.11.0").unwrap();
    }

    #[test]
    fn a_folder_without_libraries_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let message = check(folder.path(), "2.11.0").unwrap_err().to_string();
        assert!(message.contains("it has no lib/libtorch_cpu.so"), "{message}");
    }

    #[test]
    fn a_link_is_replaced_and_a_folder_in_its_place_is_not_destroyed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkout/.torch/torch");
        link(&path, Path::new("/one")).unwrap();
        link(&path, Path::new("/two")).unwrap();
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("/two"));
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("precious")).unwrap();
        assert!(link(&path, Path::new("/three")).is_err());
        assert!(path.join("precious").exists());
    }
}
