//! [`Identity`]: what a certificate says of its holder, as a SPIFFE URI in its alternative names
//! (<https://github.com/spiffe/spiffe/blob/main/standards/X509-SVID.md>):
//! `spiffe://orchestrator/<role>/<name>`.
//!
//! A renewed certificate keeps its identity, so sessions and runs are bound to it and not to a key.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use orchestrator_types::SessionId;
use rustls::pki_types::CertificateDer;
use x509_parser::{extensions::GeneralName, prelude::FromDer as _, prelude::X509Certificate};

const PREFIX: &str = "spiffe://orchestrator/";
/// Longest URI; SPIFFE allows 2,048 bytes.
const LONGEST: usize = 255;
/// Hexadecimal digits of an identity's digest in the names of its sessions.
const MARK: usize = 16;

/// What a certificate's holder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The service that plans, hands out work and keeps results.
    Coordinator,
    /// An agent: leases work and brings results.
    Worker,
    /// A user: submits and looks; ends and continues its own runs.
    Client,
    /// A user that also ends and continues the runs of others.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Coordinator, Self::Worker, Self::Client, Self::Admin];

    /// Its name, as in URIs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Worker => "worker",
            Self::Client => "client",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| IdentityError::Role(text.to_owned()))
    }
}

/// Who a certificate belongs to: a role and a name. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    role: Role,
    uri: Arc<str>,
}

/// Why a certificate tells nobody's identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It cannot be read.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// It has none of our names.
    #[error(
        "the certificate has no role: among its alternative names there must be one URI \
         spiffe://orchestrator/ROLE/NAME"
    )]
    Missing,
    /// It has several.
    #[error("the certificate has several URIs spiffe://orchestrator/…, and must have one")]
    Several,
    /// Its role is none of ours.
    #[error("`{0}` is no role; there are coordinator, worker, client and admin")]
    Role(String),
    /// Its name is none.
    #[error(
        "`{0}` names nobody: a name has letters, digits, `-`, `_` and `.`, and the URI at most 255 \
         bytes"
    )]
    Name(String),
}

impl Identity {
    /// Of this role and name.
    ///
    /// # Errors
    /// If the name is none.
    pub fn new(role: Role, name: &str) -> Result<Self, IdentityError> {
        let uri = format!("{PREFIX}{role}/{name}");
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || !name.bytes().all(legal) || uri.len() > LONGEST {
            return Err(IdentityError::Name(name.chars().take(LONGEST).collect()));
        }
        Ok(Self { role, uri: uri.into() })
    }

    /// That of a certificate's holder.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let (_, read) =
            X509Certificate::from_der(certificate).map_err(|_| IdentityError::Unreadable)?;
        let names = read.subject_alternative_name().map_err(|_| IdentityError::Unreadable)?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let mut ours = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix(PREFIX),
            _ => None,
        });
        let rest = ours.next().ok_or(IdentityError::Missing)?;
        if ours.next().is_some() {
            return Err(IdentityError::Several);
        }
        let (role, name) = rest.split_once('/').unwrap_or((rest, ""));
        Self::new(role.parse()?, name)
    }

    /// Its role.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Its URI.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// `worker/a`: the URI without what is the same in all of them.
    pub fn short(&self) -> &str {
        &self.uri[PREFIX.len()..]
    }

    /// The name of a session of this identity: whoever else uses it is refused, also by a
    /// coordinator that has just started and remembers nobody.
    pub fn session(&self, unique: &str) -> SessionId {
        format!("{unique}.{}", self.mark()).parse().expect("letters, digits and dots make a name")
    }

    /// Whether this session is one of ours.
    pub fn owns(&self, session: &SessionId) -> bool {
        mark_of(session) == Some(self.mark().as_str())
    }

    fn mark(&self) -> String {
        blake3::hash(self.uri.as_bytes()).to_hex()[..MARK].to_owned()
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

/// Whether both sessions may be of one identity. A session from before there were certificates tells
/// nothing.
pub fn may_be_of_one(one: &SessionId, other: &SessionId) -> bool {
    mark_of(one).zip(mark_of(other)).is_none_or(|(one, other)| one == other)
}

/// For how long a certificate still holds.
pub(crate) fn time_left(certificate: &CertificateDer<'_>) -> Duration {
    let Ok((_, read)) = X509Certificate::from_der(certificate) else { return Duration::ZERO };
    let left = read.validity().time_to_expiration();
    left.and_then(|left| left.try_into().ok()).unwrap_or_default()
}

fn mark_of(session: &SessionId) -> Option<&str> {
    session.as_str().rsplit_once('.').map(|(_, mark)| mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_plain() {
        let worker = Identity::new(Role::Worker, "gpu-1.rack_2").unwrap();
        assert_eq!((worker.role(), worker.short()), (Role::Worker, "worker/gpu-1.rack_2"));
        assert_eq!(worker.uri(), "spiffe://orchestrator/worker/gpu-1.rack_2");
        for wrong in ["", "a/b", "a b", "ä", "a\n", &"x".repeat(250)] {
            assert!(matches!(Identity::new(Role::Worker, wrong), Err(IdentityError::Name(_))));
        }
        assert_eq!("root".parse::<Role>(), Err(IdentityError::Role("root".to_owned())));
    }

    #[test]
    fn a_session_belongs_to_one_identity_of_one_role() {
        let [a, b] = ["a", "b"].map(|name| Identity::new(Role::Worker, name).unwrap());
        let admin = Identity::new(Role::Admin, "a").unwrap();
        let session = a.session("01m8qc6y39fnf3qfnsdeg060af");
        assert!(a.owns(&session) && !b.owns(&session) && !admin.owns(&session));
        let plain = "01m8qc6y39fnf3qfnsdeg060af".parse().unwrap();
        assert!(!a.owns(&plain));
        assert!(may_be_of_one(&session, &a.session("x")) && may_be_of_one(&session, &plain));
        assert!(!may_be_of_one(&session, &b.session("x")));
    }
}
