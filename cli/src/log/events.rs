//! Events of the log, for whoever else wants them.

use std::fmt::{Debug, Write};
use std::sync::OnceLock;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::is_own;

/// Longest message or field, in bytes.
const TEXT_BYTES_MAX: usize = 8 << 10;

/// An event of rolltape itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogEvent {
    /// The time at which it happened, in nanoseconds since 1970.
    pub(crate) at_ns: u64,
    pub(crate) level: EventLevel,
    /// The module that says it.
    pub(crate) target: &'static str,
    pub(crate) message: String,
    pub(crate) fields: Vec<(&'static str, String)>,
}

/// The severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventLevel {
    Error,
    Warn,
    Info,
}

impl EventLevel {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Warn => "WARN",
            Self::Info => "INFO",
        }
    }
}

type Follower = Box<dyn Fn(LogEvent) + Send + Sync>;

static FOLLOWER: OnceLock<Follower> = OnceLock::new();

/// Has `follower` called with each event that the log shows from now on, down to level info. It
/// must not wait. The first one stays.
pub(crate) fn follow(follower: impl Fn(LogEvent) + Send + Sync + 'static) {
    let _ = FOLLOWER.set(Box::new(follower));
}

/// Hands events over. Those of libraries are left out: sending an event makes them log.
pub(super) struct EventLayer;

impl<S: Subscriber> Layer<S> for EventLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(follower) = FOLLOWER.get() else { return };
        let about = event.metadata();
        let level = match *about.level() {
            Level::ERROR => EventLevel::Error,
            Level::WARN => EventLevel::Warn,
            Level::INFO => EventLevel::Info,
            _ => return,
        };
        if is_own(about.target()) {
            let at_ns = http::clock::now().unsigned_abs() * 1_000;
            let (message, fields) = (String::new(), Vec::new());
            let mut found = LogEvent { at_ns, level, target: about.target(), message, fields };
            event.record(&mut found);
            follower(found);
        }
    }
}

impl Visit for LogEvent {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        match field.name() {
            "message" => self.message = text,
            name => self.fields.push((name, text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn events_of_rolltape_are_handed_over_with_their_fields() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        follow(move |event| kept.lock().unwrap().push(event));
        let log = tracing_subscriber::registry().with(EventLayer);
        tracing::subscriber::with_default(log, || {
            tracing::warn!(target: "proxy::reply", why = "a \"word\"", count = 2, "a call failed");
            tracing::warn!(target: "hyper_util::client", "a connection is new");
            tracing::debug!(target: "proxy", "too much");
        });

        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!((seen[0].level, seen[0].target), (EventLevel::Warn, "proxy::reply"));
        assert_eq!(seen[0].message, "a call failed");
        let fields = [("why", "a \"word\"".to_owned()), ("count", "2".to_owned())];
        assert_eq!(seen[0].fields, fields);
    }
}
