//! The look at each engine, again and again, and at one upstream alone while it is lost.

use std::future::Future;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use wire::Dialect;

use super::engine::Engine;
use super::members::Fleet;
use crate::bounds::{HEALTH_EVERY, HEALTH_FAILURES, HEALTH_WAIT, RESOLVE_EVERY, UPSTREAM_RETRY};
use crate::error::CallError;

/// Looks for the upstream at the start, and again and again while it is lost, until `shutdown`. So
/// its absence and its return are noted even if nobody calls. Several upstreams are all looked at,
/// again and again, and their names are looked up again.
pub(crate) async fn watch(fleet: &Arc<Fleet>, shutdown: impl Future<Output = ()>) {
    let watch = async {
        let mut resolved_at = Instant::now();
        if !fleet.is_many() {
            let _ = fleet.any().server.client.try_reach().await;
        }
        loop {
            match fleet.is_many() {
                true => look_at_all(fleet).await,
                false => look_for_one(fleet).await,
            }

            if resolved_at.elapsed() >= RESOLVE_EVERY {
                resolved_at = Instant::now();
                if let Err(error) = fleet.refresh().await {
                    tracing::warn!(%error, "the names of the upstreams were not looked up");
                }
            }
        }
    };
    tokio::select! {
        () = watch => {}
        () = shutdown => {}
    }
}

/// Waits a while, then looks for the upstream if it is lost.
async fn look_for_one(fleet: &Fleet) {
    // More of them may come.
    let _ = timeout(UPSTREAM_RETRY, fleet.look.notified()).await;
    let only = fleet.any();
    if !fleet.is_many() && only.server.client.lost_because().is_some() {
        let _ = only.server.client.try_reach().await;
    }
}

/// Looks at all engines at once, then waits a while, or until one is suspected.
async fn look_at_all(fleet: &Arc<Fleet>) {
    let mut looks = JoinSet::new();
    for engine in fleet.all().iter() {
        let (fleet, engine) = (Arc::clone(fleet), Arc::clone(engine));
        looks.spawn(async move { look(&fleet, &engine).await });
    }
    while looks.join_next().await.is_some() {}
    for engine in fleet.all().iter() {
        engine.say_stalled(fleet.stalled_because(engine));
    }
    fleet.threads.forget_old();
    let _ = timeout(HEALTH_EVERY, fleet.look.notified()).await;
}

/// Looks at one engine.
async fn look(fleet: &Fleet, engine: &Engine) {
    match failure(engine).await {
        None => {
            engine.failures.end();
            // An engine that came back may have other weights, so that it stays away until its
            // label was read.
            if check_label(fleet, engine).await && engine.is_down() {
                engine.recover();
            }
            fleet.tell_room();
        }
        Some((reason, is_gone)) => {
            // What takes no connection is gone; what is slow once may be busy.
            if engine.failures.add() >= HEALTH_FAILURES || is_gone {
                engine.lose(reason);
            }
        }
    }
}

/// The reason for which an engine is not well, and whether it takes no connection.
async fn failure(engine: &Engine) -> Option<(&'static str, bool)> {
    match timeout(HEALTH_WAIT, engine.server.client.get("/health")).await {
        // A server without this page is well if it answers.
        Ok(Ok((status, _))) if !status.is_server_error() => None,
        Ok(Ok(_)) => Some(("its /health is an error", false)),
        Ok(Err(CallError::Unreachable { reason, is_unsent, .. })) => Some((reason, is_unsent)),
        Ok(Err(_)) => Some(("its /health breaks off", false)),
        Err(_) => Some(("no answer", false)),
    }
}

/// Compares the label that an engine serves with the newest one, once weights were pushed. Returns
/// false if that must wait.
async fn check_label(fleet: &Fleet, engine: &Engine) -> bool {
    // While weights are pushed, labels are those of before or after.
    let Ok(_push) = fleet.pushing.try_read() else { return false };
    let push = fleet.fence.push();
    if push == 0 {
        return true;
    }

    let served = served_label(engine).await;
    match (served, fleet.fence.label()) {
        (Some(served), Some(newest)) if served == newest => {
            engine.acknowledge(push, Some(served));
        }
        (Some(_), Some(_)) => engine.doubt(),
        // It cannot be told whether it was restarted with other weights.
        _ if engine.was_lost() => engine.doubt(),
        _ => {}
    }
    true
}

/// The label of the weights that an engine says it serves.
pub(crate) async fn served_label(engine: &Engine) -> Option<String> {
    let page = match engine.server.probe.known() {
        Some(Dialect::Sglang) => "/model_info",
        _ => "/weight_info",
    };
    let (status, body) = timeout(HEALTH_WAIT, engine.server.client.get(page)).await.ok()?.ok()?;
    if status.is_success() { wire::served_label(&body) } else { None }
}
