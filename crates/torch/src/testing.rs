//! Tensors for this crate's tests, which has no tch; and one test at a time, as the counters are
//! the process's.

use std::{
    ffi::{CStr, c_int},
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use torch_sys::{
    C_tensor, at_free,
    c_generated::{atg_bmm, atg_empty, atg_matmul, atg_softmax, atg_zeros},
    get_and_reset_last_err,
};

use crate::{
    Device, allocator,
    cuda::{self, Loaded},
};

const BYTES: c_int = 0;
const FLOATS: c_int = 6;

/// Holds other tests back; the CPU's allocator counts and has no limit.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    allocator::count_cpu().unwrap();
    allocator::set_limit(Device::Cpu, None).unwrap();
    allocator::reset_peaks(Device::Cpu).unwrap();
    turn
}

/// Whether this machine has a CUDA device that the process can use.
pub(crate) fn has_cuda() -> bool {
    matches!(cuda::load().unwrap(), Loaded::Present { devices: 1.. })
}

pub(crate) struct Tensor(*mut C_tensor);

impl Tensor {
    /// That many bytes of whatever.
    pub(crate) fn bytes(count: u64) -> Result<Self, String> {
        Self::bytes_on(Device::Cpu, count)
    }

    pub(crate) fn bytes_on(device: Device, count: u64) -> Result<Self, String> {
        let shape = [i64::try_from(count).unwrap()];
        // SAFETY: all pointers are valid during the call; torch-sys numbers devices as we do.
        made(|out| unsafe { atg_empty(out, shape.as_ptr(), 1, BYTES, device.number()) })
    }

    pub(crate) fn zeros<const RANK: usize>(shape: [i64; RANK]) -> Self {
        let rank = c_int::try_from(RANK).unwrap();
        // SAFETY: all pointers are valid during the call.
        made(|out| unsafe { atg_zeros(out, shape.as_ptr(), rank, FLOATS, Device::Cpu.number()) })
            .unwrap()
    }

    pub(crate) fn matmul(&self, other: &Self) -> Result<Self, String> {
        // SAFETY: all pointers are valid during the call.
        made(|out| unsafe { atg_matmul(out, self.0, other.0) })
    }

    pub(crate) fn bmm(&self, other: &Self) -> Result<Self, String> {
        // SAFETY: all pointers are valid during the call.
        made(|out| unsafe { atg_bmm(out, self.0, other.0) })
    }

    pub(crate) fn softmax(&self) -> Result<Self, String> {
        // SAFETY: all pointers are valid during the call.
        made(|out| unsafe { atg_softmax(out, self.0, -1, FLOATS) })
    }
}

// SAFETY: libtorch's reference counts are atomic; a tensor may be freed on any thread.
unsafe impl Send for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made by libtorch and freed once.
        unsafe { at_free(self.0) }
    }
}

/// The tensor that `make` leaves, or libtorch's error.
fn made(make: impl FnOnce(*mut *mut C_tensor)) -> Result<Tensor, String> {
    let mut out = ptr::null_mut();
    make(&raw mut out);
    // SAFETY: gives null or a string that stays ours.
    let error = unsafe { get_and_reset_last_err() };
    if error.is_null() {
        return Ok(Tensor(out));
    }
    // SAFETY: a string of C, as said above.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy();
    Err(text.split("\nException raised from").next().unwrap().trim_end().to_owned())
}
