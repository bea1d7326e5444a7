//! The agent against real processes: a coordinator in the test, and executors (once an agent, too)
//! that are this very binary started again. Only what they compute is invented.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod attempts;
mod coordinator;
mod executor;
mod health;
mod life;
mod memory;
mod start;
mod workplace;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "--socket", ..] => return executor::main(),
        [_, "health", ..] => return health::main(&arguments),
        [_, "--agent", address, folder] => return life::main(address, folder.as_ref()),
        _ => {}
    }
    let trials =
        [attempts::trials(), health::trials(), life::trials(), memory::trials(), start::trials()];
    libtest_mimic::run(&Arguments::from_args(), trials.into_iter().flatten().collect()).exit_code()
}

/// A test in a runtime of its own.
fn trial<F: Future<Output = ()> + 'static>(name: &str, test: fn() -> F) -> Trial {
    Trial::test(name, move || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(2).enable_all().build().unwrap().block_on(test());
        Ok(())
    })
}

macro_rules! trials {
    ($($test:ident),+ $(,)?) => {
        pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
            vec![$(crate::trial(concat!(module_path!(), "::", stringify!($test)), $test)),+]
        }
    };
}
use trials;
