//! Blobs as objects of a bucket: S3, GCS, Azure and what speaks like them.
//!
//! Invariant: an object under its digest's name is complete: it was put at once, or uploaded in
//! parts under another name and copied when its digest was known.
//!
//! Retries and their backoff are `object_store`'s. An upload that ends with its process leaves parts
//! that only a rule of the bucket can remove ("abort incomplete multipart uploads").

use std::{sync::Arc, time::Duration};

use object_store::{
    ObjectStore, ObjectStoreExt, ObjectStoreScheme, RetryConfig, WriteMultipart,
    aws::AmazonS3Builder, azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder, path::Path,
};
use orchestrator_types::Digest;
use reqwest::Url;
use tokio_stream::{Stream, StreamExt};

use super::{BlobError, Listed};

/// Size of an upload's parts. Stores want at least 5 MiB, and at most 10,000 parts: 78 GiB a blob.
const PART_BYTES: usize = 8 << 20;
/// Parts on their way while the next one is filled: with it, 24 MiB of memory an upload.
const PARTS_AHEAD: usize = 2;
/// How often and how long a request is tried again; whoever waits gives up after two minutes.
const RETRIES: usize = 6;
const RETRY_TIMEOUT: Duration = Duration::from_mins(1);

/// A prefix of a bucket that one store owns.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    store: Arc<dyn ObjectStore>,
    root: Path,
    /// For messages.
    url: Arc<str>,
}

impl Bucket {
    /// The prefix `own` below `url`; credentials come from `options`, named as the stores' own tools
    /// name them. Nothing is asked of the network.
    pub(super) fn open(
        url: &Url,
        own: &str,
        options: &[(String, String)],
    ) -> Result<Self, BlobError> {
        // Somebody else in this process may have chosen: any will do.
        drop(rustls::crypto::ring::default_provider().install_default());
        let place: Arc<str> = format!("{}/{own}", url.as_str().trim_end_matches('/')).into();
        let (store, prefix) =
            client(url, options).map_err(|source| failed("use", &place, source))?;
        Ok(Self { store, root: prefix.join(own), url: place })
    }

    #[cfg(test)]
    pub(super) fn of(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, root: Path::from("prefix"), url: "memory:///prefix".into() }
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(object_store::Error) -> BlobError {
        let url = self.url.clone();
        move |source| failed(action, &url, source)
    }

    fn path(&self, digest: Digest) -> Path {
        let name = digest.to_string();
        self.root.clone().join(&name[..2]).join(name.as_str())
    }

    /// Finds out whether the bucket is there and takes what we write.
    pub(super) async fn probe(&self) -> Result<(), BlobError> {
        let words = "blobs of an orchestrator's coordinator; they go with its store\n";
        let path = self.root.clone().join("about.txt");
        let put = self.store.put(&path, words.into()).await;
        put.map(drop).map_err(self.failed("write to"))
    }

    pub(super) async fn size(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        match self.store.head(&self.path(digest)).await {
            Ok(object) => Ok(Some(object.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("look into")(error)),
        }
    }

    pub(super) fn create(&self) -> Upload {
        Upload { bucket: self.clone(), buffer: Vec::new(), parts: None }
    }

    pub(super) async fn read(&self, digest: Digest) -> Result<Download, BlobError> {
        match self.store.get(&self.path(digest)).await {
            Ok(found) => {
                let stream = Box::into_pin(Box::new(found.into_stream()) as Box<_>);
                Ok(Download { bucket: self.clone(), stream, rest: Vec::new() })
            }
            Err(object_store::Error::NotFound { .. }) => Err(BlobError::Missing(digest)),
            Err(error) => Err(self.failed("read from")(error)),
        }
    }

    pub(super) async fn delete(&self, digest: Digest) -> Result<(), BlobError> {
        match self.store.delete(&self.path(digest)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete from")(error)),
        }
    }

    /// At most `limit` blobs in order of their names, after that of `after`.
    pub(super) async fn list(
        &self,
        after: Option<Digest>,
        limit: usize,
    ) -> Result<Vec<Listed>, BlobError> {
        let listing = match after {
            Some(digest) => self.store.list_with_offset(Some(&self.root), &self.path(digest)),
            None => self.store.list(Some(&self.root)),
        };
        let mut objects = listing.take(limit);
        let mut found = Vec::new();
        while let Some(object) = objects.next().await {
            let object = object.map_err(self.failed("list"))?;
            // What is in the way and is no blob, such as an upload in work, is not ours to judge.
            let name = object.location.filename().and_then(|name| name.parse().ok());
            if let Some(digest) = name {
                let modified_unix_ms = object.last_modified.timestamp_millis();
                found.push(Listed { digest, modified_unix_ms });
            }
        }
        Ok(found)
    }
}

/// A client for the store behind `url`, and the prefix in its bucket.
fn client(
    url: &Url,
    options: &[(String, String)],
) -> Result<(Arc<dyn ObjectStore>, Path), object_store::Error> {
    let retry = RetryConfig {
        max_retries: RETRIES,
        retry_timeout: RETRY_TIMEOUT,
        ..RetryConfig::default()
    };
    macro_rules! built {
        ($builder:ty) => {{
            let fresh = <$builder>::new().with_url(url.as_str()).with_retry(retry);
            let set = options.iter().fold(fresh, |builder, (key, value)| {
                match key.to_ascii_lowercase().parse() {
                    Ok(key) => builder.with_config(key, value),
                    // The environment holds much else.
                    Err(_) => builder,
                }
            });
            Arc::new(set.build()?)
        }};
    }
    let (scheme, prefix) = ObjectStoreScheme::parse(url)?;
    let store: Arc<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::AmazonS3 => built!(AmazonS3Builder),
        ObjectStoreScheme::GoogleCloudStorage => built!(GoogleCloudStorageBuilder),
        ObjectStoreScheme::MicrosoftAzure => built!(MicrosoftAzureBuilder),
        other => {
            let source = format!("{other:?} is not supported").into();
            return Err(object_store::Error::NotSupported { source });
        }
    };
    Ok((store, prefix))
}

fn failed(action: &'static str, url: &str, source: object_store::Error) -> BlobError {
    use object_store::Error;
    let advice = match source {
        Error::Unauthenticated { .. } | Error::PermissionDenied { .. } => {
            "check the credentials in the coordinator's environment (AWS_…, GOOGLE_…, AZURE_…) and \
             what they may do"
        }
        Error::NotFound { .. } => "check that the bucket exists, and its region",
        Error::NotSupported { .. } | Error::UnknownConfigurationKey { .. } => "check its address",
        _ => "check its address, that it can be reached, and the credentials in the environment",
    };
    BlobError::Object { action, url: url.to_owned(), advice, source: Box::new(source) }
}

/// An object in work. Dropped before [`Upload::keep`], it leaves parts that nobody sees.
#[derive(Debug)]
pub(super) struct Upload {
    bucket: Bucket,
    /// Less than a part.
    buffer: Vec<u8>,
    /// Once there is more than one part: where they go.
    parts: Option<(Path, WriteMultipart)>,
}

impl Upload {
    pub(super) async fn write(&mut self, bytes: tonic::codegen::Bytes) -> Result<(), BlobError> {
        if let Some((_, parts)) = &mut self.parts {
            let room = parts.wait_for_capacity(PARTS_AHEAD).await;
            room.map_err(self.bucket.failed("upload to"))?;
            parts.put(bytes);
            return Ok(());
        }
        self.buffer.extend(bytes);
        if self.buffer.len() >= PART_BYTES {
            let name: orchestrator_types::RunId = crate::fresh_name();
            let path = self.bucket.root.clone().join("staging").join(name.as_str());
            let started = self.bucket.store.put_multipart(&path).await;
            let upload = started.map_err(self.bucket.failed("upload to"))?;
            let mut parts = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
            parts.put(std::mem::take(&mut self.buffer).into());
            self.parts = Some((path, parts));
        }
        Ok(())
    }

    /// Makes it visible as `digest`.
    pub(super) async fn keep(self, digest: Digest) -> Result<(), BlobError> {
        let Self { bucket, buffer, parts } = self;
        let path = bucket.path(digest);
        let Some((draft, parts)) = parts else {
            let put = bucket.store.put(&path, buffer.into()).await;
            return put.map(drop).map_err(bucket.failed("write to"));
        };
        parts.finish().await.map_err(bucket.failed("upload to"))?;
        // The stores copy by themselves; no byte comes back here.
        bucket.store.copy(&draft, &path).await.map_err(bucket.failed("copy in"))?;
        if let Err(error) = bucket.store.delete(&draft).await {
            tracing::warn!(%error, url = %bucket.url, %draft, "a draft stays behind");
        }
        Ok(())
    }

    /// Removes what was uploaded.
    pub(super) async fn abandon(self) {
        if let Some((_, parts)) = self.parts
            && let Err(error) = parts.abort().await
        {
            tracing::warn!(%error, url = %self.bucket.url, "an unfinished upload stays behind");
        }
    }
}

type Bytes = std::pin::Pin<
    Box<dyn Stream<Item = Result<tonic::codegen::Bytes, object_store::Error>> + Send>,
>;

/// An object being read.
pub(super) struct Download {
    bucket: Bucket,
    stream: Bytes,
    /// Received and not asked for yet.
    rest: Vec<u8>,
}

impl Download {
    /// The next at most `limit` bytes; fewer only at the end.
    pub(super) async fn chunk(&mut self, limit: usize) -> Result<Vec<u8>, BlobError> {
        while self.rest.len() < limit {
            let Some(bytes) = self.stream.next().await else { break };
            self.rest.extend(bytes.map_err(self.bucket.failed("read from"))?.as_ref());
        }
        let later = self.rest.split_off(limit.min(self.rest.len()));
        Ok(std::mem::replace(&mut self.rest, later))
    }
}
