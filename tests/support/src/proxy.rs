//! A TCP proxy on the loopback interface that delays, stalls and cuts connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Interval at which a stalled connection checks whether the stall has ended.
const PERIOD: Duration = Duration::from_millis(5);

/// A proxy before a server. It ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    /// Time by which the proxy delays each byte.
    delay: Duration,
    is_stalled: AtomicBool,
    is_cut: AtomicBool,
    /// Both ends of each connection.
    connections: Mutex<Vec<[TcpStream; 2]>>,
}

impl Proxy {
    /// Starts a proxy before `target` that delays each byte by `delay` in both directions.
    ///
    /// # Panics
    /// Panics if the system has no free port.
    pub fn start(target: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let (is_stalled, is_cut, connections) = Default::default();
        let shared = Arc::new(Shared { target, delay, is_stalled, is_cut, connections });
        let accepting = Arc::clone(&shared);
        spawn(move || accepting.accept(&listener));
        Self { address, shared }
    }

    /// Returns the address at which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Passes no more bytes on. Connections stay open.
    pub fn stall(&self) {
        self.shared.is_stalled.store(true, Ordering::SeqCst);
    }

    /// Closes all connections, and each later one at once.
    pub fn cut(&self) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
        self.shared.lock().drain(..).for_each(close);
    }

    /// Closes the newest connection alone.
    pub fn cut_newest(&self) {
        self.shared.lock().pop().into_iter().for_each(close);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn close(connection: [TcpStream; 2]) {
    for socket in connection {
        let _ = socket.shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<[TcpStream; 2]>> {
        self.connections.lock().expect("no thread panics with the lock")
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((near, _)) = listener.accept() {
            if self.is_cut.load(Ordering::SeqCst) {
                return;
            }
            // A server that has ended closes the connection.
            let _ = self.join(near);
        }
    }

    fn join(self: &Arc<Self>, near: TcpStream) -> std::io::Result<()> {
        let far = TcpStream::connect(self.target)?;
        for (from, to) in [(&near, &far), (&far, &near)] {
            to.set_nodelay(true)?;
            let (sender, receiver) = channel();
            let (from, to, shared) = (from.try_clone()?, to.try_clone()?, Arc::clone(self));
            spawn(move || receive(from, &sender));
            spawn(move || shared.send(to, &receiver));
        }
        self.lock().push([near, far]);
        Ok(())
    }

    /// Sends what has arrived, each time after the delay.
    fn send(&self, mut to: TcpStream, arrived: &Receiver<(Instant, Vec<u8>)>) {
        while let Ok((at, bytes)) = arrived.recv() {
            sleep((at + self.delay).saturating_duration_since(Instant::now()));
            while self.is_stalled.load(Ordering::SeqCst) && !self.is_cut.load(Ordering::SeqCst) {
                sleep(PERIOD);
            }
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}

fn receive(mut from: TcpStream, arrived: &Sender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        if arrived.send((Instant::now(), buffer[..bytes].to_vec())).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a connection through a proxy to a server that sends all bytes back.
    fn echo(delay: Duration) -> (Proxy, TcpStream) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::start(server.local_addr().unwrap(), delay);
        let client = TcpStream::connect(proxy.address()).unwrap();
        let served = server.accept().unwrap().0;
        spawn(move || std::io::copy(&mut &served, &mut &served));
        (proxy, client)
    }

    #[test]
    fn bytes_arrive_after_the_delay() {
        let (_proxy, mut client) = echo(Duration::from_millis(20));
        let start = Instant::now();
        client.write_all(b"abc").unwrap();
        let mut returned = [0; 3];
        client.read_exact(&mut returned).unwrap();
        assert_eq!(&returned, b"abc");
        assert!(start.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn no_byte_passes_a_stall_or_a_cut() {
        let (proxy, mut client) = echo(Duration::ZERO);
        proxy.stall();
        client.write_all(b"abc").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(client.read(&mut [0; 3]).is_err());
        proxy.cut_newest();
        assert!(matches!(client.read(&mut [0; 3]), Ok(0) | Err(_)));
        proxy.cut();
        let refused = TcpStream::connect(proxy.address()).and_then(|mut late| late.read(&mut [0; 3]));
        assert!(matches!(refused, Ok(0) | Err(_)));
    }
}
