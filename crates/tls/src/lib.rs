//! Who speaks: mutual TLS 1.3 between clients, coordinator and workers, and the role that a
//! certificate gives.
//!
//! ```text
//! folder (tls.crt, tls.key, ca.crt) ─read→ Credentials ─┬→ Incoming: handshakes, then streams of a Peer
//!           └── watched: a good change replaces them     └→ dial: streams to a coordinator
//! ```
//!
//! Invariants:
//! - both sides show a certificate of the same authority, always; there is no other mode;
//! - a certificate without a role of ours is refused, and who is called must be a coordinator;
//! - a changed folder that cannot be used changes nothing: the last good certificates stay.
//!
//! Absent on purpose: which role may do what (the coordinator's), and revocation lists: certificates
//! are short-lived and renewed, or their authority is replaced.

mod accept;
mod authority;
mod credentials;
mod dial;
mod folder;
mod identity;
#[cfg(test)]
mod tests;
mod trouble;

pub use accept::{CONNECTION_AGE, CONNECTION_LIFE, Incoming, Peer, Secured};
pub use authority::{Authority, AuthorityError, Issued, Validity};
pub use credentials::Credentials;
pub use dial::dial;
pub use folder::{CA_FILE, CERTIFICATE_FILE, FolderError, KEY_FILE, moment};
pub use identity::{Identity, IdentityError, Role, may_be_of_one};
pub use trouble::advice;
