//! The `rolltape` command: the only crate that reads argv and the environment, prints, and exits.
//!
//! One file per subcommand; a folder beside it holds its parts. [`options`] has what several share,
//! [`server`] what `serve` and `run` start.
#![forbid(unsafe_code)]

mod backup;
mod close;
mod demo;
mod doctor;
mod engine;
mod episodes;
mod exit;
mod export;
mod feed;
mod http;
mod log;
mod options;
mod print;
mod prune;
mod reward;
mod run;
mod secret_file;
mod serve;
mod server;
mod show;
mod terminal;
mod time;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::log::LogFormat;

/// Record what an agent says to a language model, and turn it into training data
#[derive(Debug, Parser)]
#[command(name = "rolltape", version, after_help = AFTER_HELP)]
struct Cli {
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value_t, global = true, env = "ROLLTAPE_LOG_FORMAT")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage. `run` exits with its command's code, or with 127 if the
command is not found.
An option that shows [env: NAME] can also be set by that environment variable.";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Run(Box<run::Args>),
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
    Engine(engine::Args),
    Demo(demo::Args),
}

impl Command {
    /// The log filter if ROLLTAPE_LOG is not set: servers log events, other commands only warnings.
    /// The doctor reports what a server does wrong itself.
    fn log_filter(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Engine(_) => "warn,proxy=info,engine=info",
            Self::Doctor(_) => "error",
            _ => "warn",
        }
    }
}

/// Longest wait for blocking threads at the end.
const SHUTDOWN_WAIT: std::time::Duration = std::time::Duration::from_secs(30);

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(failure) = log::start(cli.log_format, cli.command.log_filter()) {
        failure.report();
        return exit::usage();
    }

    // After the log: what starting the runtime warns of is shown.
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::Failure::from(error).report(),
    };

    let result = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(*args).await,
            Command::Run(args) => run::run(*args).await,
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
            Command::Engine(args) => engine::run(args).await,
            Command::Demo(args) => demo::run(args).await,
        }
    });

    // A thread may wait for a peer that never answers; the process must end all the same.
    runtime.shutdown_timeout(SHUTDOWN_WAIT);
    result.unwrap_or_else(|failure| failure.report())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }

    /// The pages that list the options of `serve` and `engine`.
    fn option_pages() -> String {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        ["serving.md", "engine.md", "weights.md"]
            .map(|page| std::fs::read_to_string(docs.join(page)).unwrap())
            .concat()
    }

    /// One line of the pages has the option and its variable.
    #[test]
    fn every_option_of_the_servers_is_documented() {
        let page = option_pages();
        let cli = super::Cli::command();
        let mut seen = 0;
        for server in ["serve", "engine"] {
            let command = cli.find_subcommand(server).unwrap();
            let shown = command.get_arguments().filter(|option| !option.is_hide_set());
            for option in shown.filter(|option| option.get_id() != "help") {
                let long = option.get_long().unwrap();
                let ways = [format!("`--{long}`"), format!("`--{long} ")];
                let variable = option.get_env().map(|name| format!("`{}`", name.display()));
                let documented = page.lines().any(|line| {
                    ways.iter().any(|way| line.contains(way))
                        && variable.as_ref().is_none_or(|variable| line.contains(variable))
                });
                assert!(documented, "`rolltape {server}` has --{long} ({variable:?})");
                seen += 1;
            }
        }
        assert!(seen > 40, "{seen}");
    }
}
