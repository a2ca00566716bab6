//! The log on stderr: lines for people, or JSON for machines.
//!
//! An event can quote a model, an agent or an upstream. Control characters in it are escaped, so
//! that it can neither drive a terminal nor look like another line.
//!
//! - `events`: the same events, for whoever else wants them.

pub(crate) mod events;

use std::env::VarError;
use std::io::{self, IsTerminal, Stderr, Write};

use clap::ValueEnum;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use self::events::EventLayer;
use crate::exit::Failure;

/// A value of `--log-format`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line an event, for people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Starts the log. `default` is the filter if `ROLLTAPE_LOG` is not set.
///
/// # Errors
/// [`Failure`] if `ROLLTAPE_LOG` is not a filter.
pub(crate) fn start(format: LogFormat, default: &str) -> Result<(), Failure> {
    let filter = match std::env::var("ROLLTAPE_LOG") {
        Ok(filter) if !filter.trim().is_empty() => filter,
        Ok(_) | Err(VarError::NotPresent) => default.to_owned(),
        Err(VarError::NotUnicode(_)) => return Err(not_a_filter("it is not UTF-8")),
    };
    check_filter(&filter).map_err(|why| not_a_filter(&why))?;
    let filter = EnvFilter::try_new(filter).map_err(|error| not_a_filter(&error.to_string()))?;

    let has_colors = format == LogFormat::Text && io::stderr().is_terminal();
    let writer = move || LogWriter { out: io::stderr(), has_colors };
    let lines = fmt::layer().with_writer(writer).with_ansi(has_colors);
    let lines = match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).with(EventLayer).init();
    Ok(())
}

/// Levels of a filter.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Number of the parts that log which are crates of rolltape.
const OWN_PARTS: usize = 5;
/// Parts that log: crates of rolltape, then libraries.
const PARTS: [&str; 11] = [
    "rolltape",
    "proxy",
    "engine",
    "exporter",
    "store",
    "h2",
    "hyper_util",
    "object_store",
    "sqlx",
    "sqlx_core",
    "sqlx_postgres",
];

/// Checks a filter: `LEVEL`, `PART=LEVEL` or `PART`, with commas between. What is none of these
/// would be taken for a part that never logs, and silently have no effect.
fn check_filter(filter: &str) -> Result<(), String> {
    for directive in filter.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        let (part, level) = match directive.split_once('=') {
            Some((part, level)) => (Some(part), Some(level)),
            None if is_level(directive) => (None, Some(directive)),
            None => (Some(directive), None),
        };
        if level.is_some_and(|level| !is_level(level)) {
            return Err(format!("`{directive}` has no level: {}", LEVELS.join(", ")));
        }
        if part.is_some_and(|part| !is_part(part)) {
            return Err(format!("`{directive}` is no level, and names no part that logs"));
        }
    }
    Ok(())
}

fn is_level(word: &str) -> bool {
    LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word))
}

/// True for a part, or a module of one.
fn is_part(path: &str) -> bool {
    path.split("::").next().is_some_and(|part| PARTS.contains(&part))
}

/// True for a crate of rolltape, or a module of one.
fn is_own(path: &str) -> bool {
    path.split("::").next().is_some_and(|part| PARTS[..OWN_PARTS].contains(&part))
}

fn not_a_filter(why: &str) -> Failure {
    Failure::new(format!("the environment variable `ROLLTAPE_LOG` is not a log filter: {why}"))
        .hint(format!(
            "give a level, such as debug, or levels by part, such as warn,proxy=debug; the parts \
             are {}",
            PARTS.join(", ")
        ))
}

/// A writer that escapes control characters. Each event is one write.
struct LogWriter<W = Stderr> {
    out: W,
    /// True if the event may have colors. The event's own escape characters are escaped before.
    has_colors: bool,
}

impl<W: Write> Write for LogWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        // The log's own report of an error would go to the same place, and panic there.
        let _ = self.out.write_all(&escaped(event, self.has_colors));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The event with `\u0000` in place of each control character but the last line end.
fn escaped(event: &[u8], has_colors: bool) -> Vec<u8> {
    let (text, end) = match event.strip_suffix(b"\n") {
        Some(text) => (text, "\n"),
        None => (event, ""),
    };
    let mut safe = String::with_capacity(event.len());
    for character in String::from_utf8_lossy(text).chars() {
        if character.is_control() && !(has_colors && character == '\u{1b}') {
            safe.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            safe.push(character);
        }
    }
    safe.push_str(end);
    safe.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let event = "said=\u{1b}]0;x\u{7}\r\u{9b}2J\u{7f}\nERROR forged\tü\n";
        let safe = "said=\\u001b]0;x\\u0007\\u000d\\u009b2J\\u007f\\u000aERROR forged\\u0009ü\n";
        assert_eq!(escaped(event.as_bytes(), false), safe.as_bytes());
        assert_eq!(escaped(b"\x1b[31mred\x1b[0m\r\n", true), b"\x1b[31mred\x1b[0m\\u000d\n");
        assert_eq!(escaped(b"\xff", false), "\u{fffd}".as_bytes());
    }

    #[test]
    fn a_filter_that_would_have_no_effect_is_refused() {
        for good in ["debug", "WARN,proxy=info", "proxy", " warn , store::log=trace,", "sqlx=off"] {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
        for bad in ["loud", "proxi=debug", "debug,proxy=", "a b c", "proxy=loud", "[", "==", "7"] {
            let why = check_filter(bad).unwrap_err();
            assert!(why.contains(bad.rsplit(',').next().unwrap()), "{bad}: {why}");
        }
    }

    #[test]
    fn each_event_is_written_whole() {
        let mut out = Vec::new();
        let mut writer = LogWriter { out: &mut out, has_colors: false };
        assert_eq!(writer.write(b"a\x00b\n").unwrap(), 4);
        assert_eq!(out, b"a\\u0000b\n");
    }
}
