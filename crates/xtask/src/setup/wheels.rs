//! Which files make up libtorch 2.11.0, and their digests.
//!
//! Invariant: a wheel is unpacked only if its SHA-256 stands here. The versions are the ones that
//! torch 2.11.0's own metadata pins (`Requires-Dist`, through cuda-toolkit 13.0.2), but for
//! `nvidia-cuda-crt`, which only holds headers that compiling against CUDA needs.

/// The libtorch that `tch = "=0.24.0"` is written for.
pub(crate) const LIBTORCH_VERSION: &str = "2.11.0";

/// One wheel on the Python package index, for CPython 3.12 on Linux x86-64.
#[derive(Debug)]
pub(crate) struct Wheel {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) sha256: &'static str,
}

impl Wheel {
    /// As pip's command line takes it.
    pub(crate) fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }

    /// How the file's name starts (PEP 427: `-` becomes `_`).
    pub(crate) fn file_prefix(&self) -> String {
        format!("{}-{}-", self.name.replace('-', "_"), self.version)
    }
}

/// Wheels that are fetched, unpacked and stamped together.
pub(crate) struct WheelSet {
    pub(crate) name: &'static str,
    pub(crate) wheels: &'static [Wheel],
    /// Bytes on disk while the set is fetched and unpacked: the wheels and what they hold.
    pub(crate) peak_bytes: u64,
}

impl WheelSet {
    /// What the stamp of a finished set says; another pin makes another stamp.
    pub(crate) fn stamp(&self) -> String {
        let line = |wheel: &Wheel| format!("{} sha256:{}", wheel.requirement(), wheel.sha256);
        self.wheels.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Enough for the CPU, and for compiling against the CUDA headers. libtorch_cpu.so of the CUDA
/// build needs libcudart and libcupti to load; the index has no CPU-only wheel for Linux x86-64.
pub(crate) const CPU: WheelSet = WheelSet {
    name: "cpu",
    peak_bytes: 1_800_000_000,
    wheels: &[
        Wheel {
            name: "torch",
            version: LIBTORCH_VERSION,
            sha256: "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
        },
        Wheel {
            name: "nvidia-cuda-runtime",
            version: "13.0.96",
            sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
        },
        Wheel {
            name: "nvidia-cuda-cupti",
            version: "13.0.85",
            sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        },
        Wheel {
            name: "nvidia-cuda-crt",
            version: "13.0.88",
            sha256: "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
        },
    ],
};

/// What libtorch_cuda.so loads, directly or through another of these.
pub(crate) const CUDA: WheelSet = WheelSet {
    name: "cuda",
    peak_bytes: 5_000_000_000,
    wheels: &[
        Wheel {
            name: "nvidia-cublas",
            version: "13.1.0.3",
            sha256: "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
        },
        Wheel {
            name: "nvidia-cuda-nvrtc",
            version: "13.0.88",
            sha256: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
        },
        Wheel {
            name: "nvidia-cudnn-cu13",
            version: "9.19.0.56",
            sha256: "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf",
        },
        Wheel {
            name: "nvidia-cufft",
            version: "12.0.0.61",
            sha256: "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
        },
        Wheel {
            name: "nvidia-cufile",
            version: "1.15.1.6",
            sha256: "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
        },
        Wheel {
            name: "nvidia-curand",
            version: "10.4.0.35",
            sha256: "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
        },
        Wheel {
            name: "nvidia-cusolver",
            version: "12.0.4.66",
            sha256: "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
        },
        Wheel {
            name: "nvidia-cusparse",
            version: "12.6.3.3",
            sha256: "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
        },
        Wheel {
            name: "nvidia-cusparselt-cu13",
            version: "0.8.0",
            sha256: "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd",
        },
        Wheel {
            name: "nvidia-nccl-cu13",
            version: "2.28.9",
            sha256: "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
        },
        Wheel {
            name: "nvidia-nvjitlink",
            version: "13.0.88",
            sha256: "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
        },
        Wheel {
            name: "nvidia-nvshmem-cu13",
            version: "3.4.5",
            sha256: "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
        },
        Wheel {
            name: "nvidia-nvtx",
            version: "13.0.85",
            sha256: "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4",
        },
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_digest_is_a_sha256_and_stands_once() {
        let wheels: Vec<&Wheel> = CPU.wheels.iter().chain(CUDA.wheels).collect();
        for wheel in &wheels {
            assert_eq!(wheel.sha256.len(), 64, "{wheel:?}");
            assert!(wheel.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
        }
        let names: BTreeSet<_> = wheels.iter().map(|wheel| wheel.name).collect();
        let digests: BTreeSet<_> = wheels.iter().map(|wheel| wheel.sha256).collect();
        assert_eq!((names.len(), digests.len()), (wheels.len(), wheels.len()));
    }

    #[test]
    fn names_follow_pip_and_the_wheel_format() {
        let wheel = &CPU.wheels[1];
        assert_eq!(wheel.requirement(), "nvidia-cuda-runtime==13.0.96");
        assert_eq!(wheel.file_prefix(), "nvidia_cuda_runtime-13.0.96-");
    }

    #[test]
    fn a_stamp_changes_with_a_pin() {
        assert_eq!(CPU.stamp().lines().count(), 4);
        assert_ne!(CPU.stamp(), CUDA.stamp());
    }
}
