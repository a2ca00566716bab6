//! Names of episodes and groups that complete a word.
//!
//! Nothing is said of what is wrong: the command will, once it is whole.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, Command};
use serde::de::DeserializeOwned;
use store::Location;
use viewer::{Answer, EpisodeList, GroupList, View, Viewer};

use crate::exit::CommandResult;
use crate::options::defaults::ServersHere;
use crate::print;

/// Longest wait for a store: whoever has pressed a key waits.
const WAIT: Duration = Duration::from_secs(1);
/// Newest attempts or groups that are looked at, of those with the typed text in their name.
const LOOKED_AT: u32 = 1000;
/// Names that are printed.
const NAMES_MAX: usize = 200;

/// Prints the names that the last of `words` may become; none where no name is expected.
pub(super) async fn print(words: &[String], command: &Command) -> CommandResult {
    let found = tokio::time::timeout(WAIT, found(words, command)).await;
    found.ok().flatten().unwrap_or_default().iter().try_for_each(|name| print::line(name))?;
    Ok(ExitCode::SUCCESS)
}

async fn found(words: &[String], command: &Command) -> Option<Vec<String>> {
    let place = NamePlace::of(words, command)?;
    let viewer = Viewer::new(place.store(command)?, None);
    let typed = place.typed.as_str();
    let names: Vec<String> = match place.kind {
        NameKind::Episode => {
            let list: EpisodeList = document(&viewer, View::Episodes, typed).await?;
            list.episodes.into_iter().map(|episode| episode.episode_id).collect()
        }
        NameKind::Group => {
            let list: GroupList = document(&viewer, View::Groups, typed).await?;
            list.groups.into_iter().map(|group| group.group_id).collect()
        }
    };

    let mut begun: Vec<String> = Vec::new();
    for name in names.into_iter().filter(|name| name.starts_with(typed)) {
        if begun.len() < NAMES_MAX && !begun.contains(&name) {
            begun.push(name);
        }
    }
    Some(begun)
}

async fn document<T: DeserializeOwned>(viewer: &Viewer, view: View, typed: &str) -> Option<T> {
    let parameters = [("limit", LOOKED_AT.to_string()), ("name", typed.to_owned())];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value));
    match viewer.answer(view, "", &parameters).await {
        Ok(Answer::Document(text)) => serde_json::from_slice(&text).ok(),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKind {
    Episode,
    Group,
}

impl NameKind {
    fn of(argument: &Arg) -> Option<Self> {
        match argument.get_id().as_str() {
            // `diff` calls its two episodes A and B.
            "episode" | "a" | "b" => Some(Self::Episode),
            "group" => Some(Self::Group),
            _ => None,
        }
    }
}

/// The place of a command line at which a name is typed.
#[derive(Debug, PartialEq, Eq)]
struct NamePlace {
    kind: NameKind,
    typed: String,
    /// The words before, without an option that waits for its value.
    before: Vec<String>,
}

impl NamePlace {
    fn of(words: &[String], command: &Command) -> Option<Self> {
        // bash gives the `=` of an option as a word of its own.
        let is_begun = words.last().is_none_or(|word| word == "=");
        let mut before: Vec<String> = words.iter().filter(|word| *word != "=").cloned().collect();
        let typed = if is_begun { String::new() } else { before.pop()? };
        let at = before.iter().position(|word| command.find_subcommand(word).is_some())?;
        let options = KnownOptions { own: command.find_subcommand(&before[at])?, global: command };

        let behind = &before[at + 1..];
        let (positionals, open) = options.walk(behind)?;
        let (argument, typed) = match (typed.split_once('='), open) {
            (Some((option, typed)), None) if option.starts_with('-') => {
                (options.find(option)?, typed.to_owned())
            }
            (_, Some(option)) => {
                before.pop();
                (option, typed)
            }
            _ if typed.starts_with('-') => return None,
            _ => (options.own.get_positionals().nth(positionals)?, typed),
        };
        Some(Self { kind: NameKind::of(argument)?, typed, before })
    }

    /// The store that the command would read.
    fn store(&self, command: &Command) -> Option<Location> {
        let words: Vec<OsString> = std::iter::once("rolltape")
            .chain(self.before.iter().map(String::as_str))
            .map(OsString::from)
            .collect();
        let command = ServersHere::of(&words, command).set(command.clone()).ignore_errors(true);
        let matches = command.try_get_matches_from(words).ok()?;
        let (_, matches) = matches.subcommand()?;
        let control = matches.ids().find(|id| id.as_str() == "control");
        let asks_server = control
            .is_some_and(|id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine));
        if asks_server {
            return None;
        }
        matches.try_get_one::<Location>("location").ok().flatten().cloned()
    }
}

/// The options of a command.
struct KnownOptions<'a> {
    own: &'a Command,
    global: &'a Command,
}

impl<'a> KnownOptions<'a> {
    /// The option that a word names.
    fn find(&self, word: &str) -> Option<&'a Arg> {
        let all = self.own.get_arguments().chain(self.global.get_arguments());
        let mut all = all.filter(|argument| !argument.is_positional());
        all.find(|argument| match word.strip_prefix("--") {
            Some(long) => argument.get_long() == Some(long),
            None => argument.get_short().is_some_and(|short| word == format!("-{short}")),
        })
    }

    /// The number of positional words, and the option whose value comes next; `None` where what
    /// follows is for another command.
    fn walk(&self, words: &[String]) -> Option<(usize, Option<&'a Arg>)> {
        let has_command =
            self.own.get_positionals().any(|argument| argument.is_trailing_var_arg_set());
        let (mut positionals, mut open) = (0, None);
        for word in words {
            if open.take().is_some() {
                continue;
            }
            if word == "--" || has_command && !word.starts_with('-') {
                return None;
            }
            match word.starts_with('-') {
                true => open = self.find(word).filter(|found| found.get_action().takes_values()),
                false => positionals += 1,
            }
        }
        Some((positionals, open))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    fn place(line: &str) -> Option<(NameKind, String)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        NamePlace::of(&words, &Cli::command()).map(|place| (place.kind, place.typed))
    }

    #[test]
    fn a_name_is_expected_where_a_command_takes_one() {
        let episode = |typed: &str| Some((NameKind::Episode, typed.to_owned()));
        let group = |typed: &str| Some((NameKind::Group, typed.to_owned()));
        for (line, expected) in [
            ("show ", episode("")),
            ("show run-", episode("run-")),
            ("show --store a.db run-", episode("run-")),
            ("--color never show --tokens r", episode("r")),
            ("diff one tw", episode("tw")),
            ("reward ", episode("")),
            ("export --episode x", episode("x")),
            ("export --episode=x", episode("x")),
            ("export --episode = x", episode("x")),
            ("export --episode =", episode("")),
            ("export --group g", group("g")),
            ("run --group g", group("g")),
            ("view x --html ", None),
            ("reward one ", None),
            ("show --", None),
            ("run --episode n", None),
            ("run curl --group g", None),
            ("run -- --group g", None),
            ("sho", None),
            ("", None),
        ] {
            assert_eq!(place(line), expected, "{line}");
        }
    }

    #[test]
    fn the_store_is_that_of_the_line() {
        let words = ["show", "--store", "/runs/a.db", "--turn", "3", "x"].map(str::to_owned);
        let command = Cli::command();
        let place = NamePlace::of(&words, &command).unwrap();
        assert_eq!(place.store(&command).unwrap().to_string(), "/runs/a.db");
        let words = ["show", "--control", "http://127.0.0.1:1", "x"].map(str::to_owned);
        assert!(NamePlace::of(&words, &command).unwrap().store(&command).is_none());
    }
}
