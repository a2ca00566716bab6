//! A proxy on the way that closes connections on which nothing passes for a while, as load
//! balancers do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// Bytes of one read.
const READ_BYTES: usize = 16 * 1024;
/// Time for the bytes that have come to be read.
const GRACE: Duration = Duration::from_millis(100);

/// Starts a proxy before `server` that cuts a connection after `silence` without a byte in either
/// direction. Returns its address.
pub async fn cut_after_silence(server: SocketAddr, silence: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    tokio::spawn(async move {
        while let Ok((agent, _)) = listener.accept().await {
            tokio::spawn(relay(agent, server, silence));
        }
    });
    address
}

async fn relay(agent: TcpStream, server: SocketAddr, silence: Duration) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    for socket in [&agent, &server] {
        socket.set_nodelay(true).expect("a fresh socket takes options");
    }
    let last = Arc::new(Mutex::new(Instant::now()));
    let ((from_agent, to_agent), (from_server, to_server)) =
        (agent.into_split(), server.into_split());
    let silent_until = || *last.lock().expect("no test panics here") + silence;
    let quiet = async {
        loop {
            tokio::time::sleep_until(silent_until()).await;
            // What came while this process stood still is read first.
            tokio::time::sleep(GRACE).await;
            if silent_until() + GRACE <= Instant::now() {
                return;
            }
        }
    };
    // Both halves are dropped at the end, which closes both connections.
    tokio::select! {
        _ = async { tokio::join!(
            pass(from_agent, to_server, Arc::clone(&last)),
            pass(from_server, to_agent, Arc::clone(&last)),
        ) } => {}
        () = quiet => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    last: Arc<Mutex<Instant>>,
) {
    let mut buffer = [0; READ_BYTES];
    while let Ok(read) = from.read(&mut buffer).await {
        *last.lock().expect("no test panics here") = Instant::now();
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
