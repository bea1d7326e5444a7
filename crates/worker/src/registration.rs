//! First contact with a coordinator, and every later one: again and again, for as long as patience
//! lasts.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use orchestrator_proto::{ConnectError, Dial, connect_by, v1};
use orchestrator_types::SliceId;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use crate::{
    RegisterError,
    backoff::Backoff,
    client::Client,
    retry::{Again, Retry as _},
    session::Session,
};

/// What this agent says of itself, and to whom.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) address: String,
    pub(crate) client: Client,
    offer: Mutex<v1::RegisterRequest>,
}

impl Registration {
    pub(crate) const fn new(address: String, client: Client, request: v1::RegisterRequest) -> Self {
        let offer = Mutex::new(request);
        Self { address, client, offer }
    }

    fn offer(&self) -> MutexGuard<'_, v1::RegisterRequest> {
        self.offer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers this slice no longer, for this reason.
    pub(crate) fn withdraw(&self, slice: &SliceId, reason: &str) {
        let mut offer = self.offer();
        let v1::RegisterRequest { slices, withdrawn, .. } = &mut *offer;
        let gone = slices.extract_if(.., |offer| offer.id == slice.as_str());
        withdrawn.extend(
            gone.map(|slice| v1::WithdrawnSlice { slice: Some(slice), reason: reason.to_owned() }),
        );
    }

    /// Offers this slice again.
    pub(crate) fn offer_again(&self, slice: &SliceId) {
        let mut offer = self.offer();
        let v1::RegisterRequest { slices, withdrawn, .. } = &mut *offer;
        let is_it = |offer: &v1::Slice| offer.id == slice.as_str();
        let back = withdrawn.extract_if(.., |gone| gone.slice.as_ref().is_some_and(is_it));
        slices.extend(back.filter_map(|gone| gone.slice));
        slices.sort_by(|a, b| a.id.cmp(&b.id));
    }

    /// Says hello, also again. The coordinator ends the session of an earlier life of this node.
    pub(crate) async fn hello(
        &self,
        session: &Session,
        patience: Duration,
    ) -> Result<(), RegisterError> {
        patiently(&self.address, patience, || self.register(session)).await
    }

    async fn register(&self, session: &Session) -> Result<(), Attempt> {
        let held = session.held();
        let request = v1::RegisterRequest { held: held.clone(), ..self.offer().clone() };
        let reply = self.client.register(request).await;
        let taken_in = reply.map(|reply| session.take_in(&held, &reply));
        taken_in.map_err(|refusal| match refusal.again() {
            Again::Always | Again::Sometimes => Attempt::Later(refusal.into()),
            Again::Never => {
                let address = self.address.clone();
                Attempt::Never(RegisterError::Refused { address, source: refusal })
            }
        })
    }
}

/// A connection, which from then on renews itself.
pub(crate) async fn reach(
    dial: &Dial,
    address: &str,
    patience: Duration,
) -> Result<Channel, RegisterError> {
    let call = || async {
        connect_by(dial, address).await.map_err(|error| match error {
            ConnectError::Address(_) => Attempt::Never(RegisterError::Address(error)),
            ConnectError::Unreachable { .. } => Attempt::Later(error.into()),
        })
    };
    patiently(address, patience, call).await
}

/// A failed attempt, and whether there is sense in another one.
enum Attempt {
    Later(Box<dyn std::error::Error + Send + Sync>),
    Never(RegisterError),
}

async fn patiently<T, F>(
    address: &str,
    patience: Duration,
    call: impl Fn() -> F,
) -> Result<T, RegisterError>
where
    F: Future<Output = Result<T, Attempt>>,
{
    let mut backoff = Backoff::of(address);
    let mut last = "it said nothing at all".into();
    let trying = async {
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(Attempt::Never(error)) => return Err(error),
                Err(Attempt::Later(error)) => last = error,
            }
            sleep(backoff.after_failure()).await;
        }
    };
    let outcome = timeout(patience, trying).await;
    outcome.unwrap_or_else(|_| {
        let address = address.to_owned();
        Err(RegisterError::Unreachable { address, waited: patience, source: last })
    })
}
