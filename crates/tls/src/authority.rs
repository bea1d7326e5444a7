//! [`Authority`]: makes certificates, for development and for clusters without an authority of their
//! own.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

use crate::{CA_FILE, CERTIFICATE_FILE, Identity, KEY_FILE, Role};

/// Clocks of two machines differ.
const SKEW: Duration = Duration::minutes(5);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file or folder cannot be used.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Certificates are there already.
    #[error(
        "{path} exists already; certificates are never overwritten: choose another folder, or \
         remove it if nothing uses it"
    )]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// The library refuses, for example a host's name.
    #[error("cannot make the certificate")]
    Library(#[from] rcgen::Error),
}

/// From when until when a certificate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Start.
    pub from: OffsetDateTime,
    /// End.
    pub until: OffsetDateTime,
}

impl Validity {
    /// From now on, for `days`.
    pub fn days(days: u32) -> Self {
        let now = OffsetDateTime::now_utc();
        Self { from: now - SKEW, until: now + Duration::days(days.into()) }
    }
}

/// A certificate, its key and the authority's certificate, in PEM form.
pub struct Issued {
    certificate: String,
    key: String,
    ca: String,
}

/// What signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn new(validity: Validity) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        // Two authorities of one name would make a wrong one look like a broken signature.
        let mark = blake3::hash(key.public_key_raw()).to_hex();
        let mut params = params(&format!("orchestrator authority {}", &mark[..8]), validity);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let (certificate, pem) = (params.self_signed(&key)?.pem(), key.serialize_pem());
        Ok(Self { issuer: Issuer::new(params, key), certificate, key: pem })
    }

    /// The one in `folder`, that [`Authority::write`] made.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn open(folder: &Path) -> Result<Self, AuthorityError> {
        let read = |name| {
            let path: PathBuf = folder.join(name);
            fs::read_to_string(&path).map_err(file("read", &path))
        };
        let (certificate, key) = (read(CERTIFICATE_FILE)?, read(KEY_FILE)?);
        let issuer = Issuer::from_ca_cert_pem(&certificate, KeyPair::from_pem(&key)?)?;
        Ok(Self { issuer, certificate, key })
    }

    /// Writes certificate and key into the new folder `folder`.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn write(&self, folder: &Path) -> Result<(), AuthorityError> {
        create_folder(folder)?;
        create(&folder.join(KEY_FILE), &self.key, 0o600)?;
        create(&folder.join(CERTIFICATE_FILE), &self.certificate, 0o644)
    }

    /// A certificate for `identity`; a coordinator's is called by one of `hosts`, names or addresses.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn issue(
        &self,
        identity: &Identity,
        hosts: &[String],
        validity: Validity,
    ) -> Result<Issued, AuthorityError> {
        let mut params = params(&format!("orchestrator {identity}"), validity);
        params.subject_alt_names.push(SanType::URI(identity.uri().try_into()?));
        for host in hosts {
            params.subject_alt_names.push(match host.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.as_str().try_into()?),
            });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if identity.role() == Role::Coordinator {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem(), ca: self.certificate.clone() })
    }
}

impl Issued {
    /// Writes the three files into the new folder `folder`, the key for its owner only.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn write(&self, folder: &Path) -> Result<(), AuthorityError> {
        create_folder(folder)?;
        create(&folder.join(KEY_FILE), &self.key, 0o600)?;
        create(&folder.join(CERTIFICATE_FILE), &self.certificate, 0o644)?;
        create(&folder.join(CA_FILE), &self.ca, 0o644)
    }

    /// Puts the three files into the place of those in `folder`, each whole at every moment.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn replace(&self, folder: &Path) -> Result<(), AuthorityError> {
        let files = [
            (KEY_FILE, &self.key, 0o600),
            (CERTIFICATE_FILE, &self.certificate, 0o644),
            (CA_FILE, &self.ca, 0o644),
        ];
        for (name, text, mode) in files {
            let (path, fresh) = (folder.join(name), folder.join(format!(".{name}.new")));
            drop(fs::remove_file(&fresh));
            create(&fresh, text, mode)?;
            fs::rename(&fresh, &path).map_err(file("replace", &path))?;
        }
        Ok(())
    }
}

fn params(name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (validity.from, validity.until);
    params
}

fn file<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> AuthorityError + 'a {
    move |source| AuthorityError::File { action, path: path.to_owned(), source }
}

fn create_folder(folder: &Path) -> Result<(), AuthorityError> {
    if fs::symlink_metadata(folder).is_ok() {
        return Err(AuthorityError::Exists { path: folder.to_owned() });
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder).map_err(file("create", folder))
}

fn create(path: &Path, text: &str, mode: u32) -> Result<(), AuthorityError> {
    let mut options = OpenOptions::new();
    let file_made = options.write(true).create_new(true).mode(mode).open(path);
    file_made.and_then(|mut made| made.write_all(text.as_bytes())).map_err(file("write", path))
}
