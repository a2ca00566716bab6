//! The only place that writes to stdout and stderr.
//!
//! It makes all text [`safe`] for a terminal: models, agents and upstreams are the authors of much
//! of it. Colors ([`Style`]) are added after that; [`layout`] makes lines that fit.

pub(crate) mod layout;
mod progress;
mod safe;
mod style;
pub(crate) mod table;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;

use self::progress::ProgressSign;
use self::safe::SafeWriter;
pub(crate) use self::style::{Line, Style};

/// A value of `--color`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorMode {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Also in files and pipes
    Always,
    /// Nowhere
    Never,
}

/// Settings of the process, which [`configure`] writes once.
static HAS_COLORS: AtomicBool = AtomicBool::new(false);
static ERR_HAS_COLORS: AtomicBool = AtomicBool::new(false);
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Sets whether there are colors, and whether progress and remarks are left out.
pub(crate) fn configure(colors: ColorMode, is_quiet: bool) {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_plain = is_set("NO_COLOR") || std::env::var_os("TERM").is_some_and(|it| it == "dumb");
    let wanted = |is_terminal: bool| match colors {
        ColorMode::Auto => is_terminal && !is_plain,
        ColorMode::Always => true,
        ColorMode::Never => false,
    };
    HAS_COLORS.store(wanted(io::stdout().is_terminal()), Ordering::Relaxed);
    ERR_HAS_COLORS.store(wanted(io::stderr().is_terminal()), Ordering::Relaxed);
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
}

/// Writes a line to stdout.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(safe::line(text).as_bytes())?;
    out.write_all(b"\n")
}

/// Writes a line with colors, where they are wanted, to stdout.
pub(crate) fn styled(line: &Line) -> io::Result<()> {
    let text = line.rendered(HAS_COLORS.load(Ordering::Relaxed)) + "\n";
    io::stdout().lock().write_all(text.as_bytes())
}

/// Writes a line with colors, where they are wanted, to stderr. A stderr that nobody reads is no
/// fault of whoever writes.
pub(crate) fn styled_message(line: &Line) {
    let text = line.rendered(ERR_HAS_COLORS.load(Ordering::Relaxed)) + "\n";
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Replaces all that the terminal shows by lines.
pub(crate) fn redraw(lines: &[Line]) -> io::Result<()> {
    let mut page = String::from("\u{1b}[H");
    for line in lines {
        page += &line.rendered(HAS_COLORS.load(Ordering::Relaxed));
        page += "\u{1b}[K\n";
    }
    page += "\u{1b}[J";
    let mut out = io::stdout().lock();
    out.write_all(page.as_bytes())?;
    out.flush()
}

/// Writes a message to stderr. Its lines after the first are indented.
///
/// A reader that has left is no reason to fail: what was asked for is done all the same.
pub(crate) fn message(text: &str) {
    let _ = io::stderr().lock().write_all(format!("{}\n", safe::lines(text)).as_bytes());
}

/// Writes a remark to stderr, unless the command is to be quiet.
pub(crate) fn remark(text: &str) {
    if !is_quiet() {
        message(text);
    }
}

/// Does work under a sign on stderr that shows after a second.
pub(crate) async fn waiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    let is_shown = io::stderr().is_terminal() && !is_quiet();
    let _progress = is_shown.then(|| ProgressSign::start(what));
    work.await
}

/// Stdout for a document that a program reads. Its bytes are written as they are.
pub(crate) fn document() -> io::StdoutLock<'static> {
    io::stdout().lock()
}

/// Returns true where stdout is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns true where stderr is a terminal.
pub(crate) fn messages_are_read() -> bool {
    io::stderr().is_terminal()
}

/// Returns true where progress and remarks are left out.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Returns true where stdout has colors.
pub(crate) fn has_colors() -> bool {
    HAS_COLORS.load(Ordering::Relaxed)
}

/// The columns of the terminal, or those that COLUMNS names for a file or a pipe. `None` if text
/// may be as wide as it is.
pub(crate) fn width() -> Option<usize> {
    let named = || std::env::var("COLUMNS").ok()?.parse().ok();
    size().map(|(columns, _)| columns).or_else(named).filter(|columns| *columns > 0)
}

/// The rows of the terminal.
pub(crate) fn height() -> Option<usize> {
    size().map(|(_, rows)| rows)
}

fn size() -> Option<(usize, usize)> {
    let (columns, rows) = terminal_size::terminal_size_of(io::stdout())?;
    Some((columns.0.into(), rows.0.into()))
}

/// The columns of the terminal that messages go to.
pub(crate) fn message_width() -> Option<usize> {
    let (columns, _) = terminal_size::terminal_size_of(io::stderr())?;
    Some(columns.0.into())
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
