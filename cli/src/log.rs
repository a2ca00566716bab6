//! The log on stderr: lines for people, or JSON for machines.
//!
//! An event can quote a model, an agent or an upstream. Control characters in it are escaped, so
//! that it can neither drive a terminal nor look like another line.

use std::env::VarError;
use std::io::{self, IsTerminal, Stderr, Write};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

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
    let filter = EnvFilter::try_new(filter).map_err(|error| not_a_filter(&error.to_string()))?;

    let has_colors = format == LogFormat::Text && io::stderr().is_terminal();
    let writer = move || SafeWriter { out: io::stderr(), has_colors };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => log.with_ansi(has_colors).with_target(false).init(),
        LogFormat::Json => log.json().flatten_event(true).with_ansi(false).init(),
    }
    Ok(())
}

fn not_a_filter(why: &str) -> Failure {
    Failure::new(format!("the environment variable `ROLLTAPE_LOG` is not a log filter: {why}"))
        .hint("give a level, such as debug, or levels by part, such as warn,proxy=debug")
}

/// A writer that escapes control characters. Each event is one write.
struct SafeWriter<W = Stderr> {
    out: W,
    /// True if the event may have colors. The event's own escape characters are escaped before.
    has_colors: bool,
}

impl<W: Write> Write for SafeWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.out.write_all(&escaped(event, self.has_colors))?;
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
    fn each_event_is_written_whole() {
        let mut out = Vec::new();
        let mut writer = SafeWriter { out: &mut out, has_colors: false };
        assert_eq!(writer.write(b"a\x00b\n").unwrap(), 4);
        assert_eq!(out, b"a\\u0000b\n");
    }
}
