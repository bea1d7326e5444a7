//! What went over the made-up network, byte for byte and step by step: two runs of a seed are the
//! same when this is the same.
//!
//! `TRACE=FILE` with the test `one_seed` writes it down, a line for each read and write.

use std::{
    cell::RefCell,
    env,
    fs::File,
    io::{BufWriter, Write as _},
};

use orchestrator_types::Digest;

thread_local! {
    /// A simulation is one thread.
    static TRACE: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

struct Trace {
    hasher: blake3::Hasher,
    file: Option<BufWriter<File>>,
}

/// Starts anew.
pub(crate) fn begin() {
    let file = env::var_os("TRACE").map(|path| File::create(path).expect("a file to write to"));
    let trace = Trace { hasher: blake3::Hasher::new(), file: file.map(BufWriter::new) };
    TRACE.replace(Some(trace));
}

/// Notes that these bytes were written, or read, at this moment.
pub(crate) fn note(what: &str, bytes: &[u8]) {
    let at = turmoil::sim_elapsed().unwrap_or_default().as_nanos();
    TRACE.with_borrow_mut(|trace| {
        let Some(trace) = trace else { return };
        let line = format!("{at} {what} {} {}\n", bytes.len(), Digest::of(bytes));
        trace.hasher.update(line.as_bytes());
        if let Some(file) = &mut trace.file {
            file.write_all(line.as_bytes()).expect("it can be written");
        }
    });
}

/// The digest of everything noted since the beginning.
pub(crate) fn end() -> Option<Digest> {
    let trace = TRACE.take()?;
    if let Some(mut file) = trace.file {
        file.flush().expect("it can be written");
    }
    Some(Digest::of(trace.hasher.finalize().as_bytes()))
}
