//! The last question of each consumer, by which its backlog is counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use store::FeedQuery;

use crate::bounds::FEED_ASKED_MAX;

/// The last query of each consumer.
#[derive(Debug, Default)]
pub(crate) struct LastQueries(Mutex<BTreeMap<String, FeedQuery>>);

impl LastQueries {
    /// Remembers the query of a reader, if it has a name.
    pub(crate) fn remember(&self, asked: &FeedQuery) {
        let Some(consumer) = &asked.consumer else { return };
        let mut queries = self.queries();
        if queries.len() >= FEED_ASKED_MAX && !queries.contains_key(consumer) {
            queries.pop_first();
        }
        queries.insert(consumer.clone(), asked.clone());
    }

    /// The last query of a consumer; `None` if it has not asked, or is forgotten.
    pub(crate) fn of(&self, consumer: &str) -> Option<FeedQuery> {
        self.queries().get(consumer).cloned()
    }

    fn queries(&self) -> MutexGuard<'_, BTreeMap<String, FeedQuery>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_query_counts_and_their_number_is_bounded() {
        let queries = LastQueries::default();
        let asked = |name: usize, rewarded| FeedQuery {
            consumer: Some(name.to_string()),
            rewarded,
            ..FeedQuery::default()
        };
        queries.remember(&asked(7, false));
        queries.remember(&asked(7, true));
        assert!(queries.of("7").is_some_and(|query| query.rewarded));
        queries.remember(&FeedQuery::default());
        for name in 0..FEED_ASKED_MAX + 10 {
            queries.remember(&asked(name, false));
        }
        assert_eq!(queries.queries().len(), FEED_ASKED_MAX);
    }
}
