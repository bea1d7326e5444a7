//! Traces of operators whose memory is known by arithmetic.

use std::thread;

use super::*;
use crate::{
    InferenceMode, allocator,
    testing::{Tensor, alone, has_cuda},
};

const BATCH: i64 = 4;
const TOKENS: i64 = 50;
const WIDTH: i64 = 64;

fn floats(shape: [i64; 3]) -> i64 {
    4 * shape.iter().product::<i64>()
}

unsafe extern "C" {
    /// `at::hasThreadLocalCallbacks()`.
    #[link_name = "_ZN2at23hasThreadLocalCallbacksEv"]
    safe fn has_callbacks() -> bool;
    /// `c10::memoryProfilingEnabled()`.
    #[link_name = "_ZN3c1022memoryProfilingEnabledEv"]
    safe fn is_reported_to() -> bool;
}

/// (operator, outer, module, bytes) of each event.
fn charges(events: &[Event]) -> Vec<(&str, &str, &str, i64)> {
    events
        .iter()
        .map(|e| (e.operator.as_str(), e.outer.as_str(), e.module.as_str(), e.bytes))
        .collect()
}

#[test]
fn naive_attention_is_charged_to_its_products_and_softmax_to_the_byte() {
    let _turn = alone();
    let (query, key, value) = (
        Tensor::zeros([BATCH, TOKENS, WIDTH]),
        Tensor::zeros([BATCH, WIDTH, TOKENS]),
        Tensor::zeros([BATCH, TOKENS, WIDTH]),
    );
    let scores_size = floats([BATCH, TOKENS, TOKENS]);
    let result_size = floats([BATCH, TOKENS, WIDTH]);
    let _mode = InferenceMode::enter().unwrap();
    let trace = start(Device::Cpu).unwrap();
    let result = {
        let _attention = module("attention");
        let scores = query.matmul(&key).unwrap();
        let shares = scores.softmax().unwrap();
        drop(scores);
        let _product = module("product");
        shares.bmm(&value).unwrap()
    };
    let events = trace.finish();
    assert_eq!(
        charges(&events),
        [
            ("aten::bmm", "aten::matmul", "attention", scores_size),
            ("aten::_softmax", "aten::softmax", "attention", scores_size),
            ("", "", "attention", -scores_size),
            ("aten::bmm", "aten::bmm", "attention.product", result_size),
            // `shares`, which outlives the guard that was made after it.
            ("", "", "attention", -scores_size),
        ]
    );
    let live: Vec<_> = events.iter().map(|event| event.live_after.cast_signed()).collect();
    assert_eq!(
        live,
        [scores_size, 2 * scores_size, scores_size, scores_size + result_size, result_size]
    );
    assert!(events.is_sorted_by_key(|event| event.at_ns));
    assert_eq!(events[0].address, events[2].address);
    drop(result);
}

#[test]
fn an_operator_that_only_allocates_is_named_when_nobody_called_it() {
    let _turn = alone();
    let trace = start(Device::Cpu).unwrap();
    drop(Tensor::bytes(10).unwrap());
    drop(Tensor::zeros([5]));
    assert_eq!(
        charges(&trace.finish()),
        [
            ("aten::empty", "aten::empty", "", 10),
            ("", "", "", -10),
            ("aten::zeros", "aten::zeros", "", 20),
            ("", "", "", -20)
        ]
    );
}

#[test]
fn giving_back_an_older_block_is_an_event_but_not_of_the_live_bytes() {
    let _turn = alone();
    let older = Tensor::bytes(1000).unwrap();
    let trace = start(Device::Cpu).unwrap();
    let kept = Tensor::bytes(30).unwrap();
    drop(older);
    let events = trace.finish();
    let seen: Vec<_> = events.iter().map(|event| (event.bytes, event.live_after)).collect();
    assert_eq!(seen, [(30, 30), (-1000, 30)]);
    drop(kept);
}

#[test]
fn a_block_that_another_thread_gave_back_unseen_counts_until_its_place_is_used_again() {
    let _turn = alone();
    let trace = start(Device::Cpu).unwrap();
    // Too large for malloc to keep: the system gives the same place again, or another.
    let block = Tensor::bytes(64 << 20).unwrap();
    thread::scope(|scope| scope.spawn(move || drop(block)).join().unwrap());
    let again = Tensor::bytes(64 << 20).unwrap();
    let events = trace.finish();
    let places = if events[0].address == events[1].address { 1 } else { 2 };
    assert_eq!(events.len(), 2);
    assert_eq!(events[1].live_after, places * (64 << 20));
    drop(again);
}

#[test]
fn nothing_is_recorded_before_or_after_a_trace_nor_of_other_threads() {
    let _turn = alone();
    let _outside = module("outside");
    drop(Tensor::bytes(1).unwrap());
    drop(start(Device::Cpu).unwrap());
    drop(Tensor::bytes(2).unwrap());
    let trace = start(Device::Cpu).unwrap();
    thread::spawn(|| drop(Tensor::bytes(3).unwrap())).join().unwrap();
    let inside = module("inside");
    assert_eq!(trace.finish(), []);
    let trace = start(Device::Cpu).unwrap();
    let inner = module("inner");
    // Of the trace before: must not end a module of this one.
    drop(inside);
    let block = Tensor::bytes(4).unwrap();
    drop(inner);
    drop(block);
    assert_eq!(
        charges(&trace.finish()),
        [("aten::empty", "aten::empty", "inner", 4), ("", "", "", -4)]
    );
}

#[test]
fn a_thread_has_one_trace_and_a_second_is_refused() {
    let _turn = alone();
    let trace = start(Device::Cpu).unwrap();
    assert_eq!(
        start(Device::Cpu).map(drop).unwrap_err().to_string(),
        "libtorch: this thread has a trace already"
    );
    thread::spawn(|| start(Device::Cpu).map(drop).unwrap()).join().unwrap();
    drop(Tensor::bytes(8).unwrap());
    assert_eq!(trace.finish().len(), 2);
}

#[test]
fn a_refused_allocation_leaves_the_trace_in_order() {
    let _turn = alone();
    let matrix = Tensor::zeros([64, 64]);
    let trace = start(Device::Cpu).unwrap();
    allocator::refuse_once(0, orchestrator_types::ByteCount::bytes(1)).unwrap();
    assert!(matrix.matmul(&matrix).is_err());
    let _product = matrix.matmul(&matrix).unwrap();
    let events = trace.finish();
    assert_eq!(charges(&events), [("aten::mm", "aten::matmul", "", 4 * 64 * 64)]);
}

#[test]
fn a_thread_pays_only_while_its_trace_runs() {
    let _turn = alone();
    let hooks = || (has_callbacks(), is_reported_to());
    assert_eq!(hooks(), (false, false));
    let trace = start(Device::Cpu).unwrap();
    assert_eq!(hooks(), (true, true));
    thread::spawn(move || assert_eq!(hooks(), (false, false))).join().unwrap();
    trace.finish();
    assert_eq!(hooks(), (false, false));
    drop(start(Device::Cpu).unwrap());
    assert_eq!(hooks(), (false, false));
}

/// Passes without a look on machines that have no GPU.
#[test]
fn a_trace_of_a_cuda_device_sees_its_blocks_and_no_others() {
    const GPU: Device = Device::Cuda(0);
    let _turn = alone();
    if !has_cuda() {
        return;
    }
    allocator::initialise(GPU).unwrap();
    let trace = start(GPU).unwrap();
    drop(Tensor::bytes(1000).unwrap());
    drop(Tensor::bytes_on(GPU, 1000).unwrap());
    assert_eq!(
        charges(&trace.finish()),
        [("aten::empty", "aten::empty", "", 1024), ("", "", "", -1024)]
    );
}
