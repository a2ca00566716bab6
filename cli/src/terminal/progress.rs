//! A sign on stderr that a command still works.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Time that a command may take without a sign.
const SILENT: Duration = Duration::from_secs(1);
/// Time between two pictures of the sign.
const TICK: Duration = Duration::from_millis(120);

/// A sign that shows after a second if stderr is a terminal, and goes when this is dropped.
#[derive(Debug)]
pub(super) struct ProgressSign {
    /// Dropped to end the thread.
    running: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressSign {
    /// Starts to wait. A thread draws, because reading a store blocks the command's own.
    pub(super) fn start(what: &str) -> Self {
        let (running, ended) = sync_channel(1);
        let what = what.to_owned();
        let thread = std::thread::spawn(move || {
            if ended.recv_timeout(SILENT) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::new_spinner().with_message(what);
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_elapsed(SILENT);
            bar.enable_steady_tick(TICK);
            let _ = ended.recv();
            bar.finish_and_clear();
        });
        Self { running: Some(running), thread: Some(thread) }
    }
}

impl Drop for ProgressSign {
    /// Waits until the sign is gone, so that what follows starts on an empty line.
    fn drop(&mut self) {
        self.running = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
