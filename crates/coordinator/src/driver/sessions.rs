//! Who is connected: one session a life of a worker.
//!
//! A session is *expected* when attempts of it outlived an earlier coordinator and its worker has
//! not said hello to this one yet: it lives as long as any other that is silent.

use std::collections::{BTreeMap, VecDeque};

use orchestrator_ledger::Account;
use orchestrator_plan::{Inventory, SliceOffer};
use orchestrator_run::Millis;
use orchestrator_types::{FencingToken, NodeName, RunId, SessionId, SliceId};

use super::Registration;

/// One life of a worker.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub node: NodeName,
    /// Who its worker is, by its certificate.
    pub identity: Option<String>,
    pub slices: Vec<SliceOffer>,
    pub libtorch: String,
    /// Slices that its worker does not offer, and why; for people only.
    pub withdrawn: Vec<(SliceOffer, String)>,
    /// Whether its worker has said hello to this coordinator.
    pub registered: bool,
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
    pub attempts: Vec<(RunId, FencingToken)>,
}

/// Replaced sessions that are remembered: more than there are workers.
const REMEMBERED: usize = 1_024;

/// Every live session.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    live: BTreeMap<SessionId, Session>,
    /// Sessions whose name another worker took, the last ones.
    replaced: VecDeque<SessionId>,
}

impl Session {
    const fn expected(node: NodeName, now: Millis) -> Self {
        Self {
            node,
            identity: None,
            slices: Vec::new(),
            libtorch: String::new(),
            withdrawn: Vec::new(),
            registered: false,
            since: now,
            seen: now,
            answered: BTreeMap::new(),
            accounts: BTreeMap::new(),
        }
    }
}

impl Sessions {
    /// Takes a worker in, also again.
    pub(super) fn add(&mut self, worker: Registration, now: Millis) {
        let Registration { session: id, identity, node, slices, libtorch, held: _, withdrawn } =
            worker;
        let known = self.live.remove(&id).unwrap_or_else(|| Session::expected(node.clone(), now));
        let registered = true;
        let known =
            Session { node, identity, slices, libtorch, withdrawn, registered, seen: now, ..known };
        self.live.insert(id, known);
    }

    /// Gives a worker whose attempts outlived an earlier coordinator the time to say hello.
    pub(super) fn expect(&mut self, id: &SessionId, node: &NodeName, now: Millis) {
        let expected = || Session::expected(node.clone(), now);
        self.live.entry(id.clone()).or_insert_with(expected);
    }

    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Session> {
        self.live.remove(id)
    }

    /// Removes a session whose name another worker takes: it shall not take it back.
    pub(super) fn note_replaced(&mut self, id: &SessionId) {
        if self.replaced.len() == REMEMBERED {
            self.replaced.pop_front();
        }
        self.replaced.push_back(id.clone());
    }

    pub(super) fn was_replaced(&self, id: &SessionId) -> bool {
        self.replaced.contains(id)
    }

    pub(super) fn get(&self, id: &SessionId) -> Option<&Session> {
        self.live.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.live.iter()
    }

    /// Keeps what a result of `slice` tells of its executor's memory.
    pub(super) fn told(&mut self, id: &SessionId, slice: &SliceId, account: Option<&Account>) {
        let Some((session, account)) = self.live.get_mut(id).zip(account) else { return };
        let newest = Account { samples: Vec::new(), ..account.clone() };
        session.accounts.insert(slice.clone(), newest);
    }

    pub(super) fn get_mut(&mut self, id: &SessionId) -> Option<&mut Session> {
        self.live.get_mut(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Other sessions of the same worker: same host, or a slice under the same name.
    pub(super) fn replaced_by(&self, worker: &Registration) -> Vec<SessionId> {
        let same_slice = |session: &Session| {
            session.slices.iter().any(|old| worker.slices.iter().any(|new| new.id == old.id))
        };
        self.live
            .iter()
            .filter(|(id, _)| **id != worker.session)
            .filter(|(_, session)| session.node == worker.node || same_slice(session))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Gives every session its full time again.
    pub(super) fn renew(&mut self, now: Millis) {
        self.live.values_mut().for_each(|session| session.seen = now);
    }

    /// Sessions not heard of for `lease_ms`.
    pub(super) fn silent(&self, now: Millis, lease_ms: u64) -> Vec<SessionId> {
        self.live
            .iter()
            .filter(|(_, session)| session.seen.after(lease_ms) <= now)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Every slice, by name.
    pub(super) fn inventory(&self) -> Inventory {
        let mut slices: Vec<SliceOffer> =
            self.live.values().flat_map(|session| session.slices.iter().cloned()).collect();
        slices.sort_by(|a, b| a.id.cmp(&b.id));
        Inventory { slices }
    }
}
