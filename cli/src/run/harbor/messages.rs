//! The socket on which Harbor's plugin says what its trials do, one message a connection.
//!
//! A message is one line of JSON, and so is the answer. Harbor waits for it before it goes on: a
//! trial is announced before its first call, and settled before Harbor may remove its folder.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use super::trials::{TrialPlan, Trials};
use crate::exit::Failure;

/// Longest message, in bytes. A plan has some hundred for each trial.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// A message of the plugin.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Plan(JobPlan),
    Begun(TrialAttempt),
    Ended(TrialAttempt),
}

/// The trials that a job is about to run.
#[derive(Debug, Deserialize)]
struct JobPlan {
    /// Version of Harbor.
    harbor: String,
    trials: Vec<TrialPlan>,
}

/// One run of a trial, which Harbor may run several times.
#[derive(Debug, Deserialize)]
struct TrialAttempt {
    trial: String,
    attempt: u32,
}

/// A listener for the plugin. It ends with this value.
pub(super) struct PluginListener(JoinHandle<()>);

impl PluginListener {
    /// Listens at `path`, in a folder that only this user may enter.
    ///
    /// # Errors
    /// [`Failure`] if no socket can be made there.
    pub(super) fn start(path: &Path, trials: Arc<Trials>) -> Result<Self, Failure> {
        let listener = UnixListener::bind(path)?;
        Ok(Self(tokio::spawn(accept(listener, trials))))
    }
}

impl Drop for PluginListener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Takes connections. Harbor's own bound on trials at a time bounds their number.
async fn accept(listener: UnixListener, trials: Arc<Trials>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let trials = Arc::clone(&trials);
        tokio::spawn(async move {
            if let Err(error) = talk(stream, &trials).await {
                tracing::warn!(%error, "Harbor's plugin left early");
            }
        });
    }
}

async fn talk(stream: UnixStream, trials: &Trials) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = Vec::new();
    BufReader::new(reader.take(MESSAGE_BYTES_MAX)).read_until(b'\n', &mut line).await?;

    let answer = match serde_json::from_slice(&line) {
        Ok(message) => answer(message, trials).await,
        Err(error) => Err(Failure::of(&error).context("a message of Harbor's plugin")),
    };
    let answer = answer.unwrap_or_else(|failure| json!({ "error": failure.to_string() }));
    writer.write_all(format!("{answer}\n").as_bytes()).await
}

async fn answer(message: Message, trials: &Trials) -> Result<Value, Failure> {
    match message {
        Message::Plan(plan) => {
            Ok(json!({ "roots": trials.plan(&plan.harbor, plan.trials).await? }))
        }
        Message::Begun(run) => trials.begin(&run.trial, run.attempt).await.map(|()| json!({})),
        Message::Ended(run) => trials.end(&run.trial, run.attempt).await.map(|()| json!({})),
    }
}
