//! The three files of one party: its certificates, their key, and the authorities that it believes.
//! The names are those of a Kubernetes TLS secret that cert-manager fills.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{Identity, IdentityError};

/// Our certificate first, then those between it and the authority.
pub const CERTIFICATE_FILE: &str = "tls.crt";
/// The certificate's private key.
pub const KEY_FILE: &str = "tls.key";
/// The authorities whose certificates are believed.
pub const CA_FILE: &str = "ca.crt";
/// Larger files hold something else.
const LIMIT_BYTES: u64 = 256 << 10;
/// What others may not do with a key: anything.
const OTHERS: u32 = 0o007;

/// Why a folder of certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file is not there, or may not be read.
    #[error(
        "cannot read {path}; a folder of certificates holds {CERTIFICATE_FILE}, {KEY_FILE} and \
         {CA_FILE}, which this user can read: `orchestrator certs init` makes such folders, and a \
         Kubernetes secret needs `fsGroup` and `defaultMode: 0440`"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Everybody may read the key.
    #[error(
        "every user of this machine can read the key {path} (mode {mode:04o}); take that away with \
         `chmod o-rwx {path}`"
    )]
    OpenKey {
        /// The key.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file is not what its name says.
    #[error("{path} holds no {what} in PEM form")]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The certificate does not say whose it is.
    #[error("the certificate {path} cannot be used")]
    Identity {
        /// The certificate.
        path: PathBuf,
        /// What is wrong with it.
        source: IdentityError,
    },
    /// Its time is over, or has not come.
    #[error(
        "the certificate {path} is valid from {} until {} only; renew it (`orchestrator \
         certs issue`), or set this machine's clock",
        moment(from),
        moment(until)
    )]
    Time {
        /// The certificate.
        path: PathBuf,
        /// Start of its validity.
        from: OffsetDateTime,
        /// End of its validity.
        until: OffsetDateTime,
    },
    /// It is somebody else's now.
    #[error(
        "the certificate {path} is that of {found} now, and this is {ours}; start it anew to become \
         {found}, or put {ours}'s certificate there"
    )]
    OtherIdentity {
        /// The certificate.
        path: PathBuf,
        /// Whose it is.
        found: Identity,
        /// Who we are.
        ours: Identity,
    },
    /// Key and certificate are not a pair, or of a kind that TLS 1.3 does not know.
    #[error("{path} and its key cannot be used together")]
    Pair {
        /// The certificate.
        path: PathBuf,
        /// What the library says.
        #[source]
        source: rustls::Error,
    },
}

/// `2027-11-30 12:00 UTC`.
pub fn moment(at: &OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let (date, hour, minute) = (at.date(), at.hour(), at.minute());
    format!("{date} {hour:02}:{minute:02} UTC")
}

/// What a folder holds, read and looked at.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) roots: RootCertStore,
    pub(crate) identity: Identity,
    pub(crate) until: OffsetDateTime,
}

/// The files' bytes, to see whether they change.
#[derive(Debug)]
pub(crate) struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

impl Files {
    pub(crate) fn read(folder: &Path) -> Result<Self, FolderError> {
        let key = folder.join(KEY_FILE);
        let unreadable = |source| FolderError::Unreadable { path: key.clone(), source };
        let mode = fs::metadata(&key).map_err(unreadable)?.permissions().mode() & 0o7777;
        if mode & OTHERS != 0 {
            return Err(FolderError::OpenKey { path: key, mode });
        }
        Ok(Self {
            certificate: read(&folder.join(CERTIFICATE_FILE))?,
            key: read(&key)?,
            ca: read(&folder.join(CA_FILE))?,
        })
    }

    pub(crate) fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for part in [&self.certificate, &self.key, &self.ca] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize()
    }
}

impl Folder {
    /// Of these bytes, which came from `folder`, as they are at `now`.
    pub(crate) fn of(
        folder: &Path,
        files: &Files,
        now: OffsetDateTime,
    ) -> Result<Self, FolderError> {
        let path = folder.join(CERTIFICATE_FILE);
        let certificates = certificates(&files.certificate, &path, "certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|_| FolderError::Content {
            path: folder.join(KEY_FILE),
            what: "private key",
        })?;
        let ca = folder.join(CA_FILE);
        let mut roots = RootCertStore::empty();
        for root in self::certificates(&files.ca, &ca, "authority's certificate")? {
            let content = |_| FolderError::Content { path: ca.clone(), what: "usable authority" };
            roots.add(root).map_err(content)?;
        }
        let identity = Identity::of(&certificates[0])
            .map_err(|source| FolderError::Identity { path: path.clone(), source })?;
        let unreadable = |_| FolderError::Content { path: path.clone(), what: "certificate" };
        let (_, own) = X509Certificate::from_der(&certificates[0]).map_err(unreadable)?;
        let validity = own.validity();
        let (from, until) = (validity.not_before.to_datetime(), validity.not_after.to_datetime());
        if now < from || now > until {
            return Err(FolderError::Time { path, from, until });
        }
        Ok(Self { certificates, key, roots, identity, until })
    }
}

/// Whose certificate lies in `folder`.
pub(crate) fn identity(folder: &Path) -> Result<Identity, FolderError> {
    let path = folder.join(CERTIFICATE_FILE);
    let shown = certificates(&read(&path)?, &path, "certificate")?;
    Identity::of(&shown[0]).map_err(|source| FolderError::Identity { path, source })
}

fn certificates(
    pem: &[u8],
    path: &Path,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, FolderError> {
    let content = || FolderError::Content { path: path.to_owned(), what };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = read.map_err(|_| content())?;
    if found.is_empty() { Err(content()) } else { Ok(found) }
}

fn read(path: &Path) -> Result<Vec<u8>, FolderError> {
    let unreadable = |source| FolderError::Unreadable { path: path.to_owned(), source };
    let size = fs::metadata(path).map_err(unreadable)?.len();
    if size > LIMIT_BYTES {
        return Err(unreadable(io::ErrorKind::FileTooLarge.into()));
    }
    fs::read(path).map_err(unreadable)
}
