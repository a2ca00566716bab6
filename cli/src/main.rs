//! The `rolltape` command: the only crate that reads argv and the environment, prints, and exits.
//!
//! One file per subcommand; a folder beside it holds its parts. [`options`] has what several share,
//! [`server`] what `serve` and `run` start.
#![forbid(unsafe_code)]

mod close;
mod completions;
mod control;
mod demo;
mod doctor;
mod engine;
mod exit;
mod export;
mod feed;
mod http;
mod log;
mod options;
mod print;
mod reading;
mod reward;
mod run;
mod scoring;
mod serve;
mod server;
mod terminal;
mod time;
mod upkeep;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::log::LogFormat;
use crate::options::defaults::ServersHere;
use crate::options::help;
use crate::reading::{audit, diff, episodes, health, show, sql, stats, tail, view};
use crate::run::{fork, replay};
use crate::scoring::score;
use crate::terminal::ColorMode;
use crate::upkeep::{backup, index, prune, publish, redact, scan, seal, verify};

/// Record what an agent says to a language model, and turn it into training data
#[derive(Debug, Parser)]
#[command(name = "rolltape", version = version::text(), after_help = AFTER_HELP)]
#[command(disable_help_flag = true, disable_version_flag = true)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
struct GlobalArgs {
    /// Log more: events of a server; twice, its steps as well
    #[arg(short, long, action = ArgAction::Count, global = true, conflicts_with = "quiet")]
    verbose: u8,
    /// Print results only, and log only errors
    ///
    /// There is no progress, no remark and no line per call.
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Form of the log on stderr
    #[arg(long, value_enum, value_name = "FORM", default_value_t, global = true)]
    #[arg(env = "ROLLTAPE_LOG_FORMAT")]
    log_format: LogFormat,
    /// Colors in what is printed
    #[arg(long, value_enum, default_value_t, global = true, value_name = "WHEN")]
    color: ColorMode,
    /// Print the usual options in a line each; --help prints all
    #[arg(short, long, action = ArgAction::Help, global = true)]
    help: Option<bool>,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage. `run` exits with its command's code, or with 127 if the
command is not found.
An option that shows [env: NAME] can also be set by that environment variable.";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Run(Box<run::Args>),
    Replay(Box<replay::Args>),
    Fork(Box<fork::Args>),
    Export(Box<export::Args>),
    Score(Box<score::Args>),
    Feed(feed::Args),
    Episodes(episodes::Args),
    Show(show::Args),
    Tail(tail::Args),
    Stats(stats::Args),
    Diff(diff::Args),
    Reward(reward::Args),
    Close(close::Args),
    Control(control::Args),
    Verify(verify::Args),
    Prune(prune::Args),
    Backup(backup::Args),
    Seal(seal::Args),
    Index(index::Args),
    Scan(scan::Args),
    Redact(redact::Args),
    Publish(publish::Args),
    Sql(sql::Args),
    Health(health::Args),
    Audit(Box<audit::Args>),
    View(view::Args),
    Doctor(doctor::Args),
    Engine(engine::Args),
    Demo(demo::Args),
    Completions(completions::Args),
}

impl Cli {
    /// The log filter if ROLLTAPE_LOG is not set.
    fn log_filter(&self) -> &'static str {
        match (self.global.quiet, self.global.verbose) {
            (true, _) => "error",
            (false, 0) => self.command.log_filter(),
            (false, 1) => "info",
            (false, _) => "debug",
        }
    }
}

impl Command {
    /// The log filter if no option changes it: servers log events, other commands only warnings.
    /// The doctor reports what a server does wrong itself.
    fn log_filter(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Engine(_) => "warn,proxy=info,engine=info",
            Self::Doctor(_) => "error",
            _ => "warn",
        }
    }
}

/// Parses the command line. On wrong usage, and for help, this ends the process.
fn parsed(words: Vec<OsString>) -> Cli {
    let servers = ServersHere::of(&words, &Cli::command());
    let command = help::arranged(servers.set(Cli::command()));
    let command = match words.iter().take_while(|word| *word != "--").any(|word| word == "-h") {
        true => help::short(command),
        false => command,
    };
    let matches = command.get_matches_from(words);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    terminal::configure(cli.global.color, cli.global.quiet);
    servers.remark(&matches);
    cli
}

/// Longest wait for blocking threads at the end.
const SHUTDOWN_WAIT: std::time::Duration = std::time::Duration::from_secs(30);

/// The memory of the static build. Its libc is Zig's, which writes every page of a zeroed
/// allocation, so that the engine's whole cache of keys and values would be resident at the start.
#[cfg(target_env = "musl")]
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Keeps the memory of the process near what it uses: threads come and go, and each would have a
/// heap that keeps what was freed in it.
fn bound_the_heap() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    kernels::heap::use_at_most(processors.max(2));
    ::http::memory::give_back_with(kernels::heap::give_back);
}

fn main() -> ExitCode {
    bound_the_heap();
    let cli = parsed(std::env::args_os().collect());
    if let Err(failure) = log::start(cli.global.log_format, cli.log_filter()) {
        failure.report();
        return exit::usage();
    }

    // After the log: what starting the runtime warns of is shown.
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::Failure::from(error).report(),
    };

    store::bring_segments_back_with(options::segments::bring_back);
    let result = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(*args, cli.global.log_format).await,
            Command::Run(args) => run::run(*args).await,
            Command::Replay(args) => replay::run(*args).await,
            Command::Fork(args) => fork::run(*args).await,
            Command::Export(args) => export::run(*args).await,
            Command::Score(args) => score::run(*args).await,
            Command::Feed(args) => feed::run(args).await,
            Command::Episodes(args) => episodes::run(args).await,
            Command::Show(args) => show::run(args).await,
            Command::Tail(args) => tail::run(args).await,
            Command::Stats(args) => stats::run(args).await,
            Command::Diff(args) => diff::run(args).await,
            Command::Reward(args) => reward::run(args).await,
            Command::Close(args) => close::run(args).await,
            Command::Control(args) => control::run(args).await,
            Command::Verify(args) => verify::run(args).await,
            Command::Prune(args) => prune::run(args).await,
            Command::Backup(args) => backup::run(args).await,
            Command::Seal(args) => seal::run(args).await,
            Command::Index(args) => index::run(args).await,
            Command::Scan(args) => scan::run(args).await,
            Command::Redact(args) => redact::run(args).await,
            Command::Publish(args) => publish::run(args).await,
            Command::Sql(args) => sql::run(args).await,
            Command::Health(args) => health::run(args).await,
            Command::Audit(args) => audit::run(*args).await,
            Command::View(args) => view::run(args).await,
            Command::Doctor(args) => doctor::run(args).await,
            Command::Engine(args) => engine::run(args).await,
            Command::Demo(args) => demo::run(args).await,
            Command::Completions(args) => completions::run(&args, &mut Cli::command()).await,
        }
    });

    // A thread may wait for a peer that never answers; the process must end all the same.
    runtime.shutdown_timeout(SHUTDOWN_WAIT);
    result.unwrap_or_else(|failure| failure.report())
}

#[cfg(test)]
mod tests;
