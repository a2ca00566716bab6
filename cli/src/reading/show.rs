//! `rolltape show`: reads an episode as a conversation.
//!
//! [`page`] is the conversation, [`turn`] its parts and one turn in full, [`tree`] one line a turn,
//! [`tokens`] and [`raw`] what a turn was made of, [`call`] a call as one JSON object, [`given`]
//! who gave the rewards, [`comments`] what people said. [`select`] finds the call that an option
//! names.

mod call;
mod comments;
mod given;
mod page;
mod raw;
mod select;
mod tokens;
mod tree;
mod turn;
mod versions;

use std::path::PathBuf;
use std::process::ExitCode;

use viewer::EpisodeTree;

use self::select::CallName;
use super::named::Depth;
use super::source::{Source, SourceArgs};
use crate::exit::{CommandResult, Failure};
use crate::options::parse::{AttemptName, attempt_name};
use crate::print;
use crate::terminal;

/// Read an episode as a conversation
///
/// Long messages are cut; --turn N shows one turn in full, and --full all of them. The other
/// options show the same episode otherwise: --tree in one line a turn, --tokens and --raw what a
/// turn was made of.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// The episode, or the beginning of its name [default: the newest]
    ///
    /// ID/ATTEMPT for one of its attempts.
    #[arg(value_parser = attempt_name, help_heading = None::<&str>)]
    episode: Option<AttemptName>,
    /// Attempt of the episode [default: the newest]
    #[arg(long, value_name = "N", requires = "episode")]
    attempt: Option<u32>,
    /// Print this turn in full; turns are numbered from 1
    #[arg(long, value_name = "N", conflicts_with_all = ["call", "tree", "full"])]
    turn: Option<u32>,
    /// Print all messages in full
    #[arg(long, conflicts_with_all = ["call", "tree"])]
    full: bool,
    /// Draw the turns as a tree, one line each
    #[arg(long, conflicts_with_all = ["call", "tokens", "raw"])]
    tree: bool,
    /// Print a turn's sampled tokens, colored by logprob
    #[arg(long, conflicts_with = "raw")]
    tokens: bool,
    /// Print the recorded request and reply of a turn
    #[arg(long)]
    raw: bool,
    /// Print a call with all arrays, as one JSON object
    ///
    /// Its number in the episode, its id, or the beginning of its id.
    #[arg(long, value_name = "CALL", value_parser = select::call_name)]
    call: Option<CallName>,
    /// tokenizer.json or model folder, for --tokens
    ///
    /// It gives the text of every token of a store. [default: that of the server of the store]
    #[arg(long, value_name = "PATH", requires = "tokens")]
    tokenizer: Option<PathBuf>,
    /// Print one JSON object per turn
    ///
    /// With --turn, --tokens or --raw it is one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

/// Prints the conversation, or the part or the form of it that is asked for.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let source = args.source.open_with(args.tokenizer.as_deref()).await?;
    let attempt =
        |name: AttemptName| AttemptName { attempt: args.attempt.or(name.attempt), ..name };
    let name = args.episode.clone().map(attempt);
    let named = match (args.turn, &args.call) {
        (Some(number), _) => Some(CallName::Number(number)),
        (None, named) => named.clone(),
    };
    let is_page = !(args.tokens || args.raw || args.json || args.tree || named.is_some());
    let depth = if is_page { Depth::Messages } else { Depth::Turns };
    let reading = source.named(name.as_ref(), 0, depth);
    let tree = terminal::waiting("reading the episode", reading).await?;

    match (args.tokens || args.raw, named) {
        (true, named) => parts(&args, &source, &tree, named).await?,
        (false, Some(name)) if args.turn.is_some() => {
            let call = source.call(&select::find(&tree, &name)?).await?;
            turn::print_one(&tree, &call, args.json)?;
        }
        (false, Some(name)) => {
            let id = select::find(&tree, &name)?;
            call::print(&source, &tree.episode.episode_id, &id).await?;
        }
        (false, None) if args.json => print_turns(&tree)?,
        (false, None) if args.tree => tree::print(&tree)?,
        (false, None) => {
            page::print(&tree, args.full)?;
            let episode = &tree.episode;
            let place = args.source.in_browser(&episode.episode_id, episode.attempt);
            if terminal::messages_are_read() {
                terminal::remark(&format!("\nin a browser: {place}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what a turn was made of: that of `--turn` or `--call`, or the only one.
async fn parts(
    args: &Args,
    source: &Source,
    tree: &EpisodeTree,
    named: Option<CallName>,
) -> Result<(), Failure> {
    let id = match named {
        Some(name) => select::find(tree, &name)?,
        None => select::only(tree)?,
    };
    match args.raw {
        true => raw::print(source, &id, args.json).await,
        false => tokens::print(source, tree, &id, args.json).await,
    }
}

fn print_turns(tree: &EpisodeTree) -> Result<(), Failure> {
    tree.turns.iter().try_for_each(|turn| {
        print::line(&serde_json::to_string(turn).map_err(|e| Failure::of(&e))?)
    })
}
