//! The `rolltape` command: the only crate that reads argv and the environment, prints, and exits.
//! One subcommand a file.
#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "this is the one crate that speaks to the terminal")]

mod at;
mod backup;
mod close;
mod demo;
mod device_options;
mod doctor;
mod engine_command;
mod engine_options;
mod episodes;
mod exit;
mod export;
mod export_files;
mod export_rewards;
mod feed;
mod feed_asked;
mod feed_http;
mod feed_items;
mod feed_rows;
mod feed_sink;
mod http;
mod manner;
mod print;
mod prune;
mod reward;
mod run;
mod serve;
mod server;
mod show;
mod show_call;
mod show_versions;
mod verify;
mod when;
mod words;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Records what an agent says to a language model and turns it into training data.
#[derive(Debug, Parser)]
#[command(name = "rolltape", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage; `run` gives the code of the command it ran, 127 where
there is none such.
Options that show [env: NAME] can stand in the environment.";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Run(run::Args),
    Export(export::Args),
    Feed(feed::Args),
    Episodes(episodes::Args),
    Show(show::Args),
    Reward(reward::Args),
    Close(close::Args),
    Verify(verify::Args),
    Prune(prune::Args),
    Backup(backup::Args),
    Doctor(doctor::Args),
    Engine(engine_command::Args),
    Demo(demo::Args),
}

impl Command {
    /// What is logged unless ROLLTAPE_LOG says otherwise: servers tell what they find, commands
    /// only what goes wrong.
    fn log(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Engine(_) => "warn,proxy=info,engine=info",
            _ => "warn",
        }
    }
}

/// How long threads that still read or write are waited for at the end.
const LEAVE: std::time::Duration = std::time::Duration::from_secs(30);

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("ROLLTAPE_LOG")
        .unwrap_or_else(|_| EnvFilter::new(cli.command.log()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::Failure::from(error).report(),
    };
    let done = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(*args).await,
            Command::Run(args) => run::run(args).await,
            Command::Export(args) => export::run(args).await,
            Command::Feed(args) => feed::run(args).await,
            Command::Episodes(args) => episodes::run(args).await,
            Command::Show(args) => show::run(args).await,
            Command::Reward(args) => reward::run(args).await,
            Command::Close(args) => close::run(args).await,
            Command::Verify(args) => verify::run(args).await,
            Command::Prune(args) => prune::run(args).await,
            Command::Backup(args) => backup::run(args).await,
            Command::Doctor(args) => doctor::run(args).await,
            Command::Engine(args) => engine_command::run(args).await,
            Command::Demo(args) => demo::run(args).await,
        }
    });
    // What still waits for a peer that never answers is not waited for.
    runtime.shutdown_timeout(LEAVE);
    done.unwrap_or_else(|failure| failure.report())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }

    /// Every option of the two servers that is shown, with its variable, is in a line of a page.
    #[test]
    fn what_servers_take_is_documented() {
        let page = ["operations.md", "engine.md"].map(|name| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
            std::fs::read_to_string(std::path::Path::new(folder).join(name)).unwrap()
        });
        let page = page.concat();
        let cli = super::Cli::command();
        let mut seen = 0;
        for server in ["serve", "engine"] {
            let command = cli.find_subcommand(server).unwrap();
            let shown = command.get_arguments().filter(|option| !option.is_hide_set());
            for option in shown.filter(|option| option.get_id() != "help") {
                let long = option.get_long().unwrap();
                let ways = [format!("`--{long}`"), format!("`--{long} ")];
                let variable = option.get_env().map(|name| format!("`{}`", name.display()));
                let told = page.lines().any(|line| {
                    ways.iter().any(|way| line.contains(way))
                        && variable.as_ref().is_none_or(|variable| line.contains(variable))
                });
                assert!(told, "`rolltape {server}` has --{long} ({variable:?})");
                seen += 1;
            }
        }
        assert!(seen > 40, "{seen}");
    }
}
