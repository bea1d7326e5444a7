//! Who allocates: each block that is taken or given back on a thread, charged to the operator that
//! runs and to the module that asked for it.
//!
//! Invariant: a thread without a trace does no work for one.

use std::{cell::Cell, ffi::c_void, marker::PhantomData, ptr, slice};

use crate::{
    Device, TorchError, allocator,
    ffi::{
        RawEvent, done, orchestrator_torch_trace_begin, orchestrator_torch_trace_end,
        orchestrator_torch_trace_enter, orchestrator_torch_trace_free,
        orchestrator_torch_trace_leave, orchestrator_torch_trace_name,
    },
};

thread_local! {
    /// Which trace runs on this thread; 0 for none. Numbers are not used twice, so that a guard of
    /// one trace cannot end a module of the next.
    static RUNNING: Cell<u64> = const { Cell::new(0) };
    static STARTED: Cell<u64> = const { Cell::new(0) };
}

/// A block that was taken or given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the trace began.
    pub at_ns: u64,
    /// Size of the block; negative when it was given back. On CUDA blocks are rounded up to 512
    /// bytes.
    pub bytes: i64,
    /// Where the block is; addresses are used again once a block was given back.
    pub address: u64,
    /// The innermost operator that runs, as `aten::bmm`. Operators that only allocate
    /// (`aten::empty`, …) are passed over for the one that called them. Empty outside of all
    /// operators.
    pub operator: String,
    /// The outermost operator of ATen: the one that was called.
    pub outer: String,
    /// The modules around the call, as `image.layers.3`; empty outside of all.
    pub module: String,
    /// Bytes taken since the trace began and not given back. Blocks older than the trace do not
    /// count, though giving one back is an event too.
    pub live_after: u64,
}

/// A running trace of the current thread (not `Send`). Dropped before [`Trace::finish`], it stops
/// and forgets.
///
/// What other threads take or give back is not seen. Tracing slows operators down: not for runs
/// that are timed.
#[derive(Debug)]
#[must_use = "a trace ends when it is dropped"]
pub struct Trace {
    handle: *mut c_void,
    on_this_thread: PhantomData<*const ()>,
}

/// The current thread is within a module until this is dropped (not `Send`).
#[derive(Debug)]
#[must_use = "the module ends when the guard is dropped"]
pub struct ModuleGuard {
    /// The trace that the module was given to; 0 for none.
    trace: u64,
    on_this_thread: PhantomData<*const ()>,
}

/// Starts a trace of what the current thread does to the device's memory. A thread has one trace
/// at a time. On the CPU, [`crate::allocator::count_cpu`] comes first.
pub fn start(device: Device) -> Result<Trace, TorchError> {
    // Fails where the device is not there or its allocator reports nothing.
    allocator::statistics(device)?;
    let mut handle = ptr::null_mut();
    // SAFETY: all pointers are valid during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_trace_begin(device.number(), &raw mut handle, message, capacity)
    })?;
    let number = STARTED.get() + 1;
    STARTED.set(number);
    RUNNING.set(number);
    Ok(Trace { handle, on_this_thread: PhantomData })
}

/// Charges what the current thread allocates to the module `name` until the guard is dropped.
/// Modules nest: their names are joined by dots. Does nothing on a thread without a trace; a module
/// that was entered before the trace began is not known to it.
pub fn module(name: &str) -> ModuleGuard {
    let running = RUNNING.get();
    // Fails only where memory for the name runs out: its bytes are then the outer module's.
    let entered = running != 0 && enter(name).is_ok();
    ModuleGuard { trace: if entered { running } else { 0 }, on_this_thread: PhantomData }
}

fn enter(name: &str) -> Result<(), TorchError> {
    // SAFETY: all pointers are valid, with their lengths, during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_trace_enter(name.as_ptr(), name.len(), message, capacity)
    })
}

impl Drop for ModuleGuard {
    fn drop(&mut self) {
        if self.trace != 0 && self.trace == RUNNING.get() {
            // SAFETY: touches state of this thread, where the guard was made.
            unsafe { orchestrator_torch_trace_leave() }
        }
    }
}

impl Trace {
    /// Ends the trace. Gives its events in the order in which they happened.
    pub fn finish(self) -> Vec<Event> {
        RUNNING.set(0);
        let (mut events, mut count) = (ptr::null(), 0);
        // SAFETY: all pointers are valid during the call; the handle is of this thread.
        unsafe { orchestrator_torch_trace_end(self.handle, &raw mut events, &raw mut count) };
        if count == 0 {
            return Vec::new();
        }
        // SAFETY: the shim's events stay where they are until `self` is dropped, below.
        let raw = unsafe { slice::from_raw_parts(events, count) };
        raw.iter().map(|event| self.event(event)).collect()
    }

    fn event(&self, raw: &RawEvent) -> Event {
        Event {
            at_ns: raw.at_ns,
            bytes: raw.bytes,
            address: raw.address,
            operator: self.name(raw.op),
            outer: self.name(raw.outer),
            module: self.name(raw.module),
            live_after: raw.live_after,
        }
    }

    fn name(&self, number: u32) -> String {
        let mut length = 0;
        // SAFETY: the handle is valid, and the number is from one of its events.
        let text = unsafe { orchestrator_torch_trace_name(self.handle, number, &raw mut length) };
        // SAFETY: so many bytes, valid as long as the handle.
        let bytes = unsafe { slice::from_raw_parts(text, length) };
        String::from_utf8_lossy(bytes).into_owned()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        RUNNING.set(0);
        // SAFETY: made by `start` on this thread (the type is not `Send`), and freed once.
        unsafe { orchestrator_torch_trace_free(self.handle) }
    }
}

#[cfg(test)]
mod tests;
