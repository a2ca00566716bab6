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

use std::future::Future;
use std::io;
use std::sync::Arc;

use http::bounds::{HEAD_WAIT, IDLE_WAIT};
use http::server::activity::AgentWaits;
use http::server::edge;
use http::server::listen::{self, ClientRules, ConnectionBounds, Listener};
use tokio::net::TcpListener;
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::Engine;
use crate::bounds::{CONNECTIONS_MAX, STALL_WAIT, STOP_WAIT, STREAMS_MAX};
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
    let (state, receiver) = ServerState::new(card, board, stats, updates, access);
    let state = Arc::new(state);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || core.run_to_end(receiver))?;

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

    // The state and with it the last sender is gone, so the thread ends after its current step.
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    if panicked(&joined) {
        tracing::error!("the engine thread panicked");
    }
    Ok(())
}

/// True if the thread panicked. A runtime that ends first cancels the wait, which says nothing of
/// the thread.
fn panicked(joined: &Result<std::thread::Result<()>, JoinError>) -> bool {
    match joined {
        Ok(thread) => thread.is_err(),
        Err(wait) => wait.is_panic(),
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
mod joined {
    use super::*;

    /// What a runtime that ends first leaves of a wait that has not begun.
    #[test]
    fn a_wait_that_was_given_up_is_no_panic_of_the_engine() {
        let waited = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let given_up = waited.spawn(std::future::pending::<std::thread::Result<()>>());
        given_up.abort();
        let given_up = waited.block_on(given_up);
        assert!(given_up.as_ref().is_err_and(JoinError::is_cancelled));
        assert!(!panicked(&given_up));
        assert!(!panicked(&Ok(Ok(()))));
        assert!(panicked(&Ok(Err(Box::new("a panic")))));
    }
}

#[cfg(test)]
mod tests;
