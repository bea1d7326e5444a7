//! Large blobs over loopback: the product's own way (a worker's client, a coordinator's service,
//! its folder of blobs, its digests) beside raw TCP with the same bytes.
//!
//! `tensors MIB ROUNDS FOLDER`: prints one JSON line for each figure, in MiB a second. All ways take
//! turns in every round. Called by `cargo xtask bench tensors`.

use std::{
    error::Error,
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use orchestrator_coordinator::{Config, Coordinator};
use orchestrator_proto::{
    Blocking, CHUNK_BYTES, connect_by,
    domain::Blob,
    v1::{self, coordinator_client::CoordinatorClient},
};
use orchestrator_tls::{Authority, Credentials, Identity, Role, Validity};
use orchestrator_types::{ByteCount, Digest};
use orchestrator_worker::Client;
use tonic::transport::Channel;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    // Cargo adds `--bench`.
    let [_, mib, rounds, folder, ..] = arguments.as_slice() else {
        return Err("usage: tensors MIB ROUNDS FOLDER".into());
    };
    let (mib, rounds): (usize, u32) = (mib.parse()?, rounds.parse()?);
    let folder = tempfile::tempdir_in(folder)?;
    let bytes = tensor(mib << 20);
    let runtime = tokio::runtime::Runtime::new()?;
    let bench = runtime.block_on(Bench::start(&folder.path().join("plain"), &bytes, false))?;
    let secured = runtime.block_on(Bench::start(&folder.path().join("tls"), &bytes, true))?;
    for round in 0..rounds {
        let tell = |way: &str, seconds: f64| {
            let line = serde_json::json!({
                "way": way, "round": round, "mib_per_second": mib as f64 / seconds,
            });
            writeln!(std::io::stdout(), "{line}")
        };
        tell("tcp", raw(&bytes)?)?;
        tell("stage", bench.stage(&runtime)?)?;
        tell("tcp", raw(&bytes)?)?;
        tell("fetch", bench.fetch(&runtime)?)?;
        tell("tcp", raw(&bytes)?)?;
        tell("memory", bench.fetch_into_memory(&runtime)?)?;
        bench.forget()?;
        tell("stage-tls", secured.stage(&runtime)?)?;
        tell("fetch-tls", secured.fetch(&runtime)?)?;
        secured.forget()?;
        let digest = || {
            std::hint::black_box(Digest::of(&bytes));
            Ok(())
        };
        tell("digest", timed(digest)?)?;
        tell("file", timed(|| write(&folder.path().join("file"), &bytes))?)?;
    }
    runtime.block_on(bench.coordinator.shutdown());
    runtime.block_on(secured.coordinator.shutdown());
    Ok(())
}

/// Bytes as they come out of a model: they do not repeat.
fn tensor(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

fn timed(work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// What a disk, or a file system in memory, does with these bytes.
fn write(path: &Path, bytes: &[u8]) -> Outcome<()> {
    let mut file = File::create(path)?;
    for chunk in bytes.chunks(CHUNK_BYTES) {
        file.write_all(chunk)?;
    }
    file.sync_all()?;
    drop(file);
    Ok(fs::remove_file(path)?)
}

/// From one thread's memory into another's, with one byte back at the end.
fn raw(bytes: &[u8]) -> Outcome<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let size = bytes.len();
    let receiving = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut left = size;
        while left > 0 {
            left -= stream.read(&mut buffer)?;
        }
        stream.write_all(&[1])
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let seconds = timed(|| {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            stream.write_all(chunk)?;
        }
        Ok(stream.read_exact(&mut [0])?)
    })?;
    receiving.join().map_err(|_| "the receiving thread panicked")??;
    Ok(seconds)
}

/// Those of a coordinator and of a worker.
fn certificates(folder: &Path) -> Outcome<(Credentials, Credentials)> {
    let authority = Authority::new(Validity::days(1))?;
    let issue = |role: Role, hosts: &[String]| -> Outcome<Credentials> {
        let identity = Identity::new(role, "bench")?;
        let own = folder.join(role.name());
        authority.issue(&identity, hosts, Validity::days(1))?.write(&own)?;
        Ok(Credentials::open(own)?)
    };
    let hosts = ["127.0.0.1".to_owned()];
    Ok((issue(Role::Coordinator, &hosts)?, issue(Role::Worker, &[])?))
}

struct Bench {
    coordinator: Coordinator,
    channel: Channel,
    client: Client,
    blob: Blob,
    source: PathBuf,
    target: PathBuf,
}

impl Bench {
    async fn start(folder: &Path, bytes: &[u8], secured: bool) -> Outcome<Self> {
        fs::create_dir(folder)?;
        let (source, target) = (folder.join("source"), folder.join("target"));
        fs::write(&source, bytes)?;
        let tls = if secured { Some(certificates(folder)?) } else { None };
        let (own, worker) = tls.unzip();
        let config = Config { tls: own, ..Config::local(folder.join("state")) };
        let coordinator = Coordinator::start(config).await?;
        let scheme = if secured { "https" } else { "http" };
        let dial = worker.map(orchestrator_tls::dial).unwrap_or_default();
        let channel = connect_by(&dial, &format!("{scheme}://{}", coordinator.address())).await?;
        let client = Client::new(channel.clone(), Blocking::Threads);
        let size_bytes = ByteCount::bytes(bytes.len() as u64);
        let blob = Blob { digest: Digest::of(bytes), size_bytes };
        Ok(Self { coordinator, channel, client, blob, source, target })
    }

    fn stage(&self, runtime: &tokio::runtime::Runtime) -> Outcome<f64> {
        timed(|| Ok(runtime.block_on(self.client.stage(self.blob, &self.source))?))
    }

    /// Removes what was staged and fetched: the next round makes new files.
    fn forget(&self) -> Outcome<()> {
        let name = self.blob.digest.to_string();
        let blobs = self.coordinator.state().join("blobs");
        fs::remove_file(blobs.join(&name[..2]).join(&name))?;
        Ok(fs::remove_file(&self.target)?)
    }

    fn fetch(&self, runtime: &tokio::runtime::Runtime) -> Outcome<f64> {
        let fetched = || Ok(runtime.block_on(self.client.fetch(self.blob.digest, &self.target))?);
        timed(|| fetched().map(drop))
    }

    /// What gRPC does without the client's digest and file.
    fn fetch_into_memory(&self, runtime: &tokio::runtime::Runtime) -> Outcome<f64> {
        let digest = self.blob.digest.as_bytes().to_vec();
        let fetch = async || -> Outcome<()> {
            let mut client = CoordinatorClient::new(self.channel.clone());
            let request = v1::FetchRequest { digest };
            let mut chunks = client.fetch(request).await?.into_inner();
            let mut left = self.blob.size_bytes.as_u64();
            while let Some(chunk) = chunks.message().await? {
                left -= std::hint::black_box(chunk.data).len() as u64;
            }
            if left == 0 { Ok(()) } else { Err("a part is missing".into()) }
        };
        timed(|| runtime.block_on(fetch()))
    }
}
