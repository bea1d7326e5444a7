//! Compute threads: items in, results out, one failure stops all.
//!
//! Invariant: [`spread`] returns only when every thread that it started has ended; a panic on one
//! of them is an error like any other. In which order results arrive says nothing.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::{
    attempt::{Attempt, PROGRESS_INTERVAL},
    error::ExecuteError,
};

type Done<T> = Result<T, ExecuteError>;

/// Starts one thread for each worker; a single worker works on the calling thread. Each one takes items
/// from `source` until there is none, and turns them into results, which `collect` gets on the calling
/// thread.
///
/// A GPU has one worker, and attempts have one thread for the life of the process: cuDNN's plans for
/// attention belong to the thread that made them, take 0.1 s to make, and are never freed (PyTorch
/// 2.11).
pub(crate) fn spread<W, I, T>(
    attempt: &Attempt,
    workers: Vec<W>,
    source: &(impl Fn() -> Option<I> + Sync),
    work: &(impl Fn(&mut W, I) -> Done<T> + Sync),
    collect: impl FnMut(T) -> Done<()>,
) -> Done<()>
where
    W: Send,
    T: Send,
{
    let workers = match <[W; 1]>::try_from(workers) {
        Ok([worker]) => return alone(attempt, worker, source, work, collect),
        Err(workers) => workers,
    };
    thread::scope(|scope| {
        // Two results a thread: none waits while the calling thread puts one in its place.
        let (sender, results) = bounded(workers.len() * 2);
        for mut worker in workers {
            let sender = sender.clone();
            scope.spawn(move || labour(attempt, &mut worker, source, work, &sender));
        }
        drop(sender);
        gather(attempt, &results, collect)
    })
}

/// The same on the calling thread.
fn alone<W, I, T>(
    attempt: &Attempt,
    mut worker: W,
    source: &impl Fn() -> Option<I>,
    work: &impl Fn(&mut W, I) -> Done<T>,
    mut collect: impl FnMut(T) -> Done<()>,
) -> Done<()> {
    while !attempt.is_stopped() {
        let Some(item) = source() else { break };
        let done = guarded(|| work(&mut worker, item)).and_then(&mut collect);
        if done.is_err() {
            attempt.stop();
            return done;
        }
    }
    if attempt.is_stopped() { Err(ExecuteError::Cancelled) } else { Ok(()) }
}

fn labour<W, I, T>(
    attempt: &Attempt,
    worker: &mut W,
    source: &impl Fn() -> Option<I>,
    work: &impl Fn(&mut W, I) -> Done<T>,
    results: &Sender<Done<T>>,
) {
    while !attempt.is_stopped() {
        let Some(item) = source() else { return };
        let result = guarded(|| work(worker, item));
        let failed = result.is_err();
        if results.send(result).is_err() || failed {
            return;
        }
    }
}

fn gather<T>(
    attempt: &Attempt,
    results: &Receiver<Done<T>>,
    mut collect: impl FnMut(T) -> Done<()>,
) -> Done<()> {
    let mut outcome = Ok(());
    loop {
        match results.recv_timeout(PROGRESS_INTERVAL) {
            Ok(result) if outcome.is_ok() => outcome = result.and_then(&mut collect),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if outcome.is_err() {
            attempt.stop();
        }
    }
    match outcome {
        Ok(()) if attempt.is_stopped() => Err(ExecuteError::Cancelled),
        outcome => outcome,
    }
}

/// A source that gives the numbers below `count`, each to one thread.
pub(crate) fn numbers(count: usize) -> impl Fn() -> Option<usize> + Sync {
    let next = AtomicUsize::new(0);
    move || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&number| number < count)
}

/// Runs `work`; a panic becomes an error with the panic's words.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Done<T>) -> Done<T> {
    // What a panic leaves behind belongs to the attempt, which ends with it.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(ExecuteError::Panic(words(panic.as_ref()))))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "of an unknown kind".to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn every_number_is_worked_on_once() {
        let (updates, _listener) = mpsc::channel(1);
        let attempt = Attempt::new(updates);
        let mut seen = vec![0; 100];
        let count = |number: usize| {
            seen[number] += 1;
            Ok(())
        };
        spread(&attempt, vec![(); 3], &numbers(100), &|(), number| Ok(number), count).unwrap();
        assert_eq!(seen, vec![1; 100]);
    }

    #[test]
    fn a_single_worker_works_on_the_thread_of_attempts() {
        let (updates, _listener) = mpsc::channel(1);
        let attempt = Attempt::new(updates);
        let here = thread::current().id();
        let threads = |workers: Vec<()>| {
            let mut seen = Vec::new();
            let work = |(): &mut (), _: usize| Ok(thread::current().id());
            let note = |id| {
                seen.push(id);
                Ok(())
            };
            spread(&attempt, workers, &numbers(9), &work, note).unwrap();
            seen
        };
        assert_eq!(threads(vec![()]), [here; 9]);
        assert!(!threads(vec![(); 2]).contains(&here));
    }

    #[test]
    fn a_panic_ends_the_attempt_and_not_the_process() {
        let (updates, _listener) = mpsc::channel(1);
        let mut attempt = Attempt::new(updates.clone());
        let work = |(): &mut (), number: usize| {
            assert_ne!(number, 5, "five is too much");
            Ok(())
        };
        for workers in [1, 2] {
            let error =
                spread(&attempt, vec![(); workers], &numbers(1_000_000), &work, |()| Ok(()));
            let error = error.unwrap_err();
            assert!(error.message().contains("five is too much"), "{error}");
            assert!(attempt.is_stopped());
            attempt = Attempt::new(updates.clone());
        }
    }

    #[test]
    fn a_source_that_dries_up_because_the_attempt_stops_is_no_end() {
        for workers in [1, 2] {
            let (updates, _listener) = mpsc::channel(1);
            let attempt = Attempt::new(updates);
            // As decoders leave a channel without senders when they see that.
            let source = || {
                attempt.stop();
                None::<usize>
            };
            let result = spread(&attempt, vec![(); workers], &source, &|(), _| Ok(()), |()| Ok(()));
            assert!(matches!(result, Err(ExecuteError::Cancelled)), "{workers} workers");
        }
    }

    #[test]
    fn an_attempt_that_nobody_waits_for_is_cancelled() {
        let (updates, listener) = mpsc::channel(1);
        let attempt = Attempt::new(updates);
        drop(listener);
        let result = spread(&attempt, vec![()], &numbers(9), &|(), _| Ok(()), |()| Ok(()));
        assert!(matches!(result, Err(ExecuteError::Cancelled)));
    }
}
