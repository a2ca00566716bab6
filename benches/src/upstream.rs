//! A scripted inference server that is faster than any proxy: its replies are bytes made before.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::shapes::Shape;
use crate::wire;

/// Longest request that is read, in bytes.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// The replies of a shape, one for each turn of an episode.
#[derive(Debug)]
struct Script {
    turns: Vec<Vec<Vec<u8>>>,
    pace: Duration,
}

/// Serves `shape` on a free port of loopback.
pub(crate) async fn serve(shape: Shape) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let script = Arc::new(Script {
        turns: (0..shape.distinct_turns()).map(|turn| shape.reply(turn)).collect(),
        pace: Duration::from_millis(shape.pace_ms()),
    });
    tokio::spawn(async move {
        while let Ok((line, _)) = listener.accept().await {
            let script = Arc::clone(&script);
            tokio::spawn(async move {
                // A proxy that closes its connection ends it here.
                let _ = answer(line, &script).await;
            });
        }
    });
    Ok(address)
}

async fn answer(mut line: TcpStream, script: &Script) -> std::io::Result<()> {
    line.set_nodelay(true)?;
    let mut received = Vec::with_capacity(64 << 10);
    loop {
        let Some(request) = wire::message(&received) else {
            if received.len() > REQUEST_BYTES_MAX || line.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
            continue;
        };

        let is_call = received.starts_with(b"POST");
        // The history's turn stands in its length alone: requests only grow.
        let turn = if script.turns.len() > 1 { wire::turn(&received[..request]) } else { 0 };
        received.drain(..request);
        if is_call {
            send(&mut line, &script.turns[turn.min(script.turns.len() - 1)], script.pace).await?;
        } else {
            line.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}").await?;
        }
    }
}

async fn send(line: &mut TcpStream, pieces: &[Vec<u8>], pace: Duration) -> std::io::Result<()> {
    let mut next = tokio::time::Instant::now();
    for (at, piece) in pieces.iter().enumerate() {
        // No pause behind the last piece: the next request may be there already.
        if at > 0 && !pace.is_zero() {
            next += pace;
            tokio::time::sleep_until(next).await;
        }
        line.write_all(piece).await?;
    }
    Ok(())
}
