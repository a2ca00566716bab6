//! The connections of one listener: how many there may be, and which of them give way.

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::{AbortHandle, Id, JoinSet};

use crate::bounds::{DESCRIPTORS_KEPT, GIVE_WAY_PART};
use crate::server::activity::{Activity, AgentWaits};

/// Bounds of the connections of a listener.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionBounds {
    /// Connections at a time.
    pub connections_max: usize,
    /// Of these, connections from one address. Loopback has no such bound: all agents of a machine
    /// share it.
    pub per_peer_max: usize,
    /// Times that a client has.
    pub waits: AgentWaits,
}

/// Descriptors that are not for calls, of those that the process may have; more than it needs if
/// that number is not known.
pub fn descriptors_kept(descriptors_max: Option<usize>) -> usize {
    let part = descriptors_max.map_or(usize::MAX, |max| max / 8);
    part.clamp(*DESCRIPTORS_KEPT.start(), *DESCRIPTORS_KEPT.end())
}

/// The open connections. Dropping them ends them.
pub(super) struct Connections {
    bounds: ConnectionBounds,
    tasks: JoinSet<()>,
    open: HashMap<Id, Connection>,
    per_peer: HashMap<IpAddr, usize>,
}

struct Connection {
    activity: Arc<Activity>,
    peer: IpAddr,
    abort: AbortHandle,
}

impl Connections {
    pub(super) fn new(bounds: ConnectionBounds) -> Self {
        Self { bounds, tasks: JoinSet::new(), open: HashMap::new(), per_peer: HashMap::new() }
    }

    /// Adds a connection, served by `served`.
    pub(super) fn add(
        &mut self,
        peer: IpAddr,
        activity: Arc<Activity>,
        served: impl Future<Output = ()> + Send + 'static,
    ) {
        let abort = self.tasks.spawn(served);
        *self.per_peer.entry(peer).or_default() += 1;
        self.open.insert(abort.id(), Connection { activity, peer, abort });
    }

    /// Resolves when a connection has ended.
    pub(super) async fn ended(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => self.remove(id),
            Some(Err(error)) => self.remove(error.id()),
            None => std::future::pending().await,
        }
    }

    fn remove(&mut self, id: Id) {
        let Some(connection) = self.open.remove(&id) else { return };
        if let Some(count) = self.per_peer.get_mut(&connection.peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&connection.peer);
            }
        }
    }

    fn close(&mut self, id: Id) {
        if let Some(connection) = self.open.get(&id) {
            connection.abort.abort();
        }
        self.remove(id);
    }

    /// True if a further connection can be taken, at most at the cost of one that waits for its
    /// agent.
    pub(super) fn has_room(&self) -> bool {
        let now = Instant::now();
        self.open.len() < self.bounds.connections_max
            || self.open.values().any(|connection| connection.activity.waiting(now).is_some())
    }

    /// Makes room for a connection from `peer`; false if there is none.
    pub(super) fn make_room(&mut self, peer: IpAddr) -> bool {
        let of_peer = self.per_peer.get(&peer).copied().unwrap_or(0);
        if !is_loopback(peer) && of_peer >= self.bounds.per_peer_max {
            return self.close_longest_waiting(Some(peer)) > 0;
        }
        self.open.len() < self.bounds.connections_max || self.close_longest_waiting(None) > 0
    }

    /// Closes those that wait for their agents longest, a part of all; of one peer or of all.
    /// Returns their number.
    pub(super) fn close_longest_waiting(&mut self, peer: Option<IpAddr>) -> usize {
        let now = Instant::now();
        let of_peer = self.open.iter().filter(|(_, one)| peer.is_none_or(|peer| peer == one.peer));
        let mut waiting: Vec<_> = of_peer
            .filter_map(|(id, one)| one.activity.waiting(now).map(|since| (since, *id)))
            .collect();
        waiting.sort_unstable_by_key(|(since, _)| *since);
        // A part at a time, so that a flood does not cost a search for each of its connections.
        waiting.truncate((self.open.len() / GIVE_WAY_PART).max(1));
        for (_, id) in &waiting {
            self.close(*id);
        }
        waiting.len()
    }

    /// Closes the connections whose times are over.
    pub(super) fn close_expired(&mut self) {
        let (now, waits) = (Instant::now(), self.bounds.waits);
        let expired = self.open.iter().filter_map(|(id, connection)| {
            connection.activity.expired(now, waits).map(|why| (*id, why))
        });
        for (id, why) in expired.collect::<Vec<_>>() {
            tracing::debug!(why, "a connection is closed");
            self.close(id);
        }
    }

    /// Closes the connections on which no request is under way.
    pub(super) fn close_idle(&mut self) {
        let now = Instant::now();
        let idle = self.open.iter().filter(|(_, connection)| connection.activity.is_idle(now));
        for id in idle.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.close(id);
        }
    }

    /// Ends all connections.
    pub(super) async fn shutdown(mut self) {
        self.tasks.shutdown().await;
    }
}

fn is_loopback(peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    const AGENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 8));
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn connections(connections_max: usize, per_peer_max: usize) -> Connections {
        let wait = Duration::from_secs(30);
        let waits = AgentWaits { head: wait, idle: wait, stall: wait };
        Connections::new(ConnectionBounds { connections_max, per_peer_max, waits })
    }

    /// A connection on which nothing happens.
    fn add(connections: &mut Connections, peer: IpAddr) {
        connections.add(peer, Arc::new(Activity::new()), std::future::pending());
    }

    fn old_enough() {
        std::thread::sleep(crate::bounds::IDLE_AGE_MIN + Duration::from_millis(5));
    }

    #[tokio::test]
    async fn a_full_listener_takes_a_connection_for_one_that_waits() {
        let mut connections = connections(2, 2);
        add(&mut connections, HERE);
        add(&mut connections, HERE);
        assert!(!connections.has_room(), "both are too young");
        old_enough();
        assert!(connections.has_room() && connections.make_room(HERE));
        assert_eq!(connections.open.len(), 1);
        connections.ended().await;
        assert_eq!((connections.open.len(), connections.per_peer[&HERE]), (1, 1));
    }

    #[tokio::test]
    async fn one_address_cannot_take_all() {
        let mut connections = connections(8, 2);
        for _ in 0..2 {
            add(&mut connections, AGENT);
        }
        assert!(!connections.make_room(AGENT));
        assert!(connections.make_room(OTHER));
        old_enough();
        add(&mut connections, OTHER);
        assert!(connections.make_room(AGENT), "its own oldest gives way");
        assert_eq!((connections.per_peer[&AGENT], connections.per_peer[&OTHER]), (1, 1));
        for _ in 0..5 {
            add(&mut connections, HERE);
        }
        assert!(connections.make_room(HERE), "all agents of a machine share loopback");
    }
}
