//! Looking for an upstream that cannot be reached.

use std::future::Future;
use std::sync::Arc;

use crate::bounds::UPSTREAM_RETRY;
use crate::proxy::Proxy;

/// Looks for the upstream at the start, and again and again while it is lost, until `shutdown`. So
/// its absence and its return are noted even if nobody calls.
pub async fn watch_upstream(proxy: Arc<Proxy>, shutdown: impl Future<Output = ()>) {
    let watch = async {
        let _ = proxy.forward.try_reach().await;
        loop {
            tokio::time::sleep(UPSTREAM_RETRY).await;
            if proxy.forward.lost_because().is_some() {
                let _ = proxy.forward.try_reach().await;
            }
        }
    };
    tokio::select! {
        () = watch => {}
        () = shutdown => {}
    }
}
