//! A connection that has switched to another protocol: bytes both ways, unread, within bounds.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::http::Extensions;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::bounds::TUNNEL_PIECE_BYTES;
use crate::server::activity::CallPermit;

/// The place for what follows the switch of a connection. The task of the connection goes on with
/// it, so that the connection is counted and can be ended like any other.
#[derive(Debug, Clone, Default)]
pub struct Switched(Arc<Mutex<Option<Tunnel>>>);

impl Switched {
    /// The place that the listener left in a request.
    pub fn take_from(extensions: &mut Extensions) -> Self {
        extensions.remove().unwrap_or_default()
    }

    /// Leaves a tunnel for the task of the connection.
    pub fn set(&self, tunnel: Tunnel) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
    }

    /// The tunnel, if there was a switch.
    pub fn take(&self) -> Option<Tunnel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Both ends of a connection that switches.
#[derive(Debug)]
pub struct Tunnel {
    /// The connection of the agent.
    pub agent: OnUpgrade,
    /// The connection to the upstream.
    pub upstream: OnUpgrade,
    /// Longest time in which nothing passes.
    pub idle_wait: Duration,
    /// Resolves when the episode is closed.
    pub closed: oneshot::Receiver<()>,
    /// The place among the calls.
    pub _permit: CallPermit,
}

impl Tunnel {
    /// Passes bytes on, both ways, until an end closes, nothing passes for too long, or the episode
    /// is closed.
    pub async fn run(self) {
        let Self { agent, upstream, idle_wait, closed, _permit } = self;
        let (Ok(agent), Ok(upstream)) = tokio::join!(agent, upstream) else { return };
        let (from_agent, to_agent) = tokio::io::split(TokioIo::new(agent));
        let (from_upstream, to_upstream) = tokio::io::split(TokioIo::new(upstream));

        let last = LastPiece::new();
        let both_ways = async {
            tokio::try_join!(
                pass(from_agent, to_upstream, &last),
                pass(from_upstream, to_agent, &last)
            )
        };
        tokio::select! {
            // Either side may close the connection at any time.
            _ = both_ways => {}
            _ = closed => tracing::debug!("a WebSocket ends with its episode"),
            () = last.is_over(idle_wait) => tracing::debug!("nothing passes a WebSocket"),
        }
    }
}

/// Passes bytes on until they end, and then their end.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    last: &LastPiece,
) -> io::Result<()> {
    let mut piece = vec![0; TUNNEL_PIECE_BYTES];
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..count]).await?;
        to.flush().await?;
        last.passed();
    }
}

/// The time at which something passed last.
struct LastPiece {
    started: Instant,
    /// In ms after the start.
    at: AtomicU64,
}

impl LastPiece {
    fn new() -> Self {
        Self { started: Instant::now(), at: AtomicU64::new(0) }
    }

    fn passed(&self) {
        let at = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.at.store(at, Ordering::Relaxed);
    }

    /// Resolves once nothing has passed for `wait`.
    async fn is_over(&self, wait: Duration) {
        loop {
            let end = self.started + Duration::from_millis(self.at.load(Ordering::Relaxed)) + wait;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_passes_keeps_a_tunnel_open_and_silence_ends_it() {
        let (wait, last) = (Duration::from_millis(300), LastPiece::new());
        let (mut said, heard) = tokio::io::duplex(64);
        let (sink, _kept) = tokio::io::duplex(1 << 16);
        let talk = async {
            for _ in 0..8 {
                said.write_all(b"x").await.unwrap();
                tokio::time::sleep(wait / 4).await;
            }
            std::future::pending::<()>().await
        };
        tokio::select! {
            _ = pass(heard, sink, &last) => panic!("neither side has ended"),
            () = talk => unreachable!(),
            () = last.is_over(wait) => {}
        }
        assert!(last.started.elapsed() > wait * 2, "{:?}", last.started.elapsed());
    }
}
