//! The real binding, against a shared library that answers like NVML: what the C side writes is
//! what the Rust side reads.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{path::Path, process::Command, time::Duration};

use orchestrator_device::{
    DeviceProcess, Library, Nvml, NvmlError, Place, Refused, Version, XidEvent, inventory,
};
use orchestrator_types::{ByteCount, DeviceId};

/// The library of `tests/library/nvml.c`, opened.
fn open(folder: &Path) -> Library {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/nvml.c");
    let library = folder.join("libnvidia-ml.so.1");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(compiler)
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .args([&library, &source])
        .status();
    assert!(status.expect("a C compiler is installed").success());
    Library::open_at(&library).unwrap()
}

#[test]
fn every_question_reaches_the_library_and_its_answer_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let library = open(folder.path());
    let (gpu, mig): (DeviceId, DeviceId) =
        ("GPU-0000".parse().unwrap(), "MIG-0002".parse().unwrap());

    assert_eq!(library.driver_version().unwrap(), "580.1.2");
    assert_eq!(library.cuda_version().unwrap(), Version(13, 1));
    assert_eq!(library.capability(&gpu).unwrap(), Version(9, 0));
    let place = Place { gpu_instance: 9, compute_instance: 1 };
    assert_eq!(library.place(&mig).unwrap(), place);
    assert!(matches!(library.place(&gpu), Err(NvmlError::NotSupported)));
    assert_eq!(library.gpu_count().unwrap(), 1);
    assert_eq!(library.gpu(0).unwrap(), gpu);
    assert_eq!(library.mig_slots(&gpu).unwrap(), 3);
    assert!(matches!(library.mig(&gpu, 1), Err(NvmlError::NotFound)));
    assert_eq!(library.mig(&gpu, 2).unwrap(), mig);
    assert_eq!(library.name(&mig).unwrap(), "Test MIG 1g");

    assert!(matches!(library.memory(&gpu), Err(NvmlError::NoPermission)));
    let memory = library.memory(&mig).unwrap();
    assert_eq!((memory.total, memory.free), (ByteCount::gib(10), ByteCount::gib(7)));
    assert_eq!((memory.reserved, memory.used()), (ByteCount::gib(1), ByteCount::gib(3)));

    assert!(matches!(library.utilisation(&mig), Err(NvmlError::NotSupported)));
    let rates = library.utilisation(&gpu).unwrap();
    assert_eq!((rates.compute_percent, rates.memory_percent), (42, 7));
    let process = |pid, used| DeviceProcess { pid, used };
    assert_eq!(
        library.processes(&mig).unwrap(),
        [process(2_000_001, Some(ByteCount::gib(2))), process(2_000_002, None)]
    );
    assert!(matches!(library.memory(&"GPU-ffff".parse().unwrap()), Err(NvmlError::NotFound)));

    let found = inventory(Ok(&library), &|_| None);
    let ids: Vec<&DeviceId> = found.gpus.iter().map(|gpu| &gpu.id).collect();
    assert_eq!(ids, [&"MIG-0000".parse().unwrap(), &mig]);
}

#[test]
fn critical_errors_are_heard_also_those_of_the_gpu_around_an_instance() {
    let folder = tempfile::tempdir().unwrap();
    let library = open(folder.path());
    let all = ["GPU-0001", "MIG-0000", "MIG-0002"];
    // Alone, a GPU need not be told; else one that cannot be told is any of them.
    let cases = [(&all[..], vec![1, 2], vec![0, 1, 2]), (&all[1..], vec![0, 1], vec![0, 1])];
    for (devices, instances, any) in cases {
        let devices: Vec<DeviceId> = devices.iter().map(|id| id.parse().unwrap()).collect();
        let mut xids = library.xids(&devices).unwrap();
        let mut next = || xids.next(Duration::from_millis(1));
        assert_eq!(next().unwrap(), Some(XidEvent { devices: instances, number: 79 }));
        assert_eq!(next().unwrap(), None, "in time");
        let unnumbered = XidEvent { devices: any, number: 999 };
        assert_eq!(next().unwrap(), Some(unnumbered), "an error without a number");
        assert!(matches!(next(), Err(NvmlError::Lost)));
    }
    let absent = ["GPU-0000", "GPU-ffff"].map(|id| id.parse().unwrap());
    let refused = library.xids(&absent).err().unwrap();
    assert!(matches!(refused, Refused { device: 1, error: NvmlError::NotFound }), "{refused:?}");
}

#[test]
fn a_library_that_is_not_there_is_told() {
    let opened = Library::open_at(Path::new("/nonexistent/libnvidia-ml.so.1"));
    assert!(matches!(opened, Err(NvmlError::Absent(_))));
}
