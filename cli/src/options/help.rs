//! Help in a screen: the commands in groups, the usual options of those that have many, examples.

use clap::Command;
use clap::builder::{StyledStr, Styles};

/// The commands in the groups of `rolltape --help`.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Record", &["serve", "run", "replay", "fork", "engine", "demo"]),
    ("Read", &["episodes", "show", "tail", "stats", "diff", "sql", "health", "audit", "view"]),
    ("Train", &["reward", "close", "score", "export", "feed"]),
    (
        "Look after",
        &[
            "doctor",
            "verify",
            "prune",
            "backup",
            "seal",
            "index",
            "scan",
            "redact",
            "publish",
            "control",
            "completions",
        ],
    ),
];

/// The options that `-h` shows of commands with more than a screen of them.
pub(crate) const USUAL: [(&str, &[&str]); 11] = [
    ("replay", &["until", "then", "is_loose", "ignore", "keeps_time", "id", "location", "control"]),
    (
        "fork",
        &["turn", "attempts", "then", "is_loose", "ignore", "id", "group", "location", "control"],
    ),
    (
        "audit",
        &[
            "with",
            "weights",
            "of_version",
            "adapter",
            "with_key_env",
            "export",
            "of_trainer",
            "sample",
            "json",
            "episode",
            "group",
            "location",
            "device",
        ],
    ),
    (
        "serve",
        &[
            "upstream",
            "model",
            "location",
            "listen",
            "control",
            "upstream_key_env",
            "tokenizer",
            "continues",
            "translate",
            "durability",
            "device",
        ],
    ),
    (
        "run",
        &[
            "id",
            "attempt",
            "group",
            "task",
            "proxy",
            "upstream",
            "model",
            "upstream_key_env",
            "tokenizer",
            "pass_env",
            "list_agents",
        ],
    ),
    (
        "engine",
        &[
            "model",
            "listen",
            "token_env",
            "device",
            "served_model_name",
            "max_model_len",
            "kv_cache_memory",
            "max_num_seqs",
            "tool_call_parser",
            "reasoning_parser",
        ],
    ),
    (
        "export",
        &[
            "out",
            "format",
            "encoding",
            "new",
            "episode",
            "group",
            "min_reward",
            "kind",
            "advantage",
            "tokenizer",
            "location",
        ],
    ),
    (
        "score",
        &[
            "with", "name", "top", "out", "model", "at_once", "episode", "group", "location",
            "device",
        ],
    ),
    (
        "feed",
        &[
            "follow",
            "out",
            "format",
            "ack",
            "consumer",
            "unit",
            "group_size",
            "rewarded",
            "max_staleness",
            "advantage",
            "control",
        ],
    ),
    (
        "doctor",
        &[
            "upstream",
            "episode",
            "gpu",
            "model",
            "json",
            "location",
            "upstream_key_env",
            "tokenizer",
        ],
    ),
    (
        "episodes",
        &[
            "group", "task", "label", "state", "since", "sort", "limit", "wide", "watch", "json",
            "location", "control",
        ],
    ),
];

/// Two or three lines that a person would type, for each command that has options to choose.
const EXAMPLES: [(&str, &str); 24] = [
    (
        "serve",
        "rolltape serve --upstream http://127.0.0.1:8000
  rolltape serve --upstream https://api.openai.com --upstream-key-env OPENAI_API_KEY
  rolltape serve --model ~/models/Qwen3-0.6B --store runs.db",
    ),
    (
        "run",
        "rolltape run codex exec 'mend the tests'
  rolltape run --group issue-7 --attempt 2 aider --message 'mend the tests'
  rolltape run --upstream http://127.0.0.1:8000 python agent.py",
    ),
    ("engine", "rolltape engine --model ~/models/Qwen3-0.6B --device cpu"),
    ("demo", "rolltape demo --groups 2 --out demo"),
    (
        "episodes",
        "rolltape episodes --state failed --since 24h --wide
  rolltape episodes --group issue-7 --sort=-reward",
    ),
    (
        "show",
        "rolltape show
  rolltape show aider-amber --turn 3 --tokens
  rolltape show aider-amber --tree",
    ),
    ("tail", "rolltape tail --group issue-7"),
    ("stats", "rolltape stats --since 7d --solved-at 0.5"),
    ("diff", "rolltape diff aider-amber aider-lynx"),
    ("sql", "rolltape sql \"SELECT role, content FROM messages WHERE content LIKE '%error%'\""),
    (
        "audit",
        "rolltape audit --with runs/w/v12
  rolltape audit --with http://127.0.0.1:8000 --sample 0.05
  rolltape audit --with base --weights 'runs/w/v{version}' --json",
    ),
    (
        "health",
        "rolltape health --since 24h
  rolltape health --group issue-7 --json --thresholds ci.json",
    ),
    (
        "view",
        "rolltape view
  rolltape view --control http://127.0.0.1:8081
  rolltape view aider-amber --tokenizer ~/models/Qwen3-0.6B
  rolltape view aider-amber --html session.html",
    ),
    ("reward", "rolltape reward aider-amber 1.0"),
    (
        "score",
        "rolltape score --with http://localhost:8000 --as big --top 8
  rolltape score --with ~/models/Qwen3-8B --as big --group issue-7",
    ),
    (
        "export",
        "rolltape export --out data
  rolltape export --format trl --group issue-7 --out steps.parquet
  rolltape export --out data --new
  rolltape export --format trl-distillation --scores scores/big --out student",
    ),
    ("feed", "rolltape feed --consumer trainer --unit group --follow --ack --out -"),
    (
        "doctor",
        "rolltape doctor --upstream http://127.0.0.1:8000
  rolltape doctor --episode aider-amber
  rolltape doctor --gpu",
    ),
    (
        "prune",
        "rolltape prune --older-than 30d --dry-run
  rolltape prune --episode aider-amber",
    ),
    (
        "backup",
        "rolltape backup --to copy.db
  rolltape backup --episode aider-amber --to session.db",
    ),
    ("publish", "rolltape publish --out agents --group issue-7 --tokenizer ~/models/Qwen3-0.6B"),
    (
        "redact",
        "rolltape redact --to clean.db --tokenizer ~/models/Qwen3-0.6B --match 'TICKET-[0-9]+'",
    ),
    ("scan", "rolltape scan --group issue-7 --tokenizer ~/models/Qwen3-0.6B"),
    (
        "control",
        "rolltape control /ready
  rolltape control /episodes/aider-amber/rewards --json '{\"value\": 1}'",
    ),
];

/// The command with its groups and examples.
pub(crate) fn arranged(command: Command) -> Command {
    let commands = groups(&command);
    command
        .help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}{}\n{{options}}\
             {{after-help}}",
            heading("Global options")
        ))
        .mut_subcommands(|command| match examples(command.get_name()) {
            Some(examples) => command.after_help(examples),
            None => command,
        })
}

/// The command with a help of one line an option, without variables and lists of values, and of
/// commands with many options the usual ones only.
pub(crate) fn short(command: Command) -> Command {
    let mut command = command.mut_args(|arg| {
        let has_value = arg.get_action().takes_values();
        arg.hide_env(true).hide_possible_values(has_value)
    });
    command.build();
    command.mut_subcommands(with_usual_options)
}

fn with_usual_options(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let usual = USUAL.iter().find(|(of, _)| *of == name).map(|(_, usual)| *usual);
    let is_shown = |arg: &clap::Arg| match usual {
        _ if arg.is_positional() => true,
        Some(usual) => usual.contains(&arg.get_id().as_str()),
        None => !arg.is_global_set(),
    };
    let hidden = command.get_arguments().filter(|arg| !arg.is_hide_set() && !is_shown(arg));
    let more = hidden.count();

    let command = command.mut_args(|arg| {
        let has_value = arg.get_action().takes_values();
        let is_shown = is_shown(&arg);
        arg.hide_env(true).hide_possible_values(has_value).hide_short_help(!is_shown)
    });
    if more == 0 {
        return command;
    }
    let mut text = examples(&name).unwrap_or_default();
    if !text.is_empty() {
        text += "\n\n";
    }
    text += &format!("{more} more options: rolltape {name} --help");
    command.after_help(text)
}

fn examples(name: &str) -> Option<String> {
    let (_, lines) = EXAMPLES.iter().find(|(of, _)| *of == name)?;
    Some(format!("{}\n  {lines}", heading("Examples")))
}

/// A heading as clap sets its own.
fn heading(text: &str) -> String {
    let styles = Styles::styled();
    let header = styles.get_header();
    format!("{header}{text}:{header:#}")
}

/// The commands below the names of their groups, each with its first line.
fn groups(command: &Command) -> String {
    let styles = Styles::styled();
    let literal = styles.get_literal();
    let mut text = String::new();
    for (group, names) in GROUPS {
        text += &format!("{}\n", heading(group));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(StyledStr::to_string).unwrap_or_default();
            text += &format!("  {literal}{name:<13}{literal:#}{about}\n");
        }
        text.push('\n');
    }
    text
}
