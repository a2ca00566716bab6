//! The page of all environment variables, held against the code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::CommandFactory;

use crate::Cli;

/// The line before the table.
const START: &str = "<!-- Made from the options by a test. -->\n";
const HEAD: &str = "| variable | option | read by | meaning |\n| --- | --- | --- | --- |\n";
const EVERY: &str = "every command";

/// Variables that are no option's, or that are read after another one.
const OTHERS: [(&str, &str, &str, &str); 6] = [
    (
        "ROLLTAPE_ATTEMPT",
        "",
        "agents",
        "set for the agent, by `run` and in Python: the attempt of its episode",
    ),
    ("ROLLTAPE_BIN", "", "", "the `rolltape` command that the Python package starts"),
    ("ROLLTAPE_CONTROL_TOKEN", "", "`serve`, `run`, `feed`", "the control listener's token itself"),
    (
        "ROLLTAPE_CONTROL_TOKEN_FILE",
        "`--control-token-file`",
        "`serve`, `run`, `feed`",
        "File that holds the control listener's token; a server makes it if it is missing",
    ),
    ("ROLLTAPE_EPISODE", "", "agents", "set for the agent, by `run` and in Python: its episode"),
    ("ROLLTAPE_LOG", "", EVERY, "filter of the log on stderr, such as `warn,proxy=debug`"),
];

/// A row of the table.
#[derive(Default)]
struct Variable {
    options: BTreeSet<String>,
    readers: Vec<String>,
    meaning: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of all files below a folder that end like this, without files of tests.
fn texts(folder: &Path, end: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.file_stem().is_some_and(|name| name == "tests") {
            continue;
        } else if entry.is_dir() {
            found.extend(texts(&entry, end));
        } else if entry.to_string_lossy().ends_with(end) {
            found.push(std::fs::read_to_string(entry).unwrap());
        }
    }
    found
}

/// The variables that are named in quotes.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').filter(|word| {
        let rest = word.strip_prefix("ROLLTAPE_").unwrap_or_default();
        rest.chars().next().is_some_and(|first| first.is_ascii_uppercase())
            && rest.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    })
}

/// The variables that the Python package reads: constants whose name says so.
fn read_by_python() -> BTreeSet<String> {
    let texts = texts(&root().join("python/rolltape"), ".py");
    let lines = texts.iter().flat_map(|text| text.lines());
    let constants = lines.filter(|line| line.contains("VARIABLE = "));
    constants.flat_map(named).map(str::to_owned).collect()
}

/// The help of an option in one line.
fn meaning(option: &clap::Arg) -> String {
    let help = option.get_long_help().or(option.get_help()).unwrap().to_string();
    help.replacen("\n\n[", " [", 1).replacen("\n\n", ". ", 1)
}

/// The variables of all options.
fn of_options() -> BTreeMap<String, Variable> {
    let mut found: BTreeMap<String, Variable> = BTreeMap::new();
    let mut cli = Cli::command();
    cli.build();
    let global: BTreeSet<_> = cli.get_arguments().map(|option| option.get_id().clone()).collect();
    for command in cli.get_subcommands() {
        for option in command.get_arguments() {
            let Some(name) = option.get_env().and_then(|name| name.to_str()) else { continue };
            let variable = found.entry(name.to_owned()).or_default();
            let is_global = global.contains(option.get_id());
            let reader = if is_global { EVERY } else { &format!("`{}`", command.get_name()) };
            if !variable.readers.iter().any(|known| known == reader) {
                variable.readers.push(reader.to_owned());
            }
            variable.options.insert(format!("`--{}`", option.get_long().unwrap()));
            if variable.meaning.is_empty() {
                variable.meaning = meaning(option).replace('|', "\\|");
            }
        }
    }
    found
}

/// The table.
fn table() -> String {
    let mut variables = of_options();
    for (name, option, readers, meaning) in OTHERS {
        let lists = [option, readers].map(|list| list.split(", ").filter(|one| !one.is_empty()));
        let [options, readers] = lists.map(|list| list.map(str::to_owned));
        let (options, readers) = (options.collect(), readers.collect());
        let row = Variable { options, readers, meaning: meaning.to_owned() };
        assert!(variables.insert(name.to_owned(), row).is_none(), "{name} is an option's");
    }
    for name in read_by_python() {
        variables.entry(name).or_default().readers.push("Python".to_owned());
    }

    let mut page = HEAD.to_owned();
    for (name, Variable { options, readers, meaning }) in variables {
        let options = options.into_iter().collect::<Vec<_>>().join(", ");
        page += &format!("| `{name}` | {options} | {} | {meaning} |\n", readers.join(", "));
    }
    page
}

/// `UPDATE_DOCS=1 cargo test -p cli variables` writes the table instead of comparing it.
#[test]
fn one_page_lists_every_variable() {
    let path = root().join("docs/environment.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, listed) = page.split_once(START).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{START}{}", table())).unwrap();
    } else {
        assert_eq!(listed, table(), "run with UPDATE_DOCS=1");
    }
}

/// A variable that is read without an option, or in Python only, is on the page as well.
#[test]
fn no_variable_is_read_that_the_page_does_not_have() {
    let table = table();
    let mut seen = BTreeSet::new();
    let mut sources = texts(&root().join("python/rolltape"), ".py");
    sources.extend(texts(&root().join("cli/src"), ".rs").into_iter().map(|text| {
        // Tests make names up.
        text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()
    }));
    for text in &sources {
        seen.extend(named(text));
    }
    assert!(seen.len() > 60, "{seen:?}");
    for name in &seen {
        assert!(table.contains(&format!("| `{name}` |")), "{name} is read and not listed");
    }
    for row in table.lines().skip(2) {
        let name = row.split('`').nth(1).unwrap();
        assert!(seen.contains(name), "{name} is listed and nobody reads it");
    }
}

/// What the command and the Python package both read has one name.
#[test]
fn python_reads_what_the_clients_of_a_server_read() {
    let shared = [
        "ROLLTAPE_CONTROL_CA",
        "ROLLTAPE_CONTROL_TOKEN",
        "ROLLTAPE_CONTROL_TOKEN_ENV",
        "ROLLTAPE_CONTROL_TOKEN_FILE",
        "ROLLTAPE_CONTROL_URL",
        "ROLLTAPE_PROXY",
        "ROLLTAPE_STORE",
    ];
    let mut expected = BTreeSet::from(shared.map(str::to_owned));
    expected.insert("ROLLTAPE_BIN".to_owned());
    assert_eq!(read_by_python(), expected);
}
