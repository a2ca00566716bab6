//! `rolltape reward`: say how well an episode went.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use episode::{CallId, EpisodeId, Micros, Reward, RewardScope, ScopeError, ScopeParts};
use store::{Amend, Snapshot};

use crate::at::At;
use crate::exit::{Done, Failure};
use crate::words::call_id;

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
    #[arg(long, value_name = "CALL_ID", value_parser = call_id)]
    call: Option<CallId>,
    /// Only about these of the tokens that the call sampled: the first, and one past the last
    #[arg(long, value_name = "START..END", value_parser = span, requires = "call")]
    tokens: Option<(u32, u32)>,
    /// Only about the trajectory that ends with this call
    #[arg(long, value_name = "CALL_ID", value_parser = call_id, conflicts_with = "call")]
    trajectory: Option<CallId>,
    /// Which choice of the call of --tokens or --trajectory, where it has several
    #[arg(long, value_name = "N")]
    choice: Option<u32>,
    #[command(flatten)]
    at: At,
}

fn span(text: &str) -> Result<(u32, u32), String> {
    let ends = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    ends.ok_or_else(|| "not two numbers such as 0..5".to_owned())
}

fn scope(args: &Args) -> Result<RewardScope, ScopeError> {
    RewardScope::new(&ScopeParts {
        word: args.trajectory.map(|_| "trajectory"),
        call: args.trajectory.or(args.call),
        choice: args.choice,
        tokens: args.tokens.unzip(),
    })
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
    let scope = scope(&args).map_err(|e| Failure::of(&e))?;
    if scope.tokens().is_some() {
        let sampled = Snapshot::open(&args.at.store).await?.sampled(scope).await?;
        scope.within(sampled).map_err(|e| Failure::of(&e))?;
    }
    let store = Amend::open(&args.at.store).await?;
    let reward =
        Reward { scope, name: args.name, value: args.value.0, source: args.source, at: now() };
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn said(words: &str) -> Result<RewardScope, String> {
        let line = format!("reward a 1 {words}");
        let line = Line::try_parse_from(line.split_whitespace()).map_err(|e| e.to_string())?;
        scope(&line.args).map_err(|e| e.to_string())
    }

    #[test]
    fn a_reward_is_about_what_the_options_name() {
        let id = "00000000-0000-0000-0000-000000000007";
        let call: CallId = id.parse().unwrap();
        assert_eq!(said(""), Ok(RewardScope::Episode));
        assert_eq!(said(&format!("--call {id}")), Ok(RewardScope::Call(call)));
        let leaf = RewardScope::Trajectory { call, choice: 2 };
        assert_eq!(said(&format!("--trajectory {id} --choice 2")), Ok(leaf));
        let tokens = RewardScope::Tokens { call, choice: 0, start: 3, end: 5 };
        assert_eq!(said(&format!("--call {id} --tokens 3..5")), Ok(tokens));
        for (words, why) in [
            ("--tokens 3..5".to_owned(), "--call"),
            (format!("--call {id} --tokens 3"), "two numbers"),
            (format!("--call {id} --tokens 5..3"), "empty token range 5..3"),
            (format!("--call {id} --choice 1"), "has no `choice`"),
            (format!("--call {id} --trajectory {id}"), "cannot be used with"),
        ] {
            let error = said(&words).unwrap_err();
            assert!(error.contains(why), "{words}: {error}");
        }
    }
}
