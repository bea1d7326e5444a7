//! What is in memory only, for people who look: sessions, attempts, runs that wait.

use orchestrator_run::Attempt;

use super::{Driver, active::ActiveRun};
use crate::metrics::Standing;
use crate::view::{AttemptView, ClusterView, RunNow, SliceView, Snapshot, WorkerView};

impl Driver {
    /// Everything as it stands in this turn.
    pub(super) fn snapshot(&self) -> Snapshot {
        let runs = self.runs.iter().map(|(run, active)| {
            let attempts = active.run.live().values().map(|attempt| view(active, attempt));
            let homeless = active.homeless.as_ref().map(ToString::to_string);
            let waits = self.pause.reason().map(|reason| reason.to_string()).or(homeless);
            (run.clone(), RunNow { attempts: attempts.collect(), waits })
        });
        let runs = runs.collect();
        let mut workers: Vec<WorkerView> = self
            .sessions
            .iter()
            .map(|(id, session)| WorkerView {
                node: session.node.clone(),
                session: id.clone(),
                identity: session.identity.clone(),
                registered: session.registered,
                connected_ms: self.now.0.saturating_sub(session.since.0),
                silent_ms: self.now.0.saturating_sub(session.seen.0),
                lease_ms: self.settings.lease_ms.into(),
                libtorch: session.libtorch.clone(),
                slices: self.slices(session),
            })
            .collect();
        workers.sort_by(|a, b| a.node.cmp(&b.node));
        let (epoch, insecure) = (self.store.epoch(), self.settings.insecure);
        Snapshot { cluster: ClusterView { epoch, insecure, workers }, runs }
    }

    /// How many of everything there are.
    pub(super) fn standing(&self) -> Standing {
        let mut standing = Standing {
            epoch: self.store.epoch(),
            runs: self.runs.len(),
            sessions: self.sessions.iter().filter(|(_, session)| session.registered).count(),
            slices_waiting: self.waiting.len(),
            ..Standing::default()
        };
        for active in self.runs.values() {
            let (units, open) = (active.run.plan().units.len(), active.run.open_units());
            let leased = active.run.live().len();
            standing.leases += leased;
            standing.units_waiting += open.saturating_sub(leased);
            standing.units_ended += units - open;
        }
        standing
    }

    /// What a worker offers and what it does not, by name.
    fn slices(&self, session: &super::sessions::Session) -> Vec<SliceView> {
        let offered = session.slices.iter().map(|offer| self.slice(session, offer));
        let withdrawn = session.withdrawn.iter().map(|(offer, reason)| SliceView {
            withdrawn: Some(reason.clone()),
            ..self.slice(session, offer)
        });
        let mut slices: Vec<SliceView> = offered.chain(withdrawn).collect();
        slices.sort_by(|a, b| a.slice.cmp(&b.slice));
        slices
    }

    fn slice(
        &self,
        session: &super::sessions::Session,
        offer: &orchestrator_plan::SliceOffer,
    ) -> SliceView {
        let attempts = self.runs.values().flat_map(|active| {
            let here = active.run.live().values().filter(|attempt| attempt.slice == offer.id);
            here.map(move |attempt| view(active, attempt))
        });
        SliceView {
            slice: offer.id.clone(),
            device: offer.device.clone(),
            threads: offer.threads,
            ceiling_bytes: offer.memory_bytes,
            attempts: attempts.collect(),
            account: session.accounts.get(&offer.id).cloned(),
            withdrawn: None,
        }
    }
}

fn view(active: &ActiveRun, attempt: &Attempt) -> AttemptView {
    let units = &active.run.plan().units;
    let rows = u64::from(units.rows(attempt.unit));
    AttemptView {
        run: active.id.clone(),
        unit: attempt.unit,
        component: units.component(attempt.unit),
        attempt: attempt.number,
        token: attempt.token,
        slice: attempt.slice.clone(),
        done: active.progress.rows_done(attempt.token, rows),
        rows,
    }
}
