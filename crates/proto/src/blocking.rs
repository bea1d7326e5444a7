//! [`Blocking`]: the one way in which coordinator and agent wait for a disk.
//!
//! Invariant: no thread of their runtime waits for a file but through here. A simulation that owns
//! its only thread turns the threads off, and then the order of everything follows from its seed.

use crate::{Refusal, RefusalCode};

/// Where work that blocks is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocking {
    /// On threads that may block.
    #[default]
    Threads,
    /// At once, by whoever asks. For simulations: they are single-threaded and deterministic, and
    /// everything else stands still meanwhile.
    Inline,
}

/// A part of the coordinator panicked, or was cut off with its runtime.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a part of the work failed by a defect of its own; see the log")]
pub struct Defect;

impl From<Defect> for Refusal {
    fn from(defect: Defect) -> Self {
        Self::new(RefusalCode::Internal, defect.to_string())
    }
}

impl Blocking {
    /// Does a short piece of `work`, such as one read or write.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Defect> {
        match self {
            Self::Threads => tokio::task::spawn_blocking(work).await.map_err(|_| Defect),
            Self::Inline => Ok(work()),
        }
    }

    /// Does `work` that blocks for long between the points at which it awaits.
    pub async fn drive<T: Send + 'static>(
        self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Defect> {
        match self {
            Self::Threads => {
                let runtime = tokio::runtime::Handle::current();
                let driven = tokio::task::spawn_blocking(move || runtime.block_on(work));
                driven.await.map_err(|_| Defect)
            }
            Self::Inline => Ok(work.await),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    async fn threads(blocking: Blocking) -> [bool; 2] {
        let here = thread::current().id();
        let run = blocking.run(move || thread::current().id() == here).await.unwrap();
        let driven = blocking.drive(async move {
            tokio::task::yield_now().await;
            thread::current().id() == here
        });
        [run, driven.await.unwrap()]
    }

    #[tokio::test]
    async fn inline_work_stays_on_its_thread_and_other_work_leaves_it() {
        assert_eq!(threads(Blocking::Inline).await, [true, true]);
        assert_eq!(threads(Blocking::Threads).await, [false, false]);
        let panicked = Blocking::Threads.run(|| panic!("planted")).await;
        assert!(panicked.is_err());
    }
}
