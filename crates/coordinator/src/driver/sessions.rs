//! Who is connected: one session a life of a worker.

use std::collections::BTreeMap;

use orchestrator_ledger::Account;
use orchestrator_plan::{Inventory, SliceOffer};
use orchestrator_run::Millis;
use orchestrator_types::{FencingToken, NodeName, RunId, SessionId, SliceId};

use super::Registration;

/// One life of a worker.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub node: NodeName,
    pub slices: Vec<SliceOffer>,
    pub libtorch: String,
    /// When it registered.
    pub since: Millis,
    /// When it was last heard of.
    pub seen: Millis,
    /// The last lease of each slice, so that the same request gets the same answer.
    pub answered: BTreeMap<SliceId, Answered>,
    /// Memory of its executors, as they told with their last results; for people only.
    pub accounts: BTreeMap<SliceId, Account>,
}

/// A lease that was granted.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    pub request_id: String,
    pub run: RunId,
    pub token: FencingToken,
}

/// Every live session.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(BTreeMap<SessionId, Session>);

impl Sessions {
    pub(super) fn add(&mut self, id: SessionId, worker: Registration, now: Millis) {
        let Registration { node, slices, libtorch } = worker;
        let (answered, accounts) = (BTreeMap::new(), BTreeMap::new());
        let session = Session { node, slices, libtorch, since: now, seen: now, answered, accounts };
        self.0.insert(id, session);
    }

    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Session> {
        self.0.remove(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.0.iter()
    }

    /// Keeps what a result of `slice` tells of its executor's memory.
    pub(super) fn told(&mut self, id: &SessionId, slice: &SliceId, account: Option<&Account>) {
        let Some((session, account)) = self.0.get_mut(id).zip(account) else { return };
        let newest = Account { samples: Vec::new(), ..account.clone() };
        session.accounts.insert(slice.clone(), newest);
    }

    pub(super) fn get_mut(&mut self, id: &SessionId) -> Option<&mut Session> {
        self.0.get_mut(id)
    }

    /// Sessions of an earlier life of the same worker: same host, or a slice under the same name.
    pub(super) fn replaced_by(&self, worker: &Registration) -> Vec<SessionId> {
        let same_slice = |session: &Session| {
            session.slices.iter().any(|old| worker.slices.iter().any(|new| new.id == old.id))
        };
        self.0
            .iter()
            .filter(|(_, session)| session.node == worker.node || same_slice(session))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Sessions not heard of for `lease_ms`.
    pub(super) fn silent(&self, now: Millis, lease_ms: u64) -> Vec<SessionId> {
        self.0
            .iter()
            .filter(|(_, session)| session.seen.after(lease_ms) <= now)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Every slice, by name.
    pub(super) fn inventory(&self) -> Inventory {
        let mut slices: Vec<SliceOffer> =
            self.0.values().flat_map(|session| session.slices.iter().cloned()).collect();
        slices.sort_by(|a, b| a.id.cmp(&b.id));
        Inventory { slices }
    }
}
