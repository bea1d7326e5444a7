//! First contact with a coordinator, and every later one: again and again, for as long as patience
//! lasts.

use std::{sync::Arc, time::Duration};

use orchestrator_proto::{ConnectError, connect, v1};
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
    pub(crate) request: v1::RegisterRequest,
    pub(crate) client: Client,
    /// Slices that are not offered.
    pub(crate) withdrawn: Vec<v1::Slice>,
}

impl Registration {
    /// Offers this slice no longer.
    pub(crate) fn withdraw(&mut self, slice: &SliceId) {
        move_offer(slice, &mut self.request.slices, &mut self.withdrawn);
    }

    /// Offers this slice again.
    pub(crate) fn offer_again(&mut self, slice: &SliceId) {
        move_offer(slice, &mut self.withdrawn, &mut self.request.slices);
    }

    /// A new session. It ends sessions of an earlier life of this node.
    pub(crate) async fn session(&self, patience: Duration) -> Result<Arc<Session>, RegisterError> {
        let reply = patiently(&self.address, patience, || self.register()).await?;
        Ok(Arc::new(Session::new(reply)))
    }

    async fn register(&self) -> Result<v1::RegisterReply, Attempt> {
        let reply = self.client.register(self.request.clone()).await;
        reply.map_err(|refusal| match refusal.again() {
            Again::Always | Again::Sometimes => Attempt::Later(refusal.into()),
            Again::Never => {
                let address = self.address.clone();
                Attempt::Never(RegisterError::Refused { address, source: refusal })
            }
        })
    }
}

fn move_offer(slice: &SliceId, from: &mut Vec<v1::Slice>, to: &mut Vec<v1::Slice>) {
    to.extend(from.extract_if(.., |offer| offer.id == slice.as_str()));
    to.sort_by(|a, b| a.id.cmp(&b.id));
}

/// A connection, which from then on renews itself.
pub(crate) async fn reach(address: &str, patience: Duration) -> Result<Channel, RegisterError> {
    let call = || async {
        connect(address).await.map_err(|error| match error {
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
