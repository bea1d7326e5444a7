//! The CPU's contract: every byte counted, no byte above the limit.

use std::thread;

use proptest::prelude::*;

use super::*;
use crate::{
    cuda::{self, Loaded},
    out_of_memory::{Kind, classify},
    testing::{Tensor, alone, has_cuda},
};

const CPU: Device = Device::Cpu;

fn current() -> u64 {
    statistics(CPU).unwrap().allocated.current.as_u64()
}

fn peak() -> u64 {
    statistics(CPU).unwrap().allocated.peak.as_u64()
}

fn ooms() -> u64 {
    statistics(CPU).unwrap().ooms
}

/// Leaves `room` bytes above what is held now.
fn leave(room: u64) {
    set_limit(CPU, Some(ByteCount::bytes(current() + room))).unwrap();
}

#[test]
fn every_byte_is_counted_and_given_back() {
    let _turn = alone();
    let before = current();
    let first = Tensor::bytes(1).unwrap();
    let second = Tensor::bytes(1_000_003).unwrap();
    let empty = Tensor::bytes(0).unwrap();
    assert_eq!(current() - before, 1_000_004);
    drop(second);
    assert_eq!(current() - before, 1);
    drop((first, empty));
    assert_eq!(current(), before);
    let all = statistics(CPU).unwrap();
    assert_eq!((all.reserved, all.retries), (all.allocated, 0));
}

#[test]
fn a_peak_stays_until_it_is_reset_to_what_is_held() {
    let _turn = alone();
    let before = current();
    let kept = Tensor::bytes(1000).unwrap();
    drop(Tensor::bytes(5000).unwrap());
    assert_eq!(peak() - before, 6000);
    reset_peaks(CPU).unwrap();
    assert_eq!(peak() - before, 1000);
    drop(kept);
    assert_eq!(peak() - before, 1000);
}

#[test]
fn a_limit_holds_to_the_byte_and_says_what_was_asked() {
    let _turn = alone();
    let (held, refused) = (current(), ooms());
    leave(4096);
    let all = Tensor::bytes(4096).unwrap();
    let text = Tensor::bytes(1).map(drop).unwrap_err();
    let limit = held + 4096;
    assert_eq!(
        text,
        format!(
            "CPU out of memory. Tried to allocate 1 bytes: {limit} bytes are in use and the limit \
             is {limit} bytes."
        )
    );
    assert_eq!(classify(&text, free_and_total(CPU).unwrap()), Some(Kind::Host));
    assert_eq!(ooms() - refused, 1);
    drop(all);
    drop(Tensor::bytes(4096).unwrap());
    assert_eq!(current(), held);
}

#[test]
fn a_limit_below_what_is_held_keeps_it_and_refuses_more_until_lifted() {
    let _turn = alone();
    let held = Tensor::bytes(4096).unwrap();
    set_limit(CPU, Some(ByteCount::bytes(1))).unwrap();
    assert_eq!(limit(CPU), Ok(Some(ByteCount::bytes(1))));
    assert_eq!(free_and_total(CPU).unwrap().unwrap().free, ByteCount::ZERO);
    assert!(Tensor::bytes(1).is_err());
    set_limit(CPU, None).unwrap();
    assert_eq!((limit(CPU), free_and_total(CPU)), (Ok(None), Ok(None)));
    drop((Tensor::bytes(1).unwrap(), held));
}

#[test]
fn what_is_free_is_what_the_limit_leaves() {
    let _turn = alone();
    leave(10_000);
    let _held = Tensor::bytes(4000).unwrap();
    let memory = free_and_total(CPU).unwrap().unwrap();
    assert_eq!(memory.free, ByteCount::bytes(6000));
    assert_eq!(Some(memory.total), limit(CPU).unwrap());
}

#[test]
fn threads_together_never_exceed_a_limit() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 20_000;
    const BLOCK: u64 = 1000;
    // For one block at a time: any two threads that ask at once contend for it.
    const ROOM: u64 = BLOCK + BLOCK / 2;
    let _turn = alone();
    let (before, refused) = (current(), ooms());
    leave(ROOM);
    reset_peaks(CPU).unwrap();
    let ask = || (0..ROUNDS).filter(|_| Tensor::bytes(BLOCK).is_err()).count() as u64;
    let refusals: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(refusals > 0);
    assert!(peak() - before <= ROOM, "{} of {ROOM}", peak() - before);
    let all = Tensor::bytes(ROOM).unwrap();
    assert!(Tensor::bytes(1).is_err());
    drop(all);
    assert_eq!(ooms() - refused, refusals + 1);
    assert_eq!(current(), before);
}

#[test]
fn one_refusal_can_be_ordered_among_large_enough_blocks() {
    let _turn = alone();
    let refused = ooms();
    refuse_once(2, ByteCount::bytes(100)).unwrap();
    drop(Tensor::bytes(99).unwrap());
    drop(Tensor::bytes(100).unwrap());
    drop(Tensor::bytes(100).unwrap());
    let text = Tensor::bytes(200).map(drop).unwrap_err();
    assert_eq!(classify(&text, None), Some(Kind::Host), "{text}");
    assert!(text.contains("200 bytes") && text.contains("refuse_once"), "{text}");
    drop(Tensor::bytes(200).unwrap());
    assert_eq!(ooms() - refused, 1);
}

#[test]
fn what_the_system_refuses_is_not_counted_as_held() {
    let _turn = alone();
    let (before, refused) = (current(), ooms());
    let text = Tensor::bytes(1 << 50).map(drop).unwrap_err();
    assert_eq!(classify(&text, None), Some(Kind::Host), "{text}");
    assert_eq!((current(), peak(), ooms() - refused), (before, before, 1));
}

#[test]
fn operators_are_refused_their_results_and_pass_once_there_is_room() {
    let _turn = alone();
    let matrix = Tensor::zeros([64, 64]);
    leave(64 * 64 * 4 - 1);
    let text = matrix.matmul(&matrix).map(drop).unwrap_err();
    assert_eq!(classify(&text, None), Some(Kind::Host), "{text}");
    leave(64 * 64 * 4);
    matrix.matmul(&matrix).unwrap();
}

#[test]
fn a_cuda_device_that_is_not_there_is_an_error_that_says_so() {
    const NONE: Device = Device::Cuda(255);
    let reason = match cuda::load().unwrap() {
        Loaded::Present { devices: 1.. } => "there is no device cuda:255",
        _ => "CUDA support is not loaded in this process",
    };
    let messages = [
        statistics(NONE).unwrap_err(),
        reset_peaks(NONE).unwrap_err(),
        empty_cache(NONE).unwrap_err(),
        free_and_total(NONE).unwrap_err(),
        set_limit(NONE, None).unwrap_err(),
        limit(NONE).unwrap_err(),
        initialise(NONE).unwrap_err(),
        crate::synchronise(NONE).unwrap_err(),
    ];
    for message in messages {
        assert!(message.to_string().contains(reason), "{message}");
    }
}

/// Passes without a look on machines that have no GPU.
#[test]
fn a_cuda_device_counts_and_keeps_a_limit() {
    const GPU: Device = Device::Cuda(0);
    let _turn = alone();
    if !has_cuda() {
        return;
    }
    apply(&default_for(DeviceKind::WholeGpu)).unwrap();
    initialise(GPU).unwrap();
    let before = statistics(GPU).unwrap();
    let block = Tensor::bytes_on(GPU, 64 << 20).unwrap();
    assert_eq!(
        statistics(GPU).unwrap().allocated.current.as_u64(),
        before.allocated.current.as_u64() + (64 << 20)
    );
    let asked = ByteCount::mib(256);
    set_limit(GPU, Some(asked)).unwrap();
    let kept = limit(GPU).unwrap().unwrap();
    assert!(kept <= asked && asked.as_u64() - kept.as_u64() <= 1, "{kept}");
    let text = Tensor::bytes_on(GPU, 512 << 20).map(drop).unwrap_err();
    assert_eq!(classify(&text, free_and_total(GPU).unwrap()), Some(Kind::Device), "{text}");
    assert_eq!(statistics(GPU).unwrap().ooms, before.ooms + 1);
    assert!(statistics(GPU).unwrap().reserved.peak <= asked);
    drop(block);
    set_limit(GPU, None).unwrap();
    assert_eq!(limit(GPU), Ok(None));
    drop(Tensor::bytes_on(GPU, 512 << 20).unwrap());
    crate::synchronise(GPU).unwrap();
    empty_cache(GPU).unwrap();
    reset_peaks(GPU).unwrap();
    assert_eq!(statistics(GPU).unwrap().allocated.peak, before.allocated.current);
}

#[test]
fn the_cpu_needs_no_start_no_waiting_and_has_no_cache() {
    initialise(CPU).unwrap();
    empty_cache(CPU).unwrap();
    crate::synchronise(CPU).unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u64),
    GiveBack(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step =
        prop_oneof![(1_u64..20_000).prop_map(Step::Take), (0_usize..8).prop_map(Step::GiveBack)];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn the_counts_follow_any_sequence_and_a_block_passes_exactly_if_it_fits(steps in steps()) {
        const ROOM: u64 = 50_000;
        let _turn = alone();
        let before = current();
        leave(ROOM);
        let (mut held, mut expected, mut highest) = (Vec::new(), 0, 0);
        for step in steps {
            match step {
                Step::Take(bytes) => {
                    let block = Tensor::bytes(bytes);
                    prop_assert_eq!(block.is_ok(), expected + bytes <= ROOM);
                    if let Ok(block) = block {
                        held.push((bytes, block));
                        expected += bytes;
                    }
                }
                Step::GiveBack(at) if at < held.len() => expected -= held.swap_remove(at).0,
                Step::GiveBack(_) => {}
            }
            highest = highest.max(expected);
            prop_assert_eq!(current() - before, expected);
        }
        prop_assert_eq!(peak() - before, highest);
        drop(held);
        prop_assert_eq!(current(), before);
    }
}
