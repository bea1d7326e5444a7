//! Who calls without a right: in plaintext, with certificates of others, of another role, or with
//! somebody else's session.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use orchestrator_proto::{connect_by, v1, v1::coordinator_client::CoordinatorClient};
use orchestrator_tests::{
    Home,
    cluster::{Cluster, Setup},
    small_evaluation,
};
use orchestrator_tls::{Authority, Credentials, Identity, Role, Validity, dial};
use tonic::{Response, Status, transport::Channel};

use super::{Rows, Seen};

pub(super) fn attack(rows: &mut Rows) {
    before_the_start(rows);
    let mut cluster = Cluster::start(Setup { certified: true, ..Setup::default() });
    cluster.start_worker("a");
    for (role, name) in [("worker", "mallory"), ("client", "eve")] {
        let issued = cluster.home().run(&["certs", "issue", role, name]);
        assert_eq!(issued.code, Some(0), "{issued:#?}");
    }
    as_a_client(rows, &cluster);
    as_a_worker(rows, &cluster);
}

/// Services that would let others in, or that nobody could know.
fn before_the_start(rows: &mut Rows) {
    let home = Home::default();
    assert_eq!(home.run(&["certs", "init"]).code, Some(0));
    let coordinator = ["coordinator", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let mut start = |attack: &str, made: &str, arguments: &[&str]| {
        rows.add(attack, made, &Seen::of(&home, &home.run(arguments)));
    };
    start(
        "plaintext from outside",
        "`coordinator --listen 0.0.0.0:0`",
        &["coordinator", "--listen", "0.0.0.0:0"],
    );
    start(
        "plaintext from outside: metrics",
        "`coordinator --http 0.0.0.0:0`",
        &["coordinator", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"],
    );
    start(
        "plaintext to another machine",
        "`worker --coordinator http://192.0.2.1:7070`",
        &["worker", "--coordinator", "http://192.0.2.1:7070"],
    );
    start(
        "certificates and plaintext at once",
        "`--tls` and `--insecure-plaintext`",
        &[&coordinator[..], &["--tls", "certs/coordinator", "--insecure-plaintext"]].concat(),
    );
    start(
        "certificate of another role: coordinator",
        "the worker's folder",
        &[&coordinator[..], &["--tls", "certs/worker"]].concat(),
    );
    start(
        "certificate of another role: worker",
        "the client's folder",
        &["worker", "--coordinator", "https://127.0.0.1:1", "--tls", "certs/client"],
    );
    let with = |folder: &'static str| [&coordinator[..], &["--tls", folder]].concat();
    start("no certificates where they should be", "an empty folder", &with("."));
    let spoil = |name: &str, spoil: &dyn Fn(&Path)| {
        let folder = home.path().join("certs").join(name);
        fs::create_dir(&folder).unwrap();
        for file in ["tls.crt", "tls.key", "ca.crt"] {
            fs::copy(home.path().join("certs/coordinator").join(file), folder.join(file)).unwrap();
        }
        spoil(&folder);
    };
    spoil("open", &|folder| {
        fs::set_permissions(folder.join("tls.key"), Permissions::from_mode(0o644)).unwrap();
    });
    start("key that everybody can read", "mode 0644", &with("certs/open"));
    spoil("nonsense", &|folder| fs::write(folder.join("tls.key"), "no key").unwrap());
    start("key that is none", "`no key`", &with("certs/nonsense"));
    spoil("mixed", &|folder| {
        let other = home.path().join("certs/worker/tls.key");
        fs::copy(other, folder.join("tls.key")).unwrap();
    });
    start("key of another certificate", "the worker's", &with("certs/mixed"));
    spoil("rootless", &|folder| {
        fs::copy(home.path().join("certs/ca/tls.crt"), folder.join("tls.crt")).unwrap();
    });
    start("certificate without a role", "the authority's own", &with("certs/rootless"));

    let authority = Authority::open(&home.path().join("certs/ca")).unwrap();
    let identity = Identity::new(Role::Client, "late").unwrap();
    let day = Validity::days(1);
    let from = time::macros::datetime!(2020-01-01 0:00 UTC);
    let old = Validity { from, until: from + (day.until - day.from) };
    let issued = authority.issue(&identity, &[], old).unwrap();
    issued.write(&home.path().join("certs/late")).unwrap();
    start(
        "expired certificate",
        "of the year 2020; a server that meets one is tested in `orchestrator-tls`",
        &["nodes", "--coordinator", "https://127.0.0.1:1", "--tls", "certs/late"],
    );
}

/// The coordinator still answers who may ask.
fn afterwards(cluster: &Cluster) -> &'static str {
    assert_eq!(cluster.json(&["nodes"])["workers"].as_array().unwrap().len(), 1);
    "it answers others"
}

fn as_a_client(rows: &mut Rows, cluster: &Cluster) {
    let home = cluster.home();
    let made = home.run(&["certs", "init", "foreign"]);
    assert_eq!(made.code, Some(0), "{made:#?}");
    let plaintext = format!("http://{}", cluster.grpc());
    // How the connection ends is a race; what to do about it is not.
    let outcome = home.run(&["nodes", "--coordinator", &plaintext]);
    let seen = Seen::with(home, &outcome, "called by https://");
    rows.add("plaintext to a port with TLS", "`http://`", &seen.and(afterwards(cluster)));

    let ask = |tls: &str| cluster.run(&["nodes", "--tls", tls]);
    let seen = Seen::with(home, &ask("foreign/client"), "authority that ca.crt does not hold");
    rows.add("foreign CA", "of another `certs init`", &seen.and(afterwards(cluster)));
    fs::copy(home.path().join("certs/ca/tls.crt"), home.path().join("foreign/client/ca.crt"))
        .unwrap();
    let seen = Seen::with(home, &ask("foreign/client"), "does not believe");
    rows.add("foreign CA that believes ours", "our `ca.crt`", &seen.and(afterwards(cluster)));
    let seen = Seen::of(home, &ask("certs/worker"));
    rows.add("wrong role: a worker that looks", "`nodes`", &seen.and(afterwards(cluster)));

    let evaluation = small_evaluation(home, 12, "[auto]");
    let submit = ["submit", evaluation.to_str().unwrap(), "--detach"];
    let seen = Seen::of(home, &cluster.run(&[&submit[..], &["--tls", "certs/worker"]].concat()));
    rows.add("wrong role: a worker that submits", "`submit`", &seen.and(afterwards(cluster)));
    let run = cluster.run(&submit).stdout;
    let outcome = cluster.run(&["cancel", run.trim(), "--tls", "certs/eve"]);
    rows.add("somebody else's run", "`cancel`", &Seen::of(home, &outcome).and(afterwards(cluster)));
}

/// A connection with the certificates in `folder`.
async fn connect(cluster: &Cluster, folder: &str) -> CoordinatorClient<Channel> {
    let folder = cluster.home().path().join("certs").join(folder);
    let credentials = Credentials::open(folder).unwrap();
    CoordinatorClient::new(connect_by(&dial(credentials), &cluster.url()).await.unwrap())
}

fn as_a_worker(rows: &mut Rows, cluster: &Cluster) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let nodes = cluster.json(&["nodes"]);
    let stolen = nodes["workers"][0]["session"].as_str().unwrap().to_owned();
    let identity = Identity::new(Role::Worker, "mallory").unwrap();
    let own = identity.session("s").to_string();
    let mut refused = |attack: &str, made: &str, status: &Status| {
        let seen = Seen {
            answer: format!("{:?}", status.code()),
            said: status.message().replace(&stolen, "SESSION"),
            afterwards: String::new(),
        };
        rows.add(attack, made, &seen.and(afterwards(cluster)));
    };
    let register = |session: &str| v1::RegisterRequest {
        session: session.to_owned(),
        build: orchestrator_proto::BUILD.to_owned(),
        protocol_min: orchestrator_proto::PROTOCOL_MIN,
        protocol_max: orchestrator_proto::PROTOCOL_VERSION,
        node: "a".to_owned(),
        libtorch: "2.11.0".to_owned(),
        slices: vec![v1::Slice {
            id: "a.0".to_owned(),
            device: "cpu".to_owned(),
            threads: 1,
            memory_bytes: 1 << 30,
        }],
        ..v1::RegisterRequest::default()
    };
    runtime.block_on(async {
        let mut client = connect(cluster, "client").await;
        let error = client.register(register("s")).await.unwrap_err();
        refused("wrong role: a client that works", "`Register`", &error);

        let mut mallory = connect(cluster, "mallory").await;
        let session = stolen.clone();
        let heartbeat = v1::HeartbeatRequest { session: session.clone(), attempts: Vec::new() };
        refused("stolen session", "`Heartbeat`", &error_of(mallory.heartbeat(heartbeat).await));
        let lease = v1::LeaseRequest {
            session: session.clone(),
            slice: "a.0".to_owned(),
            ..v1::LeaseRequest::default()
        };
        refused("stolen session", "`Lease`", &error_of(mallory.lease(lease).await));
        let commit = v1::CommitRequest { session: session.clone(), finished: Vec::new() };
        refused("stolen session", "`Commit`", &error_of(mallory.commit(commit).await));
        let fail = v1::FailRequest {
            session: session.clone(),
            run: "r".to_owned(),
            failure: Some(v1::Failure { class: 1, message: "x".to_owned() }),
            ..v1::FailRequest::default()
        };
        refused("stolen session", "`Fail`", &error_of(mallory.fail(fail).await));
        let goodbye = v1::GoodbyeRequest { session: session.clone(), reason: "x".to_owned() };
        refused("stolen session", "`Goodbye`", &error_of(mallory.goodbye(goodbye).await));
        let again = mallory.register(register(&session)).await;
        refused("stolen session", "`Register`", &error_of(again));
        let named = mallory.register(register(&own)).await;
        refused("another worker's name", "`Register` as `a`", &error_of(named));
        let nobody = v1::HeartbeatRequest { session: "s".to_owned(), attempts: Vec::new() };
        let audit = std::fs::read_to_string(cluster.state().join("audit.jsonl")).unwrap();
        for call in ["heartbeat", "lease", "commit", "fail", "goodbye", "register"] {
            let noted = |line: &str| {
                line.contains("worker/mallory")
                    && line.contains(&format!("\"call\":\"{call}\""))
                    && line.contains("is not one of")
            };
            assert!(audit.lines().any(noted), "{call} is not noted:\n{audit}");
        }
        refused("session of nobody", "`Heartbeat`", &error_of(mallory.heartbeat(nobody).await));
    });
}

fn error_of<T>(answer: Result<Response<T>, Status>) -> Status {
    answer.err().expect("it was answered")
}
