//! `rolltape engine`: serves a model without the recording proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use engine::{Engine, EngineOptions};

use crate::exit::{CommandResult, Failure};
use crate::options::engine::{EngineArgs, ReportedLogprobsName};
use crate::options::parse::address;
use crate::server::engine::load;
use crate::server::listen::{bind, open};
use crate::server::signals::StopSignals;

/// Serve a model folder, without recording
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelSource,
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000", value_parser = address)]
    listen: SocketAddr,
    /// Numbers that are reported as logprobs
    #[arg(long, value_enum, default_value = "processed_logprobs")]
    logprobs_mode: ReportedLogprobsName,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The source of the model: one of the two is required.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct ModelSource {
    /// A Hugging Face model folder
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_MODEL")]
    model: Option<PathBuf>,
    /// A config.json whose model is created in memory, with untrained weights that are the same
    /// every time; for measuring a shape. Uses the tokenizer.json beside it, or a byte tokenizer
    #[arg(long, value_name = "FILE")]
    random_weights: Option<PathBuf>,
}

/// Serves until a signal asks it to stop.
pub(crate) async fn run(args: Args) -> CommandResult {
    let mut signals = StopSignals::new()?;
    let socket = bind(args.listen, "--listen")?;
    let logprobs_mode = args.logprobs_mode.into();

    let options = EngineOptions { logprobs_mode, ..args.engine.options() };
    let engine = match (&args.model.model, args.model.random_weights) {
        (Some(model), _) => load(model, options).await?,
        (None, Some(config)) => random(config, options).await?,
        (None, None) => {
            return Err(Failure::new("neither --model nor --random-weights was given"));
        }
    };

    // The port opens only now: nobody reaches an engine that could not be loaded.
    eprintln!("{}", engine.device());
    let listener = open(socket)?;
    eprintln!("listening on http://{}, serving {}", listener.local_addr()?, engine.model_name());
    engine::serve(listener, engine, signals.received()).await?;
    Ok(ExitCode::SUCCESS)
}

/// Creates a model of random weights, on a thread that may block.
async fn random(config: PathBuf, options: EngineOptions) -> Result<Engine, Failure> {
    tokio::task::spawn_blocking(move || Engine::random(&config, options))
        .await
        .map_err(|e| Failure::of(&e))?
        .map_err(Into::into)
}
