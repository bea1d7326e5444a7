//! Real time and real chance are kept out: below this process's code there are libraries that read
//! them. hyper writes the date into each answer, h2 forgets reset streams by the clock, and tokio
//! draws from a seed of the kernel's who of several waiters is woken first.
//!
//! Before [`seal`] both C functions do what they always do. After it every clock stands where
//! [`set_clock`] puts it, and random bytes are those of the seed. Everything else that a process
//! counts (of tokio's runtimes, for one) begins anew with each process, so each seed has its own.

#![allow(
    unsafe_code,
    reason = "clock_gettime and getrandom are C functions, and so is what is below"
)]

use std::{
    slice,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use nix::libc::{
    self, c_int, c_long, c_uint, c_void, clockid_t, size_t, ssize_t, time_t, timespec,
};

use crate::random::Random;

static SEALED: AtomicBool = AtomicBool::new(false);
static SEED: AtomicU64 = AtomicU64::new(0);
static NANOS: AtomicU64 = AtomicU64::new(0);

/// From now on there is only made-up time, and chance that follows from `seed`. A thread that has
/// drawn before keeps what it drew: call this first, and simulate in a new thread.
pub(crate) fn seal(seed: u64, clock: Duration) {
    SEED.store(seed, Ordering::Relaxed);
    set_clock(clock);
    SEALED.store(true, Ordering::Relaxed);
}

/// Every clock shows this time since 1970.
pub(crate) fn set_clock(clock: Duration) {
    let nanos = u64::try_from(clock.as_nanos()).expect("it is before 2500");
    NANOS.store(nanos, Ordering::Relaxed);
}

/// Replaces the C library's for this program.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let processor = matches!(clock, libc::CLOCK_PROCESS_CPUTIME_ID | libc::CLOCK_THREAD_CPUTIME_ID);
    if SEALED.load(Ordering::Relaxed) && !processor {
        let now = Duration::from_nanos(NANOS.load(Ordering::Relaxed));
        let seconds = time_t::try_from(now.as_secs()).expect("it is before 2500");
        let shown =
            timespec { tv_sec: seconds, tv_nsec: c_long::from(now.subsec_nanos().cast_signed()) };
        // SAFETY: whoever asks for the time gives a place for it.
        unsafe { time.write(shown) };
        return 0;
    }
    // SAFETY: the kernel's call has the same arguments, and checks them.
    let done = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    c_int::try_from(done).expect("it is 0 or -1")
}

/// Replaces the C library's for this program.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(bytes: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    if SEALED.load(Ordering::Relaxed) {
        // SAFETY: whoever asks for random bytes gives a place for so many.
        let bytes = unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), len) };
        // The same for each thread, whenever it asks: threads start in no certain order.
        let mut random = Random::new(SEED.load(Ordering::Relaxed) ^ 0x5EA1);
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.draw().to_le_bytes()[..chunk.len()]);
        }
        return ssize_t::try_from(len).expect("it is the size of something in memory");
    }
    // SAFETY: the kernel's call has the same arguments, and checks them.
    let done = unsafe { libc::syscall(libc::SYS_getrandom, bytes, len, flags) };
    ssize_t::try_from(done).expect("it is a length or -1")
}
