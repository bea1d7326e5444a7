//! A network between a worker and its coordinator that is as bad as a test wants it: slow, in
//! pieces, one-way, half-open, cut.
//!
//! It knows nothing of what travels. Invariant: bytes of a direction arrive in their order or not
//! at all; what is held arrives when it is let go, unless the connection was cut.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

const LOOK: Duration = Duration::from_millis(2);
/// Bytes taken from a connection at once.
const PIECE: usize = 64 << 10;
/// Pieces that are on their way in one direction.
const PIECES: usize = 256;

/// Which way bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the worker to the coordinator: heartbeats, blobs, results.
    Up,
    /// From the coordinator to the worker: leases and answers.
    Down,
}

/// What happens to one direction.
struct Lane {
    delay_ms: AtomicU64,
    /// What was sent since then waits.
    held_since: Mutex<Option<Instant>>,
    /// Bytes that were made to wait.
    held_bytes: AtomicU64,
}

impl Lane {
    const fn new() -> Self {
        Self {
            delay_ms: AtomicU64::new(0),
            held_since: Mutex::new(None),
            held_bytes: AtomicU64::new(0),
        }
    }

    fn held_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.held_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holds(&self, sent: Instant) -> bool {
        self.held_since().is_some_and(|since| sent >= since)
    }
}

struct Weather {
    target: SocketAddr,
    lanes: [Lane; 2],
    /// Bytes written at once.
    piece: AtomicUsize,
    /// New connections are dropped.
    refuses: AtomicBool,
    over: AtomicBool,
    cuts: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
}

/// See the module's documentation.
pub struct Proxy {
    address: SocketAddr,
    weather: Arc<Weather>,
}

impl Proxy {
    /// A proxy on a free port of this machine; at first it only passes on.
    pub fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let weather = Arc::new(Weather {
            target: target.parse().unwrap(),
            lanes: [Lane::new(), Lane::new()],
            piece: AtomicUsize::new(PIECE),
            refuses: AtomicBool::new(false),
            over: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let shared = Arc::clone(&weather);
        thread::spawn(move || shared.accept(&listener));
        Self { address, weather }
    }

    /// Where workers connect.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything arrives this much later.
    pub fn delay(&self, way: Way, delay: Duration) {
        let delay = u64::try_from(delay.as_millis()).unwrap();
        self.weather.lane(way).delay_ms.store(delay, Ordering::SeqCst);
    }

    /// At most this many bytes are written at once.
    pub fn piecewise(&self, bytes: usize) {
        self.weather.piece.store(bytes, Ordering::SeqCst);
    }

    /// What is sent from now on waits, while connections stay open. What is on its way arrives.
    pub fn hold(&self, way: Way) {
        *self.weather.lane(way).held_since() = Some(Instant::now());
    }

    /// Whether something waits, or waited.
    pub fn held_something(&self, way: Way) -> bool {
        self.weather.lane(way).held_bytes.load(Ordering::SeqCst) > 0
    }

    /// What is held goes on.
    pub fn let_go(&self, way: Way) {
        *self.weather.lane(way).held_since() = None;
    }

    /// Breaks every connection; what is on its way is lost. New connections are taken.
    pub fn cut(&self) {
        for connection in self.weather.connections().drain(..) {
            // It may be closed already.
            drop(connection.shutdown(Shutdown::Both));
            self.weather.cuts.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Connections that were broken, each side counted.
    pub fn cuts(&self) -> u64 {
        self.weather.cuts.load(Ordering::SeqCst)
    }

    /// Breaks every connection and takes no new one until [`Proxy::open`].
    pub fn close(&self) {
        self.weather.refuses.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Takes connections again.
    pub fn open(&self) {
        self.weather.refuses.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.weather.over.store(true, Ordering::SeqCst);
        self.close();
        // Wakes the thread that accepts, which sees that it is over.
        drop(TcpStream::connect(self.address));
    }
}

impl Weather {
    const fn lane(&self, way: Way) -> &Lane {
        &self.lanes[way as usize]
    }

    fn connections(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for worker in listener.incoming() {
            if self.is_over() {
                return;
            }
            let Ok(worker) = worker else { continue };
            if self.refuses.load(Ordering::SeqCst) {
                continue;
            }
            // Nobody there: the worker sees its connection closed.
            let Ok(coordinator) = TcpStream::connect(self.target) else { continue };
            for connection in [&worker, &coordinator] {
                connection.set_nodelay(true).unwrap();
                self.connections().push(connection.try_clone().unwrap());
            }
            let (back, forth) = (coordinator.try_clone().unwrap(), worker.try_clone().unwrap());
            self.pump(Way::Up, worker, coordinator);
            self.pump(Way::Down, back, forth);
        }
    }

    fn pump(self: &Arc<Self>, way: Way, from: TcpStream, to: TcpStream) {
        let (sender, pieces) = sync_channel(PIECES);
        let weather = Arc::clone(self);
        thread::spawn(move || weather.take(way, from, &sender));
        let weather = Arc::clone(self);
        thread::spawn(move || weather.give(way, &pieces, to));
    }

    fn take(&self, way: Way, mut from: TcpStream, pieces: &SyncSender<(Instant, Vec<u8>)>) {
        let (lane, mut buffer) = (self.lane(way), vec![0; PIECE]);
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let sent = Instant::now();
            if lane.holds(sent) {
                lane.held_bytes.fetch_add(length as u64, Ordering::SeqCst);
            }
            if pieces.send((sent, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    }

    /// Writes what was taken when its time has come. A side that went away ends it.
    fn give(&self, way: Way, pieces: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
        let lane = self.lane(way);
        for (sent, bytes) in pieces {
            let delay = Duration::from_millis(lane.delay_ms.load(Ordering::SeqCst));
            thread::sleep((sent + delay).saturating_duration_since(Instant::now()));
            while lane.holds(sent) {
                if self.is_over() {
                    return;
                }
                thread::sleep(LOOK);
            }
            for piece in bytes.chunks(self.piece.load(Ordering::SeqCst)) {
                if to.write_all(piece).is_err() {
                    return;
                }
            }
        }
        drop(to.shutdown(Shutdown::Write));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody who says everything twice.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut byte = [0];
                while connection.read_exact(&mut byte).is_ok() {
                    connection.write_all(&[byte[0], byte[0]]).unwrap();
                }
            }
        });
        address
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(proxy.address).unwrap()
    }

    fn answer(connection: &mut TcpStream) -> Option<[u8; 2]> {
        let mut answer = [0; 2];
        connection.read_exact(&mut answer).is_ok().then_some(answer)
    }

    #[test]
    fn what_is_held_waits_and_what_is_let_go_arrives() {
        let proxy = Proxy::start(&echo().to_string());
        let mut connection = connect(&proxy);
        connection.write_all(b"a").unwrap();
        assert_eq!(answer(&mut connection), Some(*b"aa"));
        proxy.hold(Way::Down);
        connection.write_all(b"b").unwrap();
        while !proxy.held_something(Way::Down) {
            thread::sleep(LOOK);
        }
        connection.set_nonblocking(true).unwrap();
        assert_eq!(answer(&mut connection), None);
        connection.set_nonblocking(false).unwrap();
        proxy.let_go(Way::Down);
        assert_eq!(answer(&mut connection), Some(*b"bb"));
    }

    #[test]
    fn a_cut_connection_ends_and_a_closed_proxy_takes_none() {
        let proxy = Proxy::start(&echo().to_string());
        let mut first = connect(&proxy);
        first.write_all(b"a").unwrap();
        assert_eq!(answer(&mut first), Some(*b"aa"));
        proxy.close();
        assert_eq!(answer(&mut first), None);
        assert_eq!(proxy.cuts(), 2);
        let mut refused = connect(&proxy);
        assert_eq!(answer(&mut refused), None);
        proxy.open();
        proxy.piecewise(1);
        let mut second = connect(&proxy);
        second.write_all(b"xy").unwrap();
        assert_eq!((answer(&mut second), answer(&mut second)), (Some(*b"xx"), Some(*b"yy")));
    }
}
