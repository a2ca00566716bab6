//! `rolltape reward`: say how well an episode went.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use episode::{CallId, EpisodeId, Micros, Reward, RewardScope};
use store::Amend;

use crate::at::At;
use crate::exit::{Done, Failure};

/// Append a reward to an episode
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The episode
    episode: EpisodeId,
    /// A number, or null for "could not be scored", which is not zero
    #[arg(value_parser = value, allow_negative_numbers = true)]
    value: Value,
    /// Which run of the episode
    #[arg(long, default_value_t = 0)]
    attempt: u32,
    /// The part of the reward this is; `reward` is the one that trainers read
    #[arg(long, default_value = "reward")]
    name: String,
    /// Who says so
    #[arg(long, default_value = "cli")]
    source: String,
    /// Only about this call of the episode
    #[arg(long, value_name = "CALL_ID")]
    call: Option<CallId>,
    #[command(flatten)]
    at: At,
}

/// A reward's value, with null kept apart from a value that was not given.
#[derive(Debug, Clone, Copy)]
struct Value(Option<f64>);

fn value(text: &str) -> Result<Value, String> {
    if text == "null" {
        return Ok(Value(None));
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Value(Some(number))),
        _ => Err("not a finite number and not null".to_owned()),
    }
}

/// Appends.
pub(crate) async fn run(args: Args) -> Done {
    let store = Amend::open(&args.at.store).await?;
    let reward = Reward {
        scope: args.call.map_or(RewardScope::Episode, RewardScope::Call),
        name: args.name,
        value: args.value.0,
        source: args.source,
        at: now(),
    };
    let done = store.reward((args.episode, args.attempt), reward).await;
    done.map_err(|e| unknown(&e))?;
    Ok(ExitCode::SUCCESS)
}

/// The failure of a statement about an episode.
pub(crate) fn unknown(error: &store::CommitError) -> Failure {
    let failure = Failure::of(error);
    match error {
        store::CommitError::Unknown(..) => {
            failure.hint("`rolltape episodes` lists what the store holds")
        }
        _ => failure,
    }
}

/// The time, for records.
pub(crate) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}
