//! [`Credentials`]: a folder's certificates, renewed while everything runs.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustls::{
    ClientConfig, ServerConfig,
    crypto::{CryptoProvider, ring},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use time::OffsetDateTime;

use crate::{
    FolderError, Identity,
    folder::{self, CERTIFICATE_FILE, Files, Folder, moment},
};

/// Kubernetes brings a changed secret within a minute or so.
const LOOK: Duration = Duration::from_secs(5);
/// How often the end of a certificate is told.
const LOOKS_A_DAY: u32 = 24 * 60 * 60 / 5;
/// A certificate that ends sooner is told.
const SOON: time::Duration = time::Duration::days(7);

/// How one party proves who it is, and whom it believes. Clones share one state.
#[derive(Clone)]
pub struct Credentials {
    folder: Arc<Path>,
    now: Arc<RwLock<Arc<Loaded>>>,
}

/// One state of the folder.
pub(crate) struct Loaded {
    pub(crate) identity: Identity,
    /// For gRPC.
    pub(crate) server: Arc<ServerConfig>,
    /// For HTTP/1.1.
    pub(crate) pages: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
    until: OffsetDateTime,
    digest: blake3::Hash,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("folder", &self.folder)
            .field("identity", &self.current().identity)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Those of `folder`.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open(folder: PathBuf) -> Result<Self, FolderError> {
        let loaded = Loaded::read(&folder)?;
        loaded.tell_of_end(&folder);
        Ok(Self { folder: folder.into(), now: Arc::new(RwLock::new(Arc::new(loaded))) })
    }

    /// Whose certificate lies in `folder`, also one whose time is over.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn identity_in(folder: &Path) -> Result<Identity, FolderError> {
        folder::identity(folder)
    }

    /// Who we are.
    pub fn identity(&self) -> Identity {
        self.current().identity.clone()
    }

    /// Until when the certificate is valid.
    pub fn until(&self) -> OffsetDateTime {
        self.current().until
    }

    /// Whether nobody believes the certificate any more.
    pub fn are_over(&self) -> bool {
        self.until() < OffsetDateTime::now_utc()
    }

    pub(crate) fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks again at the folder every few seconds, for ever. What cannot be used is told once and
    /// changes nothing; connections that are open stay as they are.
    pub async fn renew(self) {
        let mut told = None;
        let mut looks: u32 = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_A_DAY) {
                self.current().tell_of_end(&self.folder);
            }
            let looked = self.clone();
            let renewed = tokio::task::spawn_blocking(move || looked.look()).await;
            match renewed {
                Ok(Ok(changed)) => {
                    told = None;
                    if changed {
                        let loaded = self.current();
                        let until = moment(&loaded.until);
                        tracing::info!(identity = %loaded.identity, until, "the certificates were renewed");
                        loaded.tell_of_end(&self.folder);
                    }
                }
                Ok(Err(error)) => {
                    let text = chain(&error);
                    if told.as_ref() != Some(&text) {
                        tracing::warn!(%error, "the changed certificates are not used; the last good ones stay");
                    }
                    told = Some(text);
                }
                Err(error) => {
                    tracing::error!(%error, "certificates are not looked at any more");
                    return;
                }
            }
        }
    }

    /// Takes the folder's present state; whether it is another one.
    ///
    /// # Errors
    /// See [`FolderError`]; the last good state stays.
    pub fn look(&self) -> Result<bool, FolderError> {
        let files = Files::read(&self.folder)?;
        if files.digest() == self.current().digest {
            return Ok(false);
        }
        let loaded = Arc::new(Loaded::of(&self.folder, &files)?);
        // Sessions belong to who we are, and a coordinator is called as one.
        let (found, ours) = (loaded.identity.clone(), self.identity());
        if found != ours {
            let path = self.folder.join(CERTIFICATE_FILE);
            return Err(FolderError::OtherIdentity { path, found, ours });
        }
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(true)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

impl Loaded {
    fn read(folder: &Path) -> Result<Self, FolderError> {
        Self::of(folder, &Files::read(folder)?)
    }

    fn of(folder: &Path, files: &Files) -> Result<Self, FolderError> {
        let digest = files.digest();
        let Folder { certificates, key, roots, identity, until } =
            Folder::of(folder, files, OffsetDateTime::now_utc())?;
        let pair = |source| FolderError::Pair { path: folder.join(CERTIFICATE_FILE), source };
        let (provider, roots) = (Arc::new(ring::default_provider()), Arc::new(roots));
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), Arc::clone(&provider));
        let verifier = verifier.build().expect("a folder has at least one authority");
        let server = |protocol: &[u8]| {
            let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
            let mut config = versioned(builder.with_protocol_versions(&[&TLS13]))
                .with_client_cert_verifier(verifier.clone())
                .with_single_cert(certificates.clone(), key.clone_key())
                .map_err(pair)?;
            config.alpn_protocols = vec![protocol.to_vec()];
            // Each connection shows its certificate: a ticket would outlive it.
            config.send_tls13_tickets = 0;
            Ok::<_, FolderError>(Arc::new(config))
        };
        let (pages, server) = (server(b"http/1.1")?, server(b"h2")?);
        Ok(Self {
            client: client(provider, roots, certificates, key).map_err(pair)?,
            identity,
            server,
            pages,
            until,
            digest,
        })
    }

    fn tell_of_end(&self, folder: &Path) {
        if self.until - OffsetDateTime::now_utc() < SOON {
            let folder = folder.display();
            tracing::warn!(%folder, until = %moment(&self.until), "the certificate ends soon; renew it");
        }
    }
}

/// ring knows TLS 1.3.
fn versioned<T>(builder: Result<T, rustls::Error>) -> T {
    builder.expect("the provider knows TLS 1.3")
}

fn client(
    provider: Arc<CryptoProvider>,
    roots: Arc<rustls::RootCertStore>,
    certificates: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider);
    let mut config = versioned(builder.with_protocol_versions(&[&TLS13]))
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}
