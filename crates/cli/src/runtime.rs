//! The runtime for I/O; a verb that needs one has one.

use std::time::Duration;

use anyhow::Context as _;

use crate::exit::Failure;

/// How long blocking calls may still take at the end.
const STOP: Duration = Duration::from_secs(5);

/// Runs `work` to its end.
pub(crate) fn run<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let end = runtime.block_on(work);
    // A blocking call that hangs must not keep the process.
    runtime.shutdown_timeout(STOP);
    end
}
