//! Handshakes over loopback, of every kind that must fail, and certificates that change.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use orchestrator_proto::Dial;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(40);

struct Place {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, authority: Authority::new(Validity::days(1)).unwrap() }
    }

    fn issue(&self, role: Role, name: &str, hosts: &[&str], validity: Validity) -> PathBuf {
        let identity = Identity::new(role, name).unwrap();
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let issued = self.authority.issue(&identity, &hosts, validity).unwrap();
        let folder = self.folder.path().join(format!("{role}-{name}"));
        issued.write(&folder).unwrap();
        folder
    }

    fn good(&self, role: Role, name: &str) -> PathBuf {
        self.issue(role, name, &["127.0.0.1"], Validity::days(1))
    }
}

fn open(folder: &Path) -> Credentials {
    Credentials::open(folder.to_owned()).unwrap()
}

/// A server that greets each peer by its name, as HTTP/2's speaks first.
async fn server(credentials: Credentials) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut incoming = Incoming::grpc(listener, credentials).unwrap();
    let port = incoming.address().port();
    tokio::spawn(async move {
        while let Some(mut secured) = incoming.next().await {
            let greeting = format!("hello {}", secured.peer().identity);
            tokio::spawn(async move {
                secured.write_all(greeting.as_bytes()).await.unwrap();
                secured.shutdown().await.unwrap();
            });
        }
    });
    port
}

/// What a caller with these certificates hears.
async fn call(credentials: &Credentials, host: &str, port: u16) -> io::Result<String> {
    let Dial::With(dial) = dial(credentials.clone()) else { unreachable!("it is made so") };
    let address = format!("https://{host}:{port}").parse().unwrap();
    let heard = async {
        let mut heard = String::new();
        dial(address).await?.read_to_string(&mut heard).await?;
        Ok(heard)
    };
    timeout(PATIENCE, heard).await.expect("an answer or an error")
}

#[tokio::test]
async fn both_sides_know_who_the_other_is() {
    let place = Place::new();
    let port = server(open(&place.good(Role::Coordinator, "c"))).await;
    let worker = open(&place.good(Role::Worker, "w"));
    assert_eq!(call(&worker, "127.0.0.1", port).await.unwrap(), "hello worker/w");
}

#[tokio::test]
async fn whoever_cannot_prove_who_it_is_is_refused_with_advice() {
    let place = Place::new();
    let now = Validity::days(1);
    let old = Validity { until: now.from + time::Duration::seconds(1), ..now };
    let port = server(open(&place.good(Role::Coordinator, "c"))).await;
    let good = open(&place.good(Role::Client, "good"));
    let mut told = Vec::new();
    let mut refused = async |credentials: &Credentials, host: &str, port| {
        let error = call(credentials, host, port).await.unwrap_err();
        told.push(format!("{error}\n  {}", advice(&error).unwrap_or("-")));
    };
    // Of another authority, towards us and from us.
    let foreign = Place::new();
    let stranger = open(&foreign.good(Role::Client, "stranger"));
    refused(&stranger, "127.0.0.1", port).await;
    let theirs = server(open(&foreign.good(Role::Coordinator, "c"))).await;
    refused(&good, "127.0.0.1", theirs).await;
    // Who believes us, and is not believed.
    let folder = foreign.good(Role::Client, "half");
    std::fs::copy(place.folder.path().join("client-good/ca.crt"), folder.join("ca.crt")).unwrap();
    refused(&open(&folder), "127.0.0.1", port).await;
    // Not the host that was called, and not a coordinator.
    let elsewhere = place.issue(Role::Coordinator, "e", &["elsewhere"], now);
    let elsewhere = server(open(&elsewhere)).await;
    refused(&good, "127.0.0.1", elsewhere).await;
    let impostor = place.authority.issue(&Identity::new(Role::Worker, "i").unwrap(), &[], now);
    let folder = place.folder.path().join("impostor");
    impostor.unwrap().write(&folder).unwrap();
    let impostor = server(open(&folder)).await;
    refused(&good, "127.0.0.1", impostor).await;
    // Something that speaks no TLS.
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = plain.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream.read_to_end(&mut Vec::new()).await
    });
    refused(&good, "127.0.0.1", address.port()).await;
    // Its time is over, which it hears of before it calls anybody.
    let old = place.issue(Role::Client, "old", &[], old);
    let error = Credentials::open(old.clone()).unwrap_err().to_string();
    assert!(error.contains("is valid from") && error.contains("renew it"), "{error}");
    insta::assert_snapshot!(told.join("\n"));
    // And after all that, a good caller is heard.
    assert_eq!(call(&good, "127.0.0.1", port).await.unwrap(), "hello client/good");
}

/// In TLS 1.3 it is the server's first answer that says so.
#[tokio::test]
async fn a_caller_without_a_certificate_is_refused() {
    use rustls::{ClientConfig, crypto::ring, pki_types::ServerName, version::TLS13};
    let place = Place::new();
    let folder = place.good(Role::Coordinator, "c");
    let port = server(open(&folder)).await;
    let files = folder::Files::read(&folder).unwrap();
    let now = time::OffsetDateTime::now_utc();
    let roots = folder::Folder::of(&folder, &files, now).unwrap().roots;
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut heard = Vec::new();
    let heard = async {
        let mut stream = connector.connect(name, stream).await?;
        stream.read_to_end(&mut heard).await
    };
    let error = timeout(PATIENCE, heard).await.expect("an answer").unwrap_err();
    assert!(advice(&error).unwrap().contains("give one with --tls"), "{error}");
}

/// It does not outlive its certificate, however busy or silent it is.
#[tokio::test]
async fn a_connection_ends_with_its_certificate() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let credentials = open(&place.good(Role::Coordinator, "c"));
    let mut incoming = Incoming::grpc(listener, credentials).unwrap();
    let port = incoming.address().port();
    let (from, now) = (Validity::days(1).from, time::OffsetDateTime::now_utc());
    let soon = Validity { from, until: now + Duration::from_secs(8) };
    let brief = open(&place.issue(Role::Client, "brief", &[], soon));
    let Dial::With(dial) = dial(brief) else { unreachable!("it is made so") };
    let dialling = dial(format!("https://127.0.0.1:{port}").parse().unwrap());
    let serving = async {
        let mut secured = incoming.next().await.unwrap();
        secured.write_all(b"hello").await.unwrap();
        secured.read(&mut [0; 8]).await
    };
    let both = async { tokio::join!(dialling, serving) };
    let (stream, read) = timeout(PATIENCE, both).await.expect("it ends by itself");
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(stream);
}

/// A caller that hides its expiry, as one whose clock is wrong: the server judges by its own.
#[tokio::test]
async fn an_expired_certificate_is_refused_by_the_server_too() {
    let place = Place::new();
    let port = server(open(&place.good(Role::Coordinator, "c"))).await;
    let now = Validity::days(1);
    let soon = Validity {
        from: now.from,
        until: time::OffsetDateTime::now_utc() + Duration::from_secs(8),
    };
    let brief = open(&place.issue(Role::Client, "brief", &[], soon));
    assert!(call(&brief, "127.0.0.1", port).await.is_ok());
    tokio::time::sleep(Duration::from_secs(9)).await;
    let error = call(&brief, "127.0.0.1", port).await.unwrap_err();
    assert!(advice(&error).unwrap().contains("expired"), "{error}");
}

#[tokio::test]
async fn a_caller_that_says_nothing_or_nonsense_holds_up_nobody() {
    let place = Place::new();
    let port = server(open(&place.good(Role::Coordinator, "c"))).await;
    let _silent: Vec<TcpStream> = futures(20, port).await;
    let mut rude = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    rude.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut heard = Vec::new();
    // An alert and the end, or only the end.
    drop(timeout(PATIENCE, rude.read_to_end(&mut heard)).await.expect("it is closed"));
    assert!(heard.len() < 16, "{heard:?}");
    let client = open(&place.good(Role::Client, "a"));
    assert_eq!(call(&client, "127.0.0.1", port).await.unwrap(), "hello client/a");
}

async fn futures(count: usize, port: u16) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    streams
}

#[tokio::test]
async fn renewed_certificates_are_used_and_bad_ones_are_not() {
    let place = Place::new();
    let folder = place.good(Role::Coordinator, "c");
    let credentials = open(&folder);
    let port = server(credentials.clone()).await;
    let client = open(&place.good(Role::Client, "a"));
    assert!(!credentials.look().unwrap());

    // A new authority: its clients are believed from the next connection on, and the old ones no more.
    let next = Place::new();
    let identity = Identity::new(Role::Coordinator, "c").unwrap();
    let hosts = ["127.0.0.1".to_owned()];
    let issued = next.authority.issue(&identity, &hosts, Validity::days(1)).unwrap();
    issued.replace(&folder).unwrap();
    assert!(credentials.look().unwrap());
    assert!(call(&client, "127.0.0.1", port).await.is_err());
    let renewed = open(&next.good(Role::Client, "b"));
    assert_eq!(call(&renewed, "127.0.0.1", port).await.unwrap(), "hello client/b");

    // Somebody else's certificate, from the same authority.
    let stranger = next.good(Role::Client, "stranger");
    let own = tempfile::tempdir().unwrap();
    for file in [CERTIFICATE_FILE, KEY_FILE] {
        std::fs::copy(folder.join(file), own.path().join(file)).unwrap();
        std::fs::copy(stranger.join(file), folder.join(file)).unwrap();
    }
    assert!(matches!(credentials.look(), Err(FolderError::OtherIdentity { .. })));
    for file in [CERTIFICATE_FILE, KEY_FILE] {
        std::fs::copy(own.path().join(file), folder.join(file)).unwrap();
    }
    assert!(!credentials.look().unwrap());

    // Half a change, and nonsense: the last good one stays.
    std::fs::write(folder.join(KEY_FILE), "no key").unwrap();
    assert!(matches!(credentials.look(), Err(FolderError::Content { .. })));
    let other = next.good(Role::Worker, "w");
    std::fs::copy(other.join(KEY_FILE), folder.join(KEY_FILE)).unwrap();
    assert!(matches!(credentials.look(), Err(FolderError::Pair { .. })));
    std::fs::remove_file(folder.join(CERTIFICATE_FILE)).unwrap();
    assert!(matches!(credentials.look(), Err(FolderError::Unreadable { .. })));
    assert_eq!(call(&renewed, "127.0.0.1", port).await.unwrap(), "hello client/b");
}

#[test]
fn a_folder_that_cannot_be_used_says_what_to_do() {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};
    let place = Place::new();
    let folder = place.good(Role::Worker, "w");
    let root = place.folder.path().display().to_string();
    let told = |folder: &Path| {
        let mut error: &dyn std::error::Error = &Credentials::open(folder.to_owned()).unwrap_err();
        let mut text = error.to_string();
        while let Some(source) = error.source() {
            text = format!("{text}: {source}");
            error = source;
        }
        text.replace(&root, "DIR")
    };
    let mut all = vec![told(Path::new("DIR/none"))];
    let key = folder.join(KEY_FILE);
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    all.push(told(&folder));
    std::fs::set_permissions(&key, Permissions::from_mode(0o440)).unwrap();
    open(&folder);
    std::fs::write(folder.join(CA_FILE), "nothing").unwrap();
    all.push(told(&folder));
    // A certificate without a role: the authority's own.
    let authority = place.folder.path().join("authority");
    place.authority.write(&authority).unwrap();
    std::fs::copy(authority.join(CERTIFICATE_FILE), authority.join(CA_FILE)).unwrap();
    all.push(told(&authority));
    insta::assert_snapshot!(all.join("\n"));
    let again = place.authority.write(&authority).unwrap_err();
    assert!(matches!(again, AuthorityError::Exists { .. }));
    Authority::open(&authority).unwrap();
}
