//! The fields that the upstream refused, remembered so that the next call of the kind need not meet
//! the refusal again.
//!
//! A refusal may be due to the request of one agent, so it counts for requests of the same shape
//! only, and for a while. If another agent's request of that shape was accepted with all fields a
//! short time ago, the refusal counts for the refused agent alone.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use episode::{AttemptId, Route};
use wire::RefusedFields;

use crate::bounds::{REFUSED_CLASS_LIFE, REFUSED_CLASSES_MAX};

/// Time for which an acceptance is not noted again.
const ACCEPTANCE_PAUSE: Duration = Duration::from_secs(30);

/// A kind of requests of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestClass {
    pub(super) route: Route,
    /// Number of the route and the shape of the body.
    shape: u64,
    /// Number of the agent's attempt.
    agent: u64,
}

impl RequestClass {
    /// The class of a request to `route` in an attempt; `None` for requests of rolltape itself.
    pub(crate) fn new(
        attempt: Option<&AttemptId>,
        route: Route,
        request: Option<&wire::Request>,
    ) -> Self {
        let request = request.filter(|_| route.generates());
        let shape = (route.as_str(), request.map(wire::shape));
        Self { route, shape: hash(&shape), agent: hash(&attempt) }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The known refusals of one shape, or of one shape of one agent.
#[derive(Debug, Clone, Copy)]
struct Known {
    refused: RefusedFields,
    at: Instant,
}

/// The memory of refusals.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    known: Mutex<KnownClasses>,
    /// Calls whose fields were refused and that were then answered without them.
    count: AtomicU64,
}

/// Entries by shape, and by shape and agent, in the order in which they came.
#[derive(Debug, Default)]
struct KnownClasses {
    entries: HashMap<(u64, Option<u64>), Known>,
    oldest: VecDeque<(u64, Option<u64>)>,
}

impl Refusals {
    /// The fields to leave out of a request of this class.
    pub(super) fn of(&self, class: &RequestClass) -> RefusedFields {
        let known = self.lock();
        let own = known.recent((class.shape, Some(class.agent)));
        let found = own.or_else(|| known.recent((class.shape, None)));
        found.map(|known| known.refused).unwrap_or_default()
    }

    /// Notes that a request was answered without the `refused` fields, after a refusal.
    pub(super) fn remember(&self, class: &RequestClass, refused: RefusedFields) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut known = self.lock();
        let is_accepted =
            known.recent((class.shape, None)).is_some_and(|known| known.refused.is_none());
        let agent = is_accepted.then_some(class.agent);
        known.put((class.shape, agent), refused);
        drop(known);

        let fields: Vec<&str> = refused.names().collect();
        let route = class.route.as_str();
        tracing::warn!(route, ?fields, "the upstream refuses requests of a kind with these fields");
    }

    /// Notes that a request with all fields was accepted.
    pub(super) fn note_accepted(&self, class: &RequestClass) {
        let mut known = self.lock();
        let noted = known.recent((class.shape, None));
        if noted.is_none_or(|noted| noted.at.elapsed() > ACCEPTANCE_PAUSE) {
            known.put((class.shape, None), RefusedFields::default());
        }
    }

    /// Number of calls whose fields were refused.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Forgets all refusals.
    pub(crate) fn clear(&self) {
        *self.lock() = KnownClasses::default();
    }

    fn lock(&self) -> MutexGuard<'_, KnownClasses> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownClasses {
    fn recent(&self, key: (u64, Option<u64>)) -> Option<Known> {
        self.entries.get(&key).copied().filter(|known| known.at.elapsed() < REFUSED_CLASS_LIFE)
    }

    fn put(&mut self, key: (u64, Option<u64>), refused: RefusedFields) {
        if self.entries.insert(key, Known { refused, at: Instant::now() }).is_none() {
            self.oldest.push_back(key);
        }
        while self.entries.len() > REFUSED_CLASSES_MAX {
            let Some(oldest) = self.oldest.pop_front() else { return };
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn class(episode: &str, body: &'static str) -> RequestClass {
        let request = wire::Request::read(&Bytes::from_static(body.as_bytes()));
        let attempt = AttemptId { episode: episode.parse().unwrap(), attempt: 0 };
        RequestClass::new(Some(&attempt), Route::Chat, request.as_ref())
    }

    #[test]
    fn an_odd_refusal_counts_for_requests_of_its_shape() {
        let refusals = Refusals::default();
        refusals.remember(&class("a", r#"{"model":"m","odd":1}"#), RefusedFields::ALL);
        assert!(refusals.of(&class("b", r#"{"model":"m","odd":1}"#)).is_all());
        assert!(refusals.of(&class("a", r#"{"model":"m"}"#)).is_none());
        assert!(refusals.of(&class("a", r#"{"model":"m","odd":2}"#)).is_none());
        assert_eq!(refusals.count(), 1);
    }

    #[test]
    fn a_refusal_of_what_others_are_granted_is_the_agents_own() {
        let refusals = Refusals::default();
        let body = r#"{"model":"m","messages":[]}"#;
        refusals.note_accepted(&class("honest", body));
        refusals.remember(&class("odd", body), RefusedFields::ALL);
        assert!(refusals.of(&class("odd", body)).is_all());
        assert!(refusals.of(&class("honest", body)).is_none());
        assert!(refusals.of(&class("third", body)).is_none());
    }

    #[test]
    fn the_oldest_kinds_are_forgotten() {
        let mut known = KnownClasses::default();
        for shape in 0..REFUSED_CLASSES_MAX as u64 + 9 {
            known.put((shape, None), RefusedFields::ALL);
        }
        assert_eq!(
            (known.entries.len(), known.oldest.len()),
            (REFUSED_CLASSES_MAX, REFUSED_CLASSES_MAX)
        );
        assert!(known.recent((8, None)).is_none() && known.recent((9, None)).is_some());
    }
}
