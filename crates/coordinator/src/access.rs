//! Who may ask for what: the caller's role, from the certificate of its connection.
//!
//! Invariants:
//! - with TLS, a call whose connection has no known peer is refused, and so is one that the table
//!   does not name;
//! - a session is used by the identity that registered it, also after a restart of the coordinator:
//!   its name carries the identity's mark;
//! - without TLS (this machine only, or `--insecure-plaintext`) nobody is told apart.

use std::{net::SocketAddr, pin::Pin, task::Context, task::Poll};

use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_tls::{Identity, Peer, Role};
use orchestrator_types::SessionId;
use tonic::{
    Extensions, Request, Status, body::Body, codegen::http, transport::server::TcpConnectInfo,
};
use tower::{Layer, Service};

use crate::{audit::Audit, grpc::name};

/// What a call does, and so who may make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Takes work and brings results.
    Worker,
    /// Submits, and looks; also ends and continues runs, of which the driver asks whose they are.
    User,
    /// Says whether the service is there.
    Anybody,
    /// Lists the services.
    Admin,
}

const COORDINATOR: &str = "/orchestrator.v1.Coordinator/";
const INSPECTOR: &str = "/orchestrator.v1.Inspector/";

/// What this call needs; a call that is not known here needs an admin.
fn need(path: &str) -> Need {
    if let Some(method) = path.strip_prefix(COORDINATOR) {
        return match method {
            "Register" | "Heartbeat" | "Lease" | "Stage" | "Commit" | "Fail" | "Goodbye"
            | "Fetch" => Need::Worker,
            "Submit" | "Watch" | "Resume" | "Cancel" | "Results" => Need::User,
            _ => Need::Admin,
        };
    }
    match path.strip_prefix(INSPECTOR) {
        // A worker's first question, too: do we speak the same protocol?
        Some("Version") => Need::Anybody,
        Some("Runs" | "Status" | "Nodes" | "Events") => Need::User,
        None if path.starts_with("/grpc.health.v1.Health/") => Need::Anybody,
        Some(_) | None => Need::Admin,
    }
}

impl Need {
    const fn is_met_by(self, role: Role) -> bool {
        match self {
            Self::Anybody => true,
            Self::Worker => matches!(role, Role::Worker),
            Self::User => matches!(role, Role::Client | Role::Admin),
            Self::Admin => matches!(role, Role::Admin),
        }
    }

    const fn roles(self) -> &'static str {
        match self {
            Self::Anybody => "a certificate",
            Self::Worker => "a worker's certificate",
            Self::User => "the certificate of a client or admin",
            Self::Admin => "an admin's certificate",
        }
    }
}

/// Who makes a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Nobody in particular where nothing is encrypted.
    identity: Option<Identity>,
    address: Option<SocketAddr>,
}

impl Caller {
    /// The one at the other end of the call's connection.
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        Self::among(request.extensions())
    }

    fn among(extensions: &Extensions) -> Self {
        Self::connected(extensions.get(), extensions.get())
    }

    fn connected(peer: Option<&Peer>, tcp: Option<&TcpConnectInfo>) -> Self {
        match peer {
            Some(Peer { address, identity }) => {
                Self { identity: Some(identity.clone()), address: Some(*address) }
            }
            None => Self { identity: None, address: tcp.and_then(TcpConnectInfo::remote_addr) },
        }
    }

    #[cfg(test)]
    pub(crate) fn known(role: Role, name: &str) -> Self {
        let identity = Identity::new(role, name).expect("a test's name is good");
        Self { identity: Some(identity), address: None }
    }

    /// `client/alice`; none where nobody is told apart.
    pub(crate) fn name(&self) -> Option<String> {
        self.identity.as_ref().map(|identity| identity.short().to_owned())
    }

    pub(crate) const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// A session that this caller names.
    pub(crate) fn session(&self, text: &str) -> Result<SessionId, Refusal> {
        let session: SessionId = name(text)?;
        match &self.identity {
            Some(identity) if !identity.owns(&session) => {
                let message = format!("session {session} is not one of {identity}");
                Err(Refusal::new(RefusalCode::Denied, message))
            }
            _ => Ok(session),
        }
    }

    /// Whether it may end or continue a run of `owner`.
    pub(crate) fn may_change(&self, owner: Option<&str>) -> Result<(), Refusal> {
        let Some(identity) = &self.identity else { return Ok(()) };
        if identity.role() == Role::Admin || owner == Some(identity.short()) {
            return Ok(());
        }
        let owner = owner.unwrap_or("somebody without a certificate");
        let message = format!(
            "the run was submitted by {owner}, and {identity} may not change it; an admin's \
             certificate may"
        );
        Err(Refusal::new(RefusalCode::Denied, message))
    }
}

/// The layer around every service.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Whether everybody must have shown a certificate.
    certified: bool,
    audit: Audit,
}

impl Access {
    pub(crate) const fn new(certified: bool, audit: Audit) -> Self {
        Self { certified, audit }
    }

    fn judge(&self, path: &str, caller: &Caller) -> Result<(), Refusal> {
        if !self.certified {
            return Ok(());
        }
        let need = need(path);
        let denied = |message| Err(Refusal::new(RefusalCode::Denied, message));
        match &caller.identity {
            Some(identity) if need.is_met_by(identity.role()) => Ok(()),
            Some(identity) => {
                let call = path.rsplit('/').next().unwrap_or(path);
                let call: String = call.chars().take(64).collect();
                denied(format!("{identity} may not call {call}; that takes {}", need.roles()))
            }
            None => denied("the connection has no certificate".to_owned()),
        }
    }
}

impl<S> Layer<S> for Access {
    type Service = Judged<S>;

    fn layer(&self, service: S) -> Judged<S> {
        Judged { access: self.clone(), service }
    }
}

/// A service whose callers have a role.
#[derive(Clone, Debug)]
pub(crate) struct Judged<S> {
    access: Access,
    service: S,
}

type Answering<E> = Pin<Box<dyn Future<Output = Result<http::Response<Body>, E>> + Send>>;

impl<S> Service<http::Request<Body>> for Judged<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let extensions = request.extensions();
        let caller = Caller::connected(extensions.get(), extensions.get());
        let Err(refusal) = self.access.judge(request.uri().path(), &caller) else {
            return Box::pin(self.service.call(request));
        };
        let audit = self.access.audit.clone();
        let path: String = request.uri().path().chars().take(128).collect();
        Box::pin(async move {
            audit.note::<()>(&caller, "refused", &path, &Err(refusal.clone())).await;
            Ok(Status::from(refusal).into_http())
        })
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_proto::{Blocking, DESCRIPTORS};
    use prost::Message as _;

    use super::*;

    fn methods() -> Vec<String> {
        let set = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let mut methods = Vec::new();
        for file in set.file {
            for service in &file.service {
                let path = format!("/{}.{}", file.package(), service.name());
                methods.extend(service.method.iter().map(|one| format!("{path}/{}", one.name())));
            }
        }
        methods.retain(|path| !path.contains(".Executor/"));
        methods
    }

    /// Every call of the services, and which roles may make it.
    #[test]
    fn every_call_has_its_roles() {
        let mut table = Vec::new();
        for path in methods() {
            let roles: Vec<&str> = Role::ALL
                .into_iter()
                .filter(|role| need(&path).is_met_by(*role))
                .map(Role::name)
                .collect();
            assert_ne!(need(&path), Need::Admin, "{path} is not in the table");
            table.push(format!("{path}: {}", roles.join(", ")));
        }
        insta::assert_snapshot!(table.join("\n"));
    }

    #[test]
    fn without_a_certificate_or_beyond_the_table_nothing_is_answered() {
        let access = Access::new(true, Audit::none(Blocking::Inline));
        let submit = format!("{COORDINATOR}Submit");
        let client = Caller::known(Role::Client, "a");
        assert!(access.judge(&submit, &client).is_ok());
        assert!(access.judge(&submit, &Caller::default()).is_err());
        let refusal = access.judge(&submit, &Caller::known(Role::Worker, "a")).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Denied);
        assert_eq!(
            refusal.message,
            "worker/a may not call Submit; that takes the certificate of a client or admin"
        );
        for path in ["/x/Y", "/orchestrator.v1.Coordinator/New", "", "/grpc.reflection.v1.S/L"] {
            assert!(access.judge(path, &client).is_err(), "{path}");
            assert!(access.judge(path, &Caller::known(Role::Admin, "a")).is_ok(), "{path}");
        }
        let open = Access::new(false, Audit::none(Blocking::Inline));
        assert!(open.judge(&submit, &Caller::default()).is_ok());
    }

    #[test]
    fn a_session_of_another_identity_is_refused() {
        let [mine, other] = ["a", "b"].map(|name| Caller::known(Role::Worker, name));
        let session = mine.identity.as_ref().unwrap().session("s");
        assert_eq!(mine.session(session.as_str()), Ok(session.clone()));
        assert_eq!(Caller::default().session(session.as_str()), Ok(session.clone()));
        assert_eq!(other.session(session.as_str()).unwrap_err().code, RefusalCode::Denied);
        assert_eq!(mine.session("s").unwrap_err().code, RefusalCode::Denied);
    }

    #[test]
    fn a_run_is_changed_by_its_owner_and_by_admins() {
        let client = Caller::known(Role::Client, "a");
        assert!(client.may_change(Some("client/a")).is_ok());
        assert!(client.may_change(Some("client/b")).is_err() && client.may_change(None).is_err());
        assert!(Caller::known(Role::Admin, "x").may_change(Some("client/a")).is_ok());
        assert!(Caller::default().may_change(Some("client/a")).is_ok());
    }
}
