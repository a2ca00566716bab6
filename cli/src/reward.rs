//! `rolltape reward`: appends a reward to an episode.

use std::process::ExitCode;

use episode::{
    AttemptId, CallId, EpisodeId, Giver, Provenance, Reward, RewardScope, ScopeError, ScopeParts,
};
use store::{Snapshot, StoreEditor};

use crate::exit::{CommandResult, Failure};
use crate::options::control::RewardRanges;
use crate::options::parse::call_id;
use crate::options::store::StoreArgs;
use crate::time::now;

/// The origin of rewards that the command writes to the store itself.
const FROM_FILE: &str = "file";

/// Append a reward to an episode
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Reward")]
pub(crate) struct Args {
    /// The episode
    #[arg(help_heading = None::<&str>)]
    episode: EpisodeId,
    /// A number, or null if the episode could not be scored
    #[arg(value_parser = reward_value, allow_negative_numbers = true, help_heading = None::<&str>)]
    value: RewardValue,
    /// Attempt of the episode
    #[arg(long, value_name = "N", default_value_t = 0)]
    attempt: u32,
    /// Name of the reward
    ///
    /// Trainers read the one named `reward`.
    #[arg(long, default_value = "reward")]
    name: String,
    /// Origin of the reward
    #[arg(long, default_value = "cli")]
    source: String,
    /// Reward this call only
    #[arg(long, value_name = "CALL_ID", value_parser = call_id)]
    call: Option<CallId>,
    /// Reward these sampled tokens of --call only
    ///
    /// From START up to, but not including, END.
    #[arg(long, value_name = "START..END", value_parser = span, requires = "call")]
    tokens: Option<(u32, u32)>,
    /// Reward the trajectory that ends with this call
    #[arg(long, value_name = "CALL_ID", value_parser = call_id, conflicts_with = "call")]
    trajectory: Option<CallId>,
    /// Choice of the call, for --tokens and --trajectory
    ///
    /// It is needed if the call has several.
    #[arg(long, value_name = "N")]
    choice: Option<u32>,
    #[command(flatten)]
    ranges: RewardRanges,
    #[command(flatten)]
    store: StoreArgs,
}

fn span(text: &str) -> Result<(u32, u32), String> {
    text.split_once("..")
        .and_then(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)))
        .ok_or_else(|| "not two numbers such as 0..5".to_owned())
}

fn scope(args: &Args) -> Result<RewardScope, ScopeError> {
    RewardScope::new(&ScopeParts {
        word: args.trajectory.map(|_| "trajectory"),
        call: args.trajectory.or(args.call),
        choice: args.choice,
        tokens: args.tokens.unzip(),
    })
}

/// A reward's value; `None` is the word `null`. A type of its own, because clap reads a field of
/// type `Option` as an argument that may be missing.
#[derive(Debug, Clone, Copy)]
struct RewardValue(Option<f64>);

fn reward_value(text: &str) -> Result<RewardValue, String> {
    if text == "null" {
        return Ok(RewardValue(None));
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(RewardValue(Some(number))),
        _ => Err("not a finite number and not null".to_owned()),
    }
}

/// Appends the reward.
pub(crate) async fn run(args: Args) -> CommandResult {
    let scope = scope(&args).map_err(|e| Failure::of(&e))?;
    if scope.tokens().is_some() {
        let sampled = Snapshot::open(&args.store.location).await?.sampled(scope).await?;
        scope.within(sampled).map_err(|e| Failure::of(&e))?;
    }

    let provenance = Provenance {
        by: Some(Giver::Command),
        from: Some(FROM_FILE.to_owned()),
        ..Provenance::default()
    };
    let reward = Reward {
        scope,
        name: args.name,
        value: args.value.0,
        source: args.source,
        at: now(),
        provenance,
    };
    reward.check(&args.ranges.all).map_err(|e| Failure::of(&e))?;
    let store = StoreEditor::open(&args.store.location).await?;
    store.reward(AttemptId { episode: args.episode, attempt: args.attempt }, reward).await?;
    Ok(ExitCode::SUCCESS)
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

    fn parse_scope(words: &str) -> Result<RewardScope, String> {
        let line = format!("reward a 1 {words}");
        let line = Line::try_parse_from(line.split_whitespace()).map_err(|e| e.to_string())?;
        scope(&line.args).map_err(|e| e.to_string())
    }

    #[test]
    fn a_reward_is_about_what_the_options_name() {
        let id = "00000000-0000-0000-0000-000000000007";
        let call: CallId = id.parse().unwrap();
        assert_eq!(parse_scope(""), Ok(RewardScope::Episode));
        assert_eq!(parse_scope(&format!("--call {id}")), Ok(RewardScope::Call(call)));
        let leaf = RewardScope::Trajectory { call, choice: 2 };
        assert_eq!(parse_scope(&format!("--trajectory {id} --choice 2")), Ok(leaf));
        let tokens = RewardScope::Tokens { call, choice: 0, start: 3, end: 5 };
        assert_eq!(parse_scope(&format!("--call {id} --tokens 3..5")), Ok(tokens));
        for (words, why) in [
            ("--tokens 3..5".to_owned(), "--call"),
            (format!("--call {id} --tokens 3"), "two numbers"),
            (format!("--call {id} --tokens 5..3"), "empty token range 5..3"),
            (format!("--call {id} --choice 1"), "has no `choice`"),
            (format!("--call {id} --trajectory {id}"), "cannot be used with"),
        ] {
            let error = parse_scope(&words).unwrap_err();
            assert!(error.contains(why), "{words}: {error}");
        }
    }
}
