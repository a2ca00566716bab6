//! The help texts: topics, order and length.

use clap::{Command, CommandFactory};

use crate::Cli;
use crate::options::help;

/// Columns of a terminal on which each option takes one line of `-h`.
const COLUMNS: usize = 100;
/// Lines of the help that a terminal shows at once.
const SCREEN: usize = 40;
const GLOBAL: &str = "Global options";

/// The command line as it is parsed, with the options that every subcommand gets.
fn built() -> Command {
    let mut cli = Cli::command();
    cli.build();
    cli
}

#[test]
fn every_option_is_below_a_topic() {
    let cli = built();
    let global: Vec<_> = cli.get_arguments().map(|option| option.get_id().clone()).collect();
    let mut seen = 0;
    for command in cli.get_subcommands().filter(|command| command.get_name() != "help") {
        for option in command.get_arguments() {
            let name = format!("{} {}", command.get_name(), option.get_id());
            let heading = option.get_help_heading();
            let is_global = global.contains(option.get_id());
            assert_eq!(heading.is_none(), option.is_positional(), "{name}");
            assert_eq!(heading == Some(GLOBAL), is_global, "{name}");
            seen += 1;
        }
    }
    assert!(seen > 300, "{seen}");
}

/// An option that follows another struct of options could be taken into its topic.
#[test]
fn topics_do_not_take_in_their_neighbors() {
    let cli = built();
    for (command, option, topic) in [
        ("engine", "logprobs_mode", "Engine"),
        ("engine", "allow_priority", "Engine"),
        ("episodes", "json", "Output"),
        ("export", "episode", "Episodes"),
        ("feed", "follow", "Output"),
        ("serve", "durability", "Store"),
    ] {
        let command = cli.find_subcommand(command).unwrap();
        let found = command.get_arguments().find(|one| one.get_id() == option).unwrap();
        assert_eq!(found.get_help_heading(), Some(topic), "{option}");
    }
}

#[test]
fn global_options_are_the_last_topic() {
    for command in built().get_subcommands().filter(|command| command.get_name() != "help") {
        let help = command.clone().render_help().to_string();
        let mut topics = help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' '));
        assert_eq!(topics.next_back(), Some("Global options:"), "{}", command.get_name());
    }
}

#[test]
fn the_short_help_is_a_screen_of_one_line_an_option() {
    let cli = help::short(help::arranged(Cli::command()).term_width(COLUMNS));
    for command in cli.get_subcommands().filter(|command| command.get_name() != "help") {
        let help = command.clone().render_help().to_string();
        let (_, topics) = help.split_once("\n\n").unwrap();
        let lines = topics.lines().filter(|line| line.starts_with(' '));
        let wrapped: Vec<&str> = lines.filter(|line| line.starts_with("          ")).collect();
        assert_eq!(wrapped, [""; 0], "{}", command.get_name());
        assert!(help.lines().count() <= SCREEN, "{help}");
    }
}

#[test]
fn commands_have_a_group_and_examples_that_they_take() {
    let mut cli = help::arranged(Cli::command());
    let all = cli.render_help().to_string();
    let mut examples = 0;
    for command in built().get_subcommands().filter(|command| command.get_name() != "help") {
        let name = command.get_name();
        let line = format!("  {name:<13}{}", command.get_about().unwrap());
        assert!(all.lines().any(|found| found == line), "{line}\n{all}");

        let help = cli.find_subcommand(name).unwrap().get_after_help();
        let help = help.map(ToString::to_string).unwrap_or_default();
        for example in help.lines().filter(|line| line.starts_with("  rolltape")) {
            let words = shell_words(example.trim());
            assert_eq!(words[1], name, "{example}");
            Cli::command().try_get_matches_from(&words).unwrap_or_else(|error| panic!("{error}"));
            examples += 1;
        }
    }
    assert!(examples > 25, "{examples}");
}

/// The words of a command whose quotes hold no quotes.
fn shell_words(line: &str) -> Vec<String> {
    let quote = line.find(['"', '\'']).map_or('"', |at| char::from(line.as_bytes()[at]));
    let parts = line.split(quote).enumerate();
    parts
        .flat_map(|(part, text)| match part % 2 {
            0 => text.split_whitespace().map(str::to_owned).collect(),
            _ => vec![text.to_owned()],
        })
        .collect()
}

/// A misspelled name of a usual option would hide it.
#[test]
fn usual_options_are_there() {
    let cli = help::short(help::arranged(Cli::command()));
    for (name, usual) in help::USUAL {
        let command = cli.find_subcommand(name).unwrap();
        for option in usual {
            let found = command.get_arguments().find(|one| one.get_id() == option);
            assert!(found.is_some_and(|one| !one.is_hide_short_help_set()), "{name} {option}");
        }
    }
}

/// The first paragraph is a phrase; what follows are sentences.
#[test]
fn texts_end_as_phrases_and_sentences_do() {
    for command in built().get_subcommands() {
        for option in command.get_arguments() {
            let name = format!("{} {}", command.get_name(), option.get_id());
            let short = option.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!short.is_empty() && !short.ends_with('.'), "{name}: {short}");
            let long = option.get_long_help().map(ToString::to_string).unwrap_or_default();
            let details = long.strip_prefix(&short).unwrap_or_default().trim();
            let is_whole = details.is_empty() || details.ends_with(['.', ']']);
            assert!(is_whole, "{name}: {details}");
        }
    }
}
