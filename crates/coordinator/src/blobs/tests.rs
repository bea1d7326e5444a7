//! Both keepers keep the same promises; what a bucket refuses is told with what to do.

use std::{collections::BTreeMap, fs, sync::Mutex};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory};
use reqwest::Url;

use super::*;

impl Blobs {
    fn of(keeper: Keeper) -> Self {
        Self { keeper, recent: Arc::default() }
    }

    /// In the state folder `state`, without threads.
    pub(crate) fn in_folder(state: &Path) -> Self {
        Self::of(Keeper::Folder(Folder::open(&state.join("blobs"), Blocking::Inline).unwrap()))
    }

    fn in_bucket(store: Arc<dyn ObjectStore>) -> Self {
        Self::of(Keeper::Bucket(Bucket::of(store)))
    }
}

async fn written(blobs: &Blobs, parts: &[&[u8]]) -> (Digest, u64) {
    let mut writer = blobs.create().await.unwrap();
    for part in parts {
        writer.write(part.to_vec().into()).await.unwrap();
    }
    writer.keep().await.unwrap()
}

async fn promises(blobs: &Blobs) {
    let (digest, size) = written(blobs, &[b"one ", b"blob"]).await;
    assert_eq!((digest, size), (Digest::of(b"one blob"), 8));
    assert_eq!(blobs.size(digest).await.unwrap(), Some(8));

    let mut reader = blobs.read(digest).await.unwrap();
    assert_eq!(reader.chunk(5).await.unwrap(), b"one b");
    assert_eq!(reader.chunk(5).await.unwrap(), b"lob");
    assert_eq!(reader.chunk(5).await.unwrap(), b"");

    let mut dropped = blobs.create().await.unwrap();
    dropped.write(b"half".to_vec().into()).await.unwrap();
    dropped.abandon().await;
    assert_eq!(blobs.size(Digest::of(b"half")).await.unwrap(), None);
    let missing = blobs.read(Digest::of(b"half")).await.err();
    assert!(matches!(missing, Some(BlobError::Missing(_))));

    // More than a part of an upload, and not a whole number of parts.
    let large: Vec<u8> = (0..20_000_001_u32).map(|n| (n % 251) as u8).collect();
    let chunks: Vec<&[u8]> = large.chunks(1 << 20).collect();
    let (digest, size) = written(blobs, &chunks).await;
    assert_eq!((digest, size), (Digest::of(&large), 20_000_001));
    assert!(blobs.read(digest).await.unwrap().all().await.unwrap() == large);
    blobs.verify(digest).await.unwrap();

    let mut names: Vec<Digest> = vec![digest, Digest::of(b"one blob")];
    for content in 0..9_u8 {
        names.push(written(blobs, &[&[content]]).await.0);
    }
    names.sort_unstable();
    let mut listed = Vec::new();
    loop {
        let page = blobs.list(listed.last().copied(), 4).await.unwrap();
        assert!(page.iter().all(|blob| blob.modified_unix_ms > 1_600_000_000_000));
        listed.extend(page.iter().map(|blob| blob.digest));
        if page.len() < 4 {
            break;
        }
    }
    assert_eq!(listed, names, "no draft among them");
}

#[tokio::test]
async fn folders_and_buckets_keep_blobs_by_their_content() {
    for blocking in [Blocking::Threads, Blocking::Inline] {
        let state = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(&BlobPlace::State, state.path(), 7, blocking).await.unwrap();
        promises(&blobs).await;
        let staging = state.path().join("blobs/staging");
        assert_eq!(fs::read_dir(staging).unwrap().count(), 0);
    }
    let store = Arc::new(InMemory::new());
    promises(&Blobs::in_bucket(store.clone())).await;
    let staging = object_store::path::Path::from("prefix/staging");
    let left: Vec<_> = tokio_stream::StreamExt::collect(store.list(Some(&staging))).await;
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn another_folder_is_shared_under_the_stores_own_name() {
    let (state, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = BlobPlace::Folder(folder.path().to_owned());
    let one = Blobs::open(&place, state.path(), 1, Blocking::Inline).await.unwrap();
    let two = Blobs::open(&place, state.path(), 2, Blocking::Inline).await.unwrap();
    let (digest, _) = written(&one, &[b"x"]).await;
    assert_eq!(one.size(digest).await.unwrap(), Some(1));
    assert_eq!(two.size(digest).await.unwrap(), None);
}

#[tokio::test]
async fn a_damaged_blob_is_never_sent_as_whole() {
    let state = tempfile::tempdir().unwrap();
    let (folder, store) = (Blobs::in_folder(state.path()), Arc::new(InMemory::new()));
    let bucket = Blobs::in_bucket(store.clone());
    let digest = Digest::of(b"good");
    for blobs in [&folder, &bucket] {
        written(blobs, &[b"good"]).await;
    }
    fs::write(path_in(&state.path().join("blobs"), digest), b"evil").unwrap();
    let name = digest.to_string();
    let path = object_store::path::Path::from(format!("prefix/{}/{name}", &name[..2]));
    store.put(&path, "evil".into()).await.unwrap();
    for blobs in [&folder, &bucket] {
        let mut reader = blobs.read(digest).await.unwrap();
        assert_eq!(reader.chunk(100).await.unwrap(), b"evil");
        assert!(matches!(reader.chunk(100).await, Err(BlobError::Damaged(_))));
        assert!(matches!(blobs.verify(digest).await, Err(BlobError::Damaged(_))));
        let read = blobs.read(digest).await.unwrap().all().await;
        assert!(matches!(read, Err(BlobError::Damaged(_))));
        written(blobs, &[b"good"]).await;
        blobs.verify(digest).await.unwrap();
    }
}

#[tokio::test]
async fn what_was_wanted_lately_is_not_deleted() {
    let state = tempfile::tempdir().unwrap();
    let bucket = Blobs::in_bucket(Arc::new(InMemory::new()));
    for mut blobs in [Blobs::in_folder(state.path()), bucket] {
        let (digest, _) = written(&blobs, &[b"x"]).await;
        assert!(!blobs.delete(digest).await.unwrap());
        blobs.verify(digest).await.unwrap();
        blobs.recent = Arc::new(Recent::new(std::time::Duration::ZERO));
        assert!(blobs.delete(digest).await.unwrap());
        assert_eq!(blobs.size(digest).await.unwrap(), None);
        assert!(blobs.delete(digest).await.unwrap(), "what is gone is gone");
    }
}

/// As much of S3 as the crate asks for.
#[derive(Default)]
struct FakeS3 {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Every request is answered with this.
    refuses: Option<(StatusCode, &'static str)>,
}

impl FakeS3 {
    async fn start(self) -> (Arc<Self>, Vec<(String, String)>) {
        let fake = Arc::new(self);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(Self::answer).with_state(fake.clone());
        let router = router.layer(axum::extract::DefaultBodyLimit::disable());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let options = [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "here"),
            ("PATH", "/usr/bin"),
        ];
        (fake, options.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
    }

    #[expect(clippy::unused_async, reason = "a handler is a future")]
    async fn answer(
        State(fake): State<Arc<Self>>,
        method: Method,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Response {
        if let Some((status, code)) = fake.refuses {
            return (status, format!("<Error><Code>{code}</Code></Error>")).into_response();
        }
        let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
        let mut objects = fake.objects.lock().unwrap();
        let tagged = [("etag", "\"tag\"")];
        match method {
            Method::POST if query.starts_with("uploads") => {
                "<InitiateMultipartUploadResult><UploadId>up</UploadId>\
                 </InitiateMultipartUploadResult>"
                    .into_response()
            }
            Method::POST if query.starts_with("delete") => {
                let body = String::from_utf8(body.to_vec()).unwrap();
                let keys = body.split("<Key>").skip(1).filter_map(|rest| rest.split('<').next());
                let mut deleted = Vec::new();
                for key in keys {
                    objects.remove(&format!("{}/{key}", path.trim_end_matches('/')));
                    deleted.push(format!("<Deleted><Key>{key}</Key></Deleted>"));
                }
                format!("<DeleteResult>{}</DeleteResult>", deleted.concat()).into_response()
            }
            Method::POST => {
                let parts = objects.extract_if(.., |name, _| name.starts_with(&format!("{path}?")));
                let whole = parts.flat_map(|(_, bytes)| bytes).collect();
                objects.insert(path, whole);
                "<CompleteMultipartUploadResult><ETag>tag</ETag></CompleteMultipartUploadResult>"
                    .into_response()
            }
            Method::PUT if headers.contains_key("x-amz-copy-source") => {
                let from = headers["x-amz-copy-source"].to_str().unwrap();
                let from = format!("/{}", from.trim_start_matches('/'));
                let bytes = objects[&from].clone();
                objects.insert(path, bytes);
                (tagged, "<CopyObjectResult><ETag>tag</ETag></CopyObjectResult>").into_response()
            }
            Method::PUT if query.contains("partNumber") => {
                let number = query.split(['=', '&']).nth(1).unwrap().to_owned();
                objects.insert(format!("{path}?{number:0>5}"), body.to_vec());
                (tagged, "").into_response()
            }
            Method::PUT => {
                objects.insert(path, body.to_vec());
                (tagged, "").into_response()
            }
            _ => match objects.get(&path) {
                Some(bytes) => {
                    let modified = ("last-modified", "Mon, 30 Nov 2026 17:00:00 GMT");
                    ([tagged[0], modified], bytes.clone()).into_response()
                }
                None => {
                    (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>").into_response()
                }
            },
        }
    }
}

#[tokio::test]
async fn a_bucket_is_spoken_to_as_s3_is() {
    let (fake, options) = FakeS3::default().start().await;
    let url = Url::parse("s3://bucket/some/prefix").unwrap();
    let bucket = Bucket::open(&url, "own", &options).unwrap();
    bucket.probe().await.unwrap();
    let blobs = Blobs::of(Keeper::Bucket(bucket));
    let large = vec![7_u8; 9 << 20];
    for bytes in [&b"small"[..], &large] {
        let (digest, size) = written(&blobs, &[bytes]).await;
        assert_eq!(blobs.size(digest).await.unwrap(), Some(size));
        assert!(blobs.read(digest).await.unwrap().all().await.unwrap() == bytes);
    }
    let names: Vec<String> = fake.objects.lock().unwrap().keys().cloned().collect();
    assert_eq!(names.len(), 3, "two blobs and a word about them, no draft: {names:?}");
    assert!(names.iter().all(|name| name.starts_with("/bucket/some/prefix/own/")), "{names:?}");
}

#[tokio::test]
async fn a_bucket_that_refuses_is_told_with_its_place_and_what_to_do() {
    let mut told = Vec::new();
    for refuses in [
        (StatusCode::FORBIDDEN, "AccessDenied"),
        (StatusCode::UNAUTHORIZED, "InvalidToken"),
        (StatusCode::NOT_FOUND, "NoSuchBucket"),
    ] {
        let fake = FakeS3 { refuses: Some(refuses), ..FakeS3::default() };
        let (_, options) = fake.start().await;
        let url = Url::parse("s3://bucket/prefix").unwrap();
        let error = Bucket::open(&url, "own", &options).unwrap().probe().await.unwrap_err();
        told.push(error.to_string());
    }
    let credentials = "cannot write to s3://bucket/prefix/own; check the credentials in the \
                       coordinator's environment (AWS_…, GOOGLE_…, AZURE_…) and what they may do";
    let bucket = "cannot write to s3://bucket/prefix/own; check that the bucket exists, and its \
                  region";
    assert_eq!(told, [credentials, credentials, bucket]);

    // Azure wants an account before it is asked at all.
    let url = Url::parse("az://container/prefix").unwrap();
    let error = Bucket::open(&url, "own", &[]).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot use az://container/prefix/own; check its address, that it can be reached, and the \
         credentials in the environment"
    );
}
