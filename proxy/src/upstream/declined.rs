//! Questions of rolltape itself that an upstream declined, which are not asked with every call.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, StatusCode};

use crate::bounds::REFUSED_CLASS_LIFE;
use crate::upstream::keys::API_KEY;

/// The last time that a question was declined, and for whom. Others may have a better key.
#[derive(Debug, Default)]
pub(super) struct DeclinedQuestion(Mutex<Option<(Instant, u64)>>);

impl DeclinedQuestion {
    /// True if it was declined a short time ago, for whoever has these headers.
    pub(super) fn is_recent(&self, agent: &HeaderMap) -> bool {
        let declined = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        declined.is_some_and(|(at, whose)| {
            at.elapsed() < REFUSED_CLASS_LIFE && whose == hash_of_credentials(agent)
        })
    }

    /// Notes that it was declined for whoever has these headers.
    pub(super) fn note(&self, agent: &HeaderMap) {
        let declined = (Instant::now(), hash_of_credentials(agent));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(declined);
    }
}

/// True for an answer that will be the same the next time: the server refuses, and is not merely
/// busy, slow or not ready.
pub(super) fn is_lasting(status: StatusCode) -> bool {
    const FOR_NOW: [StatusCode; 3] =
        [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    status.is_client_error() && !FOR_NOW.contains(&status)
}

fn hash_of_credentials(agent: &HeaderMap) -> u64 {
    let mut hasher = DefaultHasher::new();
    [agent.get(AUTHORIZATION), agent.get(API_KEY)].hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn a_question_is_declined_for_who_asked_it() {
        let of =
            |key| [(API_KEY, HeaderValue::from_static(key))].into_iter().collect::<HeaderMap>();
        let declined = DeclinedQuestion::default();
        assert!(!declined.is_recent(&of("a")));
        declined.note(&of("a"));
        assert!(declined.is_recent(&of("a")));
        assert!(!declined.is_recent(&of("b")) && !declined.is_recent(&HeaderMap::new()));
    }

    #[test]
    fn an_upstream_that_is_not_ready_declines_nothing() {
        let lasting = [400, 401, 403, 404, 405].map(|code| StatusCode::from_u16(code).unwrap());
        assert!(lasting.into_iter().all(is_lasting));
        let passing = [200, 408, 429, 500, 503].map(|code| StatusCode::from_u16(code).unwrap());
        assert!(!passing.into_iter().any(is_lasting));
    }
}
