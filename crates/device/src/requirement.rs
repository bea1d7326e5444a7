//! What the bundled CUDA asks of a driver and of a GPU. Pure.

use std::fmt;

use crate::Version;

/// What is needed to compute on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The CUDA that libtorch was built with.
    pub cuda: Version,
    /// The first driver branch that serves it on Linux.
    pub driver: u32,
    /// The least compute capability that libtorch has kernels for.
    pub capability: Version,
}

/// Of libtorch 2.11.0+cu130. The driver is that of NVIDIA's table of minor version compatibility
/// ("CUDA 13.x: >= 580"), the capability that of the oldest kernels in PyTorch's build (Turing).
pub const BUNDLED: Requirement =
    Requirement { cuda: Version(13, 0), driver: 580, capability: Version(7, 5) };

/// A driver that cannot serve the bundled CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct OldDriver {
    /// Its version, where told.
    pub driver: Option<String>,
    /// The newest CUDA that it serves, where told.
    pub serves: Option<Version>,
    /// What is needed.
    pub needs: Requirement,
}

impl Requirement {
    /// Whether the driver is too old. What it says of CUDA counts before its own version: a package
    /// for forward compatibility lets an old driver serve a newer CUDA. Where nothing can be read
    /// CUDA itself has the word, later.
    pub fn judge_driver(&self, driver: Option<&str>, serves: Option<Version>) -> Option<OldDriver> {
        let branch = driver.and_then(|text| text.split('.').next()?.parse::<u32>().ok());
        let old = match (serves, branch) {
            (Some(serves), _) => serves < self.cuda,
            (None, Some(branch)) => branch < self.driver,
            (None, None) => false,
        };
        old.then(|| OldDriver { driver: driver.map(str::to_owned), serves, needs: *self })
    }

    /// Whether libtorch has no kernels for a GPU of this capability.
    pub fn lacks_kernels(&self, capability: Version) -> bool {
        capability < self.capability
    }
}

impl fmt::Display for OldDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Requirement { cuda, driver, .. } = self.needs;
        f.write_str("the NVIDIA driver is too old: ")?;
        match (&self.driver, self.serves) {
            (Some(found), Some(serves)) => write!(f, "{found} serves CUDA {serves} at most")?,
            (Some(found), None) => write!(f, "{found} was found")?,
            (None, Some(serves)) => write!(f, "it serves CUDA {serves} at most")?,
            (None, None) => f.write_str("nothing more is told")?,
        }
        write!(
            f,
            "; this build computes with CUDA {cuda}, which needs driver {driver} or newer: update \
             the driver of the machine (for a container, of its node)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cuda_that_a_driver_serves_decides_before_its_version() {
        let cases = [
            (Some("580.65.06"), Some(Version(13, 0)), true),
            (Some("580.159.03"), None, true),
            (Some("595.10"), Some(Version(13, 2)), true),
            (Some("610.43.02"), Some(Version(14, 0)), true),
            (Some("575.57.08"), Some(Version(12, 9)), false),
            (Some("579.99"), None, false),
            (Some("550.54.15"), Some(Version(12, 4)), false),
            // Forward compatibility: the library beside the driver is newer than it.
            (Some("550.54.15"), Some(Version(13, 0)), true),
            (None, Some(Version(12, 9)), false),
            // Nothing told, or nothing readable: CUDA says so itself if it is wrong.
            (None, None, true),
            (Some("internal build"), None, true),
        ];
        for (driver, serves, good) in cases {
            let old = BUNDLED.judge_driver(driver, serves);
            assert_eq!(old.is_none(), good, "{driver:?} {serves:?}");
        }
    }

    #[test]
    fn an_old_driver_is_told_with_what_is_needed() {
        let told = |driver, serves| BUNDLED.judge_driver(driver, serves).unwrap().to_string();
        insta::assert_snapshot!(told(Some("550.54.15"), Some(Version(12, 4))), @"the NVIDIA driver is too old: 550.54.15 serves CUDA 12.4 at most; this build computes with CUDA 13.0, which needs driver 580 or newer: update the driver of the machine (for a container, of its node)");
        insta::assert_snapshot!(told(Some("535.183.01"), None), @"the NVIDIA driver is too old: 535.183.01 was found; this build computes with CUDA 13.0, which needs driver 580 or newer: update the driver of the machine (for a container, of its node)");
        insta::assert_snapshot!(told(None, Some(Version(12, 8))), @"the NVIDIA driver is too old: it serves CUDA 12.8 at most; this build computes with CUDA 13.0, which needs driver 580 or newer: update the driver of the machine (for a container, of its node)");
    }

    #[test]
    fn kernels_begin_with_turing() {
        let lacks = |major, minor| BUNDLED.lacks_kernels(Version(major, minor));
        assert_eq!([lacks(3, 7), lacks(7, 0), lacks(7, 2)], [true; 3]);
        assert_eq!([lacks(7, 5), lacks(8, 0), lacks(9, 0), lacks(12, 1)], [false; 4]);
    }
}
