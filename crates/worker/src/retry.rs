//! Calls that are made until they are answered.

use std::fmt::Display;

use orchestrator_proto::{Refusal, RefusalCode};
use tokio::time::sleep;

use crate::backoff::Backoff;

/// A defect or a full disk on the other side may pass; a slice must not wait for it for ever.
const DEFECT_TRIES: u32 = 6;

/// What an error says about calling again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// The other side is not there: call again until it is.
    Always,
    /// It is there and in trouble: call again a few times.
    Sometimes,
    /// It said no.
    Never,
}

/// An error that knows whether calling again makes sense.
pub(crate) trait Retry: Display {
    fn again(&self) -> Again;
}

impl Retry for Refusal {
    fn again(&self) -> Again {
        match self.code {
            RefusalCode::Unavailable | RefusalCode::Overloaded | RefusalCode::TooSlow => {
                Again::Always
            }
            RefusalCode::Internal => Again::Sometimes,
            RefusalCode::Invalid
            | RefusalCode::NotFound
            | RefusalCode::Stale
            | RefusalCode::Denied
            | RefusalCode::DoesNotFit => Again::Never,
        }
    }
}

/// Makes a call until it is answered, with full jitter in between. While the other side is away
/// this goes on without end: drop the future to stop it.
pub(crate) async fn until_answered<T, E, F>(
    backoff: &mut Backoff,
    what: &str,
    mut call: impl FnMut() -> F,
) -> Result<T, E>
where
    E: Retry,
    F: Future<Output = Result<T, E>>,
{
    let mut patience = Patience::default();
    loop {
        let error = match call().await {
            Ok(answer) => {
                backoff.reset();
                return Ok(answer);
            }
            Err(error) => error,
        };
        if !patience.lasts(error.again()) {
            return Err(error);
        }
        let wait = backoff.after_failure();
        tracing::debug!(%error, ?wait, "{what}: trying again");
        sleep(wait).await;
    }
}

/// What is left of the tries of one call.
#[derive(Debug, Default)]
struct Patience {
    defects: u32,
}

impl Patience {
    /// Whether to call once more.
    const fn lasts(&mut self, again: Again) -> bool {
        match again {
            Again::Always => true,
            Again::Never => false,
            Again::Sometimes => {
                self.defects += 1;
                self.defects < DEFECT_TRIES
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a call is made that is answered like this, and well in the end.
    fn tries(codes: &[RefusalCode]) -> usize {
        let mut patience = Patience::default();
        let again = |code: &RefusalCode| Refusal::new(*code, "no").again();
        1 + codes.iter().take_while(|code| patience.lasts(again(code))).count()
    }

    #[test]
    fn an_absent_side_is_called_until_it_answers() {
        let codes = [RefusalCode::Unavailable, RefusalCode::TooSlow, RefusalCode::Overloaded];
        assert_eq!(tries(&codes.repeat(20)), 61);
    }

    #[test]
    fn a_defect_is_called_a_few_times_and_a_no_once() {
        assert_eq!(tries(&[RefusalCode::Internal; 50]), DEFECT_TRIES as usize);
        assert_eq!(tries(&[RefusalCode::Stale; 2]), 1);
        assert_eq!(tries(&[RefusalCode::Unavailable, RefusalCode::Invalid]), 2);
    }
}
