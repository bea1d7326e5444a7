//! Follows a run to its end and tells the user what matters on the way.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use orchestrator_proto::v1::{
    self, RunEvent, WatchRequest, coordinator_client::CoordinatorClient, run_event::Kind,
};
use orchestrator_run::RunState;
use orchestrator_types::{Component, RunId};
use tonic::transport::Channel;

use crate::{
    cluster::{CallError, reconnect::Reconnect, within},
    progress::Display,
};

/// Bad samples that are named one by one; the rest are counted, and named in the report.
const NAMED_SAMPLES: u32 = 10;

/// Follows a run, from the event after number `after`, to the state in which it ends. A coordinator
/// that is away is waited for as `reconnect` says.
pub(crate) async fn follow(
    client: &mut CoordinatorClient<Channel>,
    run: &RunId,
    after: u64,
    reconnect: &mut Reconnect,
) -> anyhow::Result<RunState> {
    let mut follower = Follower { display: Display::new(), after, quarantined: 0, abandoned: 0 };
    loop {
        let since = Instant::now();
        match follower.listen(client, run, reconnect).await {
            Ok(Some(end)) => {
                follower.finish();
                return Ok(end);
            }
            // A turn is over: streams live no longer than their connections may.
            Ok(None) if since.elapsed() > SHORTEST_TURN => {}
            Ok(None) => {
                let error = CallError::cut_off(run).into();
                reconnect.wait(error, |line| follower.display.say(line)).await?;
            }
            Err(error) => reconnect.wait(error, |line| follower.display.say(line)).await?,
        }
    }
}

/// A stream that ends sooner was cut off.
const SHORTEST_TURN: Duration = Duration::from_secs(10);

struct Follower {
    display: Display,
    /// The last stored event that was heard.
    after: u64,
    quarantined: u32,
    abandoned: u32,
}

impl Follower {
    /// Hears one stream of events, to the end of the run or of the stream.
    async fn listen(
        &mut self,
        client: &mut CoordinatorClient<Channel>,
        run: &RunId,
        reconnect: &mut Reconnect,
    ) -> anyhow::Result<Option<RunState>> {
        let what = "failed to follow the run";
        let request = WatchRequest { run: run.to_string(), after: self.after };
        let mut events =
            within(async || client.watch(request.clone()).await).await.context(what)?;
        loop {
            let event = events.message().await.map_err(CallError::from).context(what)?;
            let Some(event) = event else { return Ok(None) };
            reconnect.reached(|line| self.display.say(line));
            self.after = self.after.max(event.sequence);
            if let Some(end) = self.take(event)? {
                return Ok(Some(end));
            }
        }
    }

    /// Shows one event; `Some` if it is the last.
    fn take(&mut self, event: RunEvent) -> anyhow::Result<Option<RunState>> {
        let Some(kind) = event.kind else { return Ok(None) };
        match kind {
            Kind::Progress(progress) => {
                let component = v1::Component::try_from(progress.component)
                    .context("progress of an unknown component")?;
                let component = Component::try_from(component)?;
                self.display.update(component, progress.done, progress.total);
            }
            Kind::StateChanged(changed) => {
                let state = v1::RunState::try_from(changed.state).context("an unknown state")?;
                let state = orchestrator_proto::run_state(state)?;
                return Ok((state != RunState::Running).then_some(state));
            }
            Kind::SampleQuarantined(sample) => {
                self.quarantined += 1;
                if self.quarantined <= NAMED_SAMPLES {
                    self.display.say(&format!(
                        "quarantined: {} of {}: {}",
                        sample.sample, sample.dataset, sample.reason
                    ));
                }
            }
            // Attempt 0: never tried, for want of another unit's result.
            Kind::UnitFailed(failed) if failed.attempt == 0 => self.abandoned += 1,
            Kind::UnitFailed(failed) => {
                let what = if failed.r#final { "given up" } else { "will be retried" };
                self.display
                    .say(&format!("unit {} failed ({what}): {}", failed.unit, failed.message));
            }
            Kind::WorkerLost(lost) => {
                self.display.say(&format!("worker on {} lost: {}", lost.node, lost.reason));
            }
            Kind::Divergence(divergence) => {
                let unit = divergence.unit;
                self.display.say(&format!(
                    "warning: a late result of unit {unit} has other bytes than the one that counts"
                ));
            }
            Kind::UnitLeased(_) | Kind::UnitCommitted(_) | Kind::LateResult(_) => {}
        }
        Ok(None)
    }

    fn finish(self) {
        let hidden = self.quarantined.saturating_sub(NAMED_SAMPLES);
        if hidden > 0 {
            self.display.say(&format!("quarantined: {hidden} more, named in the report"));
        }
        if self.abandoned > 0 {
            let count = self.abandoned;
            self.display.say(&format!("{count} more units need what failed, and were not tried"));
        }
        self.display.finish();
    }
}
