//! A coordinator that runs as a service: reached within five seconds or refused by name, asked with
//! a deadline, and waited for when it is away in the middle.

pub(crate) mod reconnect;
pub(crate) mod run;

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use orchestrator_coordinator::{ClusterView, Recorded, RunLine, RunStatus};
use orchestrator_proto::{
    BUILD, CONTROL_TIMEOUT, ConnectError, MESSAGE_LIMIT_BYTES, PROTOCOL_VERSION, Refusal,
    RefusalCode, connect_by,
    v1::{self, coordinator_client::CoordinatorClient, inspector_client::InspectorClient},
};
use orchestrator_types::RunId;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Status, transport::Channel};

use crate::{
    args,
    exit::{Exit, Failure},
    target::Target,
};

/// The first answer comes within this, or the coordinator counts as unreachable.
const FIRST_CONTACT: Duration = Duration::from_millis(4_500);
/// Before a call that was refused for want of room is made again, doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// A call without a good answer.
#[derive(Debug, thiserror::Error)]
#[error("{refusal}")]
pub(crate) struct CallError {
    pub(crate) refusal: Refusal,
    /// Nobody has answered: the connection broke, time was up, or the coordinator has more to do than
    /// it can. It may be back soon.
    pub(crate) broken: bool,
}

impl CallError {
    /// The coordinator stopped in the middle of its story.
    pub(crate) fn cut_off(run: &RunId) -> Self {
        let message = format!("the coordinator stopped telling about run {run} before its end");
        Self { refusal: Refusal::new(RefusalCode::Unavailable, message), broken: true }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        // What the other side says has no cause; what the transport says has one.
        let broken = std::error::Error::source(&status).is_some();
        let refusal = Refusal::from(status);
        let away = matches!(refusal.code, RefusalCode::TooSlow | RefusalCode::Overloaded);
        Self { broken: broken || away, refusal }
    }
}

/// The coordinator that the command line or the environment names.
pub(crate) fn target(cluster: &args::Cluster) -> Result<Option<Target>, Failure> {
    let url = cluster.coordinator.as_deref().filter(|url| !url.is_empty());
    let tls = cluster.tls.as_deref().filter(|folder| !folder.as_os_str().is_empty());
    url.map(|url| Target::new(url, tls)).transpose()
}

/// A coordinator that has answered.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) target: Target,
    pub(crate) client: CoordinatorClient<Channel>,
    inspector: InspectorClient<Channel>,
}

impl Cluster {
    /// Connects, and makes sure that both speak the same protocol.
    pub(crate) async fn reach(target: &Target) -> Result<Self, Failure> {
        let met = timeout(FIRST_CONTACT, Self::meet(target.clone())).await;
        let cluster = met.unwrap_or_else(|_| {
            let (address, waited) = (&target.address, FIRST_CONTACT.as_secs_f64());
            Err(unreachable(anyhow!("no answer from {address} within {waited} s"), address))
        })?;
        if let Some(tls) = &target.tls {
            // A run may take longer than a certificate holds. Ends with the runtime.
            tokio::spawn(tls.credentials.clone().renew());
        }
        Ok(cluster)
    }

    async fn meet(target: Target) -> Result<Self, Failure> {
        let address = &target.address;
        let channel = connect_by(&target.dial(), address).await.map_err(|error| match error {
            ConnectError::Address(_) => Failure::usage(error),
            ConnectError::Unreachable { .. } => unreachable(error.into(), address),
        })?;
        let cluster = Self {
            client: CoordinatorClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
                .max_encoding_message_size(MESSAGE_LIMIT_BYTES),
            inspector: InspectorClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT_BYTES),
            target,
        };
        cluster.same_protocol().await?;
        Ok(cluster)
    }

    async fn same_protocol(&self) -> Result<(), Failure> {
        let request =
            v1::VersionRequest { protocol_version: PROTOCOL_VERSION, build: BUILD.to_owned() };
        let mut foreign = false;
        let ask = async || {
            let answer = self.inspector.clone().version(request.clone()).await;
            foreign = matches!(&answer, Err(status) if status.code() == Code::Unimplemented);
            answer
        };
        match within(ask).await {
            Ok(_) => Ok(()),
            Err(_) if foreign => {
                let message = format!(
                    "what answers at {} is no coordinator, or one of another release; is the \
                     address right?",
                    self.target.address
                );
                Err(Failure::new(Exit::Unreachable, anyhow!(message)))
            }
            Err(error) => Err(if error.broken {
                unreachable(error.into(), &self.target.address)
            } else {
                failed(error)
            }),
        }
    }

    /// Every run, oldest first.
    pub(crate) async fn runs(&self) -> Result<Vec<RunLine>, CallError> {
        let ask = async || self.inspector.clone().runs(v1::RunsRequest {}).await;
        let v1::RunsReply { runs } = within(ask).await?;
        read(&runs)
    }

    /// Where a run stands.
    pub(crate) async fn status(&self, run: &RunId) -> Result<RunStatus, CallError> {
        let request = v1::StatusRequest { run: run.to_string() };
        let ask = async || self.inspector.clone().status(request.clone()).await;
        read(&within(ask).await?.status)
    }

    /// Every connected worker.
    pub(crate) async fn nodes(&self) -> Result<ClusterView, CallError> {
        let ask = async || self.inspector.clone().nodes(v1::NodesRequest {}).await;
        read(&within(ask).await?.nodes)
    }

    /// The next events of a run after number `after`.
    pub(crate) async fn events(&self, run: &RunId, after: u64) -> Result<Vec<Recorded>, CallError> {
        let request = v1::EventsRequest { run: run.to_string(), after };
        let ask = async || self.inspector.clone().events(request.clone()).await;
        let v1::EventsReply { events } = within(ask).await?;
        events.iter().map(|event| read(event.as_bytes())).collect()
    }

    /// Ends a run.
    pub(crate) async fn cancel(&self, run: &RunId) -> Result<(), CallError> {
        let request = v1::CancelRequest { run: run.to_string() };
        let ask = async || self.client.clone().cancel(request.clone()).await;
        within(ask).await.map(drop)
    }

    /// The run that the user means: an id, or `last`.
    pub(crate) async fn find(&self, run: &str) -> Result<RunId, Failure> {
        let missing = |text: String| Failure::usage(anyhow!(text));
        if run == "last" {
            let last = self.runs().await.map_err(failed)?.pop();
            return last.map(|line| line.run).ok_or_else(|| {
                missing(format!("{} has no run yet; start one with `submit`", self.target.address))
            });
        }
        run.parse().map_err(|_| {
            missing(format!("there is no run `{run}`; `orchestrator runs` lists them"))
        })
    }
}

/// Makes a call that only talks; again, a little later each time, while the coordinator has more to
/// do than it can.
pub(crate) async fn within<T>(
    mut call: impl AsyncFnMut() -> Result<Response<T>, Status>,
) -> Result<T, CallError> {
    let patiently = async {
        let mut wait = FIRST_WAIT;
        loop {
            let error = match call().await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => CallError::from(status),
            };
            if error.refusal.code != RefusalCode::Overloaded {
                return Err(error);
            }
            sleep(wait).await;
            wait *= 2;
        }
    };
    if let Ok(answer) = timeout(CONTROL_TIMEOUT, patiently).await {
        return answer;
    }
    let waited = CONTROL_TIMEOUT.as_secs();
    let message = format!("the coordinator did not answer within {waited} s");
    Err(CallError { refusal: Refusal::new(RefusalCode::TooSlow, message), broken: true })
}

fn read<T: DeserializeOwned>(document: &[u8]) -> Result<T, CallError> {
    serde_json::from_slice(document).map_err(|error| {
        let message = format!("the coordinator's answer cannot be read: {error}");
        CallError { refusal: Refusal::new(RefusalCode::Internal, message), broken: false }
    })
}

fn unreachable(error: anyhow::Error, address: &str) -> Failure {
    let advice = orchestrator_tls::advice(error.as_ref()).unwrap_or(
        "is it running, and is the address right? `orchestrator coordinator` starts one; one with \
         certificates is called by https:// and with --tls",
    );
    let error = error.context(format!("the coordinator at {address} cannot be reached"));
    Failure::new(Exit::Unreachable, error).advise(advice.to_owned())
}

/// A call's error on its way to the user.
pub(crate) fn failed(error: CallError) -> Failure {
    let exit = match error.refusal.code {
        RefusalCode::DoesNotFit => Exit::DoesNotFit,
        RefusalCode::Invalid => Exit::BadEvaluation,
        RefusalCode::NotFound | RefusalCode::Denied => Exit::Usage,
        RefusalCode::Unavailable | RefusalCode::Overloaded | RefusalCode::TooSlow
            if error.broken =>
        {
            Exit::Unreachable
        }
        RefusalCode::Stale
        | RefusalCode::Unavailable
        | RefusalCode::Overloaded
        | RefusalCode::TooSlow
        | RefusalCode::Internal => Exit::Internal,
    };
    Failure::new(exit, error)
}

/// For verbs that ask a coordinator one thing.
pub(crate) fn ask<T>(
    target: &Target,
    question: impl AsyncFnOnce(Cluster) -> Result<T, Failure>,
) -> Result<T, Failure> {
    crate::runtime::run(async {
        let cluster = Cluster::reach(target).await?;
        question(cluster).await
    })
}

/// Reads `report.json` of an ended run.
pub(crate) async fn report(cluster: &Cluster, run: &RunId) -> anyhow::Result<String> {
    let request =
        v1::ResultsRequest { run: run.to_string(), files: vec!["report.json".to_owned()] };
    let mut chunks =
        cluster.client.clone().results(request).await.map_err(CallError::from)?.into_inner();
    let mut document = Vec::new();
    while let Some(v1::FileChunk { name: _, data }) =
        chunks.message().await.map_err(CallError::from)?
    {
        document.extend(data);
    }
    String::from_utf8(document).context("the coordinator's report is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short story of answers, told one a call.
    async fn asked(answers: &[Result<u32, RefusalCode>]) -> Result<u32, (RefusalCode, bool)> {
        let mut answers = answers.iter();
        let answer = within(async || match answers.next().expect("asked once too often") {
            Ok(number) => Ok(Response::new(*number)),
            Err(code) => Err(Refusal::new(*code, "no").into()),
        });
        let answer = answer.await.map_err(|error| (error.refusal.code, error.broken));
        assert_eq!(answers.next(), None, "not asked often enough");
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_with_too_much_to_do_is_asked_again_and_other_refusals_are_not() {
        let (busy, no) = (Err(RefusalCode::Overloaded), Err(RefusalCode::Unavailable));
        assert_eq!(asked(&[busy, busy, Ok(7)]).await, Ok(7));
        assert_eq!(asked(&[busy, no]).await, Err((RefusalCode::Unavailable, false)));
        // 0.1 s, doubled each time: the eighth wait passes the ten seconds.
        assert_eq!(asked(&[busy; 7]).await, Err((RefusalCode::TooSlow, true)));
        let error = CallError::from(Status::from(Refusal::new(RefusalCode::Overloaded, "no")));
        assert!(error.broken, "who submits or watches goes on trying");
    }
}
