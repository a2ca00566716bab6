//! The server and the store of a command that is told of none: those of the server that runs here.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use store::Location;

use super::address::UNIX;
use super::pointer::{self, ServerPointer};
use crate::terminal;

/// The store of a command that is told nothing.
pub(super) const STORE: &str = "rolltape.db";

/// Commands that read a store, or add to one that is recorded to.
const READERS: [&str; 13] = [
    "backup", "close", "diff", "doctor", "episodes", "export", "reward", "show", "sql", "stats",
    "tail", "verify", "view",
];
/// Commands that ask a server, with the options that name it.
const CALLERS: [(&str, &[&str]); 6] = [
    ("control", &["control"]),
    ("feed", &["control"]),
    ("run", &["control", "proxy"]),
    ("replay", &["control", "proxy"]),
    ("fork", &["control", "proxy"]),
    (VIEW, &["control"]),
];
/// The command that leads a browser to the server's page.
const VIEW: &str = "view";

/// The start of a store that is no file.
const DATABASE: &str = "postgres";

/// Options and variables that say which server or which store is meant.
const SAYING: [(&str, &str); 3] = [
    ("location", "ROLLTAPE_STORE"),
    ("control", "ROLLTAPE_CONTROL_URL"),
    ("proxy", "ROLLTAPE_PROXY"),
];

/// The servers that a command line may mean.
#[derive(Debug)]
pub(crate) struct ServersHere {
    running: Vec<ServerPointer>,
    has_store: bool,
}

impl ServersHere {
    /// Looks for the servers, unless the command line or the environment says which one is meant.
    pub(crate) fn of(words: &[OsString], command: &Command) -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let said = SAYING.iter().any(|(_, name)| is_set(name)) || is_said(words, command);
        let running = if said { Vec::new() } else { pointer::running() };
        Self { running, has_store: Path::new(STORE).exists() }
    }

    /// The only one that can be meant: that of the store in this folder, or the only one.
    fn meant(&self) -> Option<&ServerPointer> {
        let own = pointer::absolute(&Location::File(STORE.into()));
        let of_folder = self.running.iter().find(|server| self.has_store && server.store == own);
        let [only] = self.running.as_slice() else { return of_folder };
        of_folder.or(Some(only))
    }

    /// The command with the addresses and the store of that server as its defaults.
    pub(crate) fn set(&self, mut command: Command) -> Command {
        let Some(server) = self.meant() else { return command };
        // A browser opens no socket, and without the token there is no link.
        let has_link = !server.control.starts_with(UNIX) && server.token_file.is_some();
        for (name, options) in CALLERS {
            for option in options.iter().filter(|_| name != VIEW || has_link) {
                let address = if *option == "proxy" { &server.agents } else { &server.control };
                command = with_default(command, name, option, address);
            }
        }
        // What a database needs beside its name is not said where everybody reads it.
        if !self.has_store && !server.store.starts_with(DATABASE) {
            for name in READERS {
                command = with_default(command, name, "location", &server.store);
            }
        }
        command
    }

    /// Says which store is taken that was not named.
    pub(crate) fn remark(&self, matches: &ArgMatches) {
        let Some((name, matches)) = matches.subcommand() else { return };
        let is_default = READERS.contains(&name)
            && matches.value_source("location") == Some(ValueSource::DefaultValue);
        let is_linked = || matches.value_source("control") == Some(ValueSource::DefaultValue);
        if !is_default || self.has_store || (name == VIEW && is_linked()) {
            return;
        }

        match self.running.as_slice() {
            [] => {}
            [only] if only.store.starts_with(DATABASE) || name == "doctor" => {}
            [only] => terminal::remark(&format!(
                "the store is {}, to which a server on this machine records",
                only.store
            )),
            several => {
                let stores: Vec<&str> = several.iter().map(|one| one.store.as_str()).collect();
                terminal::remark(&format!(
                    "several servers run on this machine; --store names one of their stores: {}",
                    stores.join(", ")
                ));
            }
        }
    }
}

/// True if an option of the command line says which server or which store is meant. The words of
/// the command that `run` starts are not ours.
fn is_said(words: &[OsString], command: &Command) -> bool {
    // Help is an error here, and says nothing.
    let parsed = command.clone().ignore_errors(true).try_get_matches_from(words);
    let Ok(matches) = parsed else { return false };
    let Some((_, matches)) = matches.subcommand() else { return false };
    let is_one = |id: &str| SAYING.iter().any(|(known, _)| *known == id);
    let mut given = matches.ids().map(|id| id.as_str()).filter(|id| is_one(id));
    given.any(|id| matches.value_source(id) == Some(ValueSource::CommandLine))
}

fn with_default(command: Command, name: &str, option: &'static str, value: &str) -> Command {
    // A default lives as long as the process.
    let value: &'static str = value.to_owned().leak();
    command.mut_subcommand(name, |command| {
        command.mut_arg(option, |argument| argument.default_value(value))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn the_options_of_a_command_that_run_starts_are_its_own() {
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            is_said(&words, &Cli::command())
        };
        for line in [
            "rolltape run curl --proxy X",
            "rolltape run --group g curl --store=X --control Y",
            "rolltape run -- curl --proxy X",
            "rolltape run curl",
            "rolltape show",
        ] {
            assert!(!said(line), "{line}");
        }
        for line in [
            "rolltape run --proxy http://127.0.0.1:1 curl",
            "rolltape show --store a.db x",
            "rolltape show x --store=a.db",
            "rolltape --color never episodes --control http://127.0.0.1:1",
            "rolltape reward --store a.db",
        ] {
            assert!(said(line), "{line}");
        }
    }

    fn server(store: &str) -> ServerPointer {
        ServerPointer {
            place: String::new(),
            agents: "http://127.0.0.1:1".to_owned(),
            control: "http://127.0.0.1:2".to_owned(),
            store: store.to_owned(),
            token_file: None,
            tokenizer: None,
        }
    }

    #[test]
    fn the_only_server_is_meant_or_that_of_this_folder() {
        let own = pointer::absolute(&Location::File(STORE.into()));
        let meant = |stores: &[&str], has_store| {
            let running = stores.iter().map(|store| server(store)).collect();
            ServersHere { running, has_store }.meant().map(|server| server.store.clone())
        };
        assert_eq!(meant(&[], false), None);
        assert_eq!(meant(&["/a"], false), Some("/a".to_owned()));
        assert_eq!(meant(&["/a", "/b"], false), None);
        assert_eq!(meant(&["/a", &own], true), Some(own.clone()));
        assert_eq!(meant(&["/a", "/b"], true), None);
    }
}
