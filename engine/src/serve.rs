//! The HTTP server in front of the engine thread.
//!
//! A call passes these rooms:
//! - `access`: who is answered.
//! - `routes`: the table of all routes, by which a call finds its handler. It alone imports
//!   handlers.
//! - `calls`: calls and replies in the form of vLLM. The crate `http` has the accept loop, the kind
//!   of table that `routes` is, and how queries and bodies are read.
//! - `chat`, `completions`, `generate`, `translation`, `sglang`: handlers that sample. They read
//!   their fields and what `generation` reads for all of them, and submit their choices.
//! - `engine_client`: the bounded queue to the engine thread. The outputs come back as one reply or
//!   as events.
//! - `trainer`, `lora`: handlers of weights, pauses and adapters.
//! - `prefix`: the sampled replies of chats, which later prompts start with.
//!
//! `state` holds what all connections share.

mod access;
mod batch;
mod calls;
mod chat;
mod completions;
mod cors;
mod engine_client;
mod generate;
mod generation;
mod lora;
mod metrics;
mod models;
mod openapi;
mod prefix;
mod render;
mod responses;
mod route;
mod routes;
mod sglang;
mod state;
mod status;
mod tokenize;
mod trainer;
mod translation;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::bounds::{HEAD_WAIT, IDLE_WAIT};
use http::server::activity::AgentWaits;
use http::server::edge;
use http::server::listen::{self, ClientRules, ConnectionBounds, Listener};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Engine;
use crate::bounds::{
    CONNECTIONS_MAX, LAST_STEP_WAIT, STALL_WAIT, STEP_LOOK_EVERY, STOP_WAIT, STREAMS_MAX,
};
use crate::core::status::SharedStatus;
pub use access::Access;
use calls::{ApiError, HttpReply, error_reply};
use state::ServerState;

/// Serves the engine on `listener` to the callers of `access` until `shutdown` completes. Replies
/// under way then have five seconds to finish.
///
/// # Errors
/// The engine thread could not be started.
pub async fn serve(
    listener: TcpListener,
    engine: Engine,
    access: Access,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let Engine { core, info: card, stats, status: board, updates, .. } = engine;
    let watching = tokio::spawn(watch_steps(Arc::clone(&board)));
    let last_look = Arc::clone(&board);
    let (state, receiver) = ServerState::new(card, board, stats, updates, access);
    let state = Arc::new(state);
    let (running, ended) = oneshot::channel::<Infallible>();
    let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
        // Dropped when the thread ends, also by a panic.
        let _running = running;
        core.run_to_end(receiver);
    })?;

    let stopping = Arc::clone(&state);
    let shutdown = async move {
        shutdown.await;
        // A call that waits for a trainer would hold the shutdown up: the trainer may never come.
        stopping.updates.waits.stop();
        // So would a reply that nobody waits for.
        stopping.responses.stop();
        Instant::now() + STOP_WAIT
    };
    let answer = move |request| routes::answer(Arc::clone(&state), request);
    let service = edge::service(answer, panicked_reply);
    listen::serve(listener_at(listener), service, shutdown).await;

    // The state and with it the last sender is gone, so the thread ends after its current step. A
    // device that hangs never ends it, and the process ends without.
    let wait = if last_look.watch.is_over() { Duration::ZERO } else { LAST_STEP_WAIT };
    let has_ended = tokio::time::timeout(wait, ended).await.is_ok();
    watching.abort();
    if !has_ended {
        tracing::error!("the engine thread still waits for a step; the process ends without it");
    } else if thread.join().is_err() {
        tracing::error!("the engine thread panicked");
    }
    Ok(())
}

/// Says in the log when the device hangs, and when it goes on.
async fn watch_steps(status: Arc<SharedStatus>) {
    let Some(limit) = status.watch.limit() else { return };
    let mut hung = false;
    loop {
        tokio::time::sleep((limit / 4).min(STEP_LOOK_EVERY)).await;
        let is_over = status.watch.is_over();
        match (hung, is_over) {
            (false, true) => tracing::error!(
                seconds = limit.as_secs_f64(),
                "the GPU hangs: a step has not ended for so long; new calls are refused"
            ),
            (true, false) => tracing::warn!("the GPU goes on; new calls are taken again"),
            _ => {}
        }
        hung = is_over;
    }
}

/// The listener at a socket, with the engine's bounds. A client that shuts its writing side is
/// taken for one that is gone, as by vLLM: no token is sampled for it.
fn listener_at(socket: TcpListener) -> Listener {
    let bounds = ConnectionBounds {
        connections_max: CONNECTIONS_MAX,
        per_peer_max: CONNECTIONS_MAX,
        waits: AgentWaits { head: HEAD_WAIT, idle: IDLE_WAIT, stall: STALL_WAIT },
    };
    let rules = ClientRules { streams_max: STREAMS_MAX, may_half_close: false };
    Listener { socket: socket.into(), tls: None, bounds, rules }
}

/// The reply to a call whose handler panicked.
fn panicked_reply() -> HttpReply {
    error_reply(&ApiError::internal())
}

#[cfg(test)]
mod tests;
