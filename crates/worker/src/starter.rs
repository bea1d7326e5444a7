//! The thread that starts children.
//!
//! The kernel kills an executor when the *thread* that started it ends (`PR_SET_PDEATHSIG`), and a
//! thread of an async runtime may end while the process goes on. This one never does: its end is the
//! process's end.

use std::{io, sync::OnceLock, thread};

use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::{mpsc, oneshot},
};

/// Starts that may wait; each takes a few milliseconds.
const WAITING: usize = 16;

struct Order {
    command: Command,
    /// The runtime that reaps the child.
    runtime: Handle,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// Starts a child. When the caller no longer waits, the child is dropped.
pub(crate) async fn start(command: Command) -> io::Result<Child> {
    let (reply, started) = oneshot::channel();
    let order = Order { command, runtime: Handle::current(), reply };
    let gone = || io::Error::other("the thread that starts processes is gone");
    orders()?.send(order).await.map_err(|_| gone())?;
    started.await.map_err(|_| gone())?
}

fn orders() -> io::Result<mpsc::Sender<Order>> {
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    if let Some(orders) = ORDERS.get() {
        return Ok(orders.clone());
    }
    let (orders, waiting) = mpsc::channel(WAITING);
    thread::Builder::new().name("starter".to_owned()).spawn(move || obey(waiting))?;
    // Whoever comes second finds the first one's, and the thread of its own ends without a child.
    Ok(ORDERS.get_or_init(|| orders).clone())
}

fn obey(mut orders: mpsc::Receiver<Order>) {
    while let Some(Order { mut command, runtime, reply }) = orders.blocking_recv() {
        let _inside = runtime.enter();
        drop(reply.send(command.spawn()));
    }
}
