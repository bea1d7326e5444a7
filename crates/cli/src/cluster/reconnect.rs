//! Waiting for a coordinator that is away, once it has taken a run in.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::CallError;

/// How long a coordinator may be away.
const PATIENCE: Duration = Duration::from_mins(10);
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Whether there is sense in asking again.
pub(crate) fn is_broken(error: &anyhow::Error) -> bool {
    error.downcast_ref::<CallError>().is_some_and(|error| error.broken)
}

/// What to do about broken calls.
#[derive(Debug)]
pub(crate) struct Reconnect {
    /// Whom to name; none: whoever it is shares our process, and waiting does not help.
    address: Option<String>,
    /// Since when nobody answers, and how often that was seen.
    away: Option<(Instant, u32)>,
}

impl Reconnect {
    /// No second try.
    pub(crate) const fn never() -> Self {
        Self { address: None, away: None }
    }

    /// Tries for ten minutes.
    pub(crate) const fn to(address: String) -> Self {
        Self { address: Some(address), away: None }
    }

    /// There was an answer.
    pub(crate) fn reached(&mut self, say: impl Fn(&str)) {
        if self.away.take().is_some() {
            say("the coordinator answers again");
        }
    }

    /// Waits before the next try, or gives the error back where there shall be none.
    pub(crate) async fn wait(
        &mut self,
        error: anyhow::Error,
        say: impl Fn(&str),
    ) -> anyhow::Result<()> {
        let Some(address) = self.address.as_ref().filter(|_| is_broken(&error)) else {
            return Err(error);
        };
        let (since, tries) = self.away.get_or_insert((Instant::now(), 0));
        let minutes = PATIENCE.as_secs() / 60;
        if *tries == 0 {
            say(&format!(
                "the coordinator at {address} does not answer ({error:#}); the run is kept, and \
                 this tries again for {minutes} minutes"
            ));
        }
        if since.elapsed() >= PATIENCE {
            let what = format!("the coordinator at {address} was away for {minutes} minutes");
            return Err(error.context(what));
        }
        *tries += 1;
        sleep(FIRST_WAIT.saturating_mul(1 << (*tries).min(8)).min(LONGEST_WAIT)).await;
        Ok(())
    }
}
