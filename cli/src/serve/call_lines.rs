//! A line for each call that ends, on the stderr of `rolltape serve`.
//!
//! The lines are read from the store, as `rolltape tail` reads them, so that a call waits for none
//! of them. What the model said is in none: a log is kept by others.

use std::time::Duration;

use tokio::task::JoinHandle;
use viewer::{CallEvent, ViewError, Viewer};

use crate::log::LogFormat;
use crate::reading::call_line::call_line;
use crate::server::changes::ChangePoller;
use crate::terminal::{self, Line};

/// Pause between two looks for calls.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Lines of one look. Of more calls nobody reads the lines.
const LINES_MAX: usize = 100;
/// Pause after a look with more calls.
const FLOOD_PAUSE: Duration = Duration::from_secs(5);

/// Prints lines until the task is aborted.
pub(crate) fn start(viewer: Viewer, format: LogFormat) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            // After a flood the calls in between are left out: a new reader begins now.
            if let Err(error) = follow(viewer.clone(), format).await {
                tracing::warn!(%error, "the lines of calls pause: the store cannot be read");
            }
            tokio::time::sleep(FLOOD_PAUSE).await;
        }
    })
}

/// Prints lines until there are too many.
async fn follow(viewer: Viewer, format: LogFormat) -> Result<(), ViewError> {
    let mut changes = ChangePoller::new(viewer)?;
    while let Some(found) = changes.look().await? {
        let ended =
            found.into_iter().filter(|(kind, _)| *kind == "call").filter_map(|(_, text)| {
                let event: CallEvent = serde_json::from_str(&text).ok()?;
                event.outcome.is_some().then_some((event, text))
            });
        let calls: Vec<(CallEvent, String)> = ended.collect();
        calls.iter().take(LINES_MAX).for_each(|(event, text)| print(event, text, format));
        if calls.len() > LINES_MAX {
            terminal::remark("more calls than can be read: lines of calls pause for 5 s");
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

fn print(event: &CallEvent, text: &str, format: LogFormat) {
    match format {
        LogFormat::Text => {
            terminal::styled_message(&call_line(event, terminal::message_width()));
        }
        LogFormat::Json => terminal::styled_message(&Line::from(text.to_owned())),
    }
}
