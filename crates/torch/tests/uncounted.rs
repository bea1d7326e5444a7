//! Before the CPU's allocator counts. A process of its own, and one test: counting cannot be undone.

use orchestrator_torch::{Device, allocator, trace};
use orchestrator_types::ByteCount;
use torch_sys::{C_tensor, at_free, c_generated::atg_empty};

fn bytes(count: i64) -> *mut C_tensor {
    let mut out = std::ptr::null_mut();
    // SAFETY: all pointers are valid during the call; kind 0 is bytes, device -1 the CPU.
    unsafe { atg_empty(&raw mut out, &raw const count, 1, 0, -1) };
    assert!(!out.is_null());
    out
}

#[test]
fn the_cpu_must_be_counted_first_and_blocks_from_before_never_are() {
    const CPU: Device = Device::Cpu;
    let older = bytes(1000);
    let refusals = [
        allocator::statistics(CPU).map(drop).unwrap_err(),
        allocator::reset_peaks(CPU).unwrap_err(),
        allocator::free_and_total(CPU).map(drop).unwrap_err(),
        allocator::set_limit(CPU, None).unwrap_err(),
        allocator::limit(CPU).map(drop).unwrap_err(),
        allocator::refuse_once(0, ByteCount::ZERO).unwrap_err(),
        trace::start(CPU).map(drop).unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(
            refusal.to_string(),
            "libtorch: the CPU's allocator is not counted; call count_cpu before the first tensor"
        );
    }
    allocator::count_cpu().unwrap();
    allocator::count_cpu().unwrap();
    let newer = bytes(500);
    // SAFETY: made above, and freed once.
    unsafe { at_free(older) };
    assert_eq!(allocator::statistics(CPU).unwrap().allocated.current, ByteCount::bytes(500));
    // SAFETY: as above.
    unsafe { at_free(newer) };
    assert_eq!(allocator::statistics(CPU).unwrap().allocated.current, ByteCount::ZERO);
}
