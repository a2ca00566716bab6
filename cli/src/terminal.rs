//! The only place that writes to stdout and stderr.
//!
//! Whatever is written is made [`safe`] for a terminal: models, agents and upstreams are the
//! authors of much of it.

mod safe;

use std::io::{self, IsTerminal, Write};

use self::safe::SafeWriter;

/// Writes a line to stdout.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(safe::line(text).as_bytes())?;
    out.write_all(b"\n")
}

/// Writes a message to stderr. Its lines after the first are indented.
#[expect(clippy::print_stderr, reason = "this is the one place that speaks to the terminal")]
pub(crate) fn message(text: &str) {
    eprintln!("{}", safe::lines(text));
}

/// Returns true where stdout is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns rows of text as a terminal may show them.
pub(crate) fn shown(rows: &[u8]) -> Vec<u8> {
    safe::rows(&String::from_utf8_lossy(rows)).into_bytes()
}

/// Returns stdout for encoded rows. On a terminal they are text, which is made safe.
pub(crate) fn rows() -> Box<dyn Write + Send> {
    let out = io::stdout();
    match out.is_terminal() {
        true => Box::new(SafeWriter::new(out)),
        false => Box::new(out),
    }
}
