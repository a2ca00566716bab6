//! `rolltape engine`: the inference backend alone.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use engine::{Engine, EngineOptions};

use crate::engine_options::{EngineArgs, ReportName};
use crate::exit::{Done, Failure};
use crate::server::{StopSignals, bind, load, open};
use crate::words::address;

/// Serve a model folder, without recording
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    weights: Weights,
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000", value_parser = address)]
    listen: SocketAddr,
    /// What the reported logprobs are of
    #[arg(long, value_enum, default_value = "processed_logprobs")]
    logprobs_mode: ReportName,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Where the model comes from: give one of the two.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Weights {
    /// A Hugging Face model folder
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_MODEL")]
    model: Option<PathBuf>,
    /// A config.json of which a model is made in memory, always with the same weights that nobody
    /// trained: to measure a shape. A tokenizer.json beside it is used, or one of bytes is made
    #[arg(long, value_name = "FILE")]
    random_weights: Option<PathBuf>,
}

/// Serves until it is asked to stop.
pub(crate) async fn run(args: Args) -> Done {
    let mut signals = StopSignals::new()?;
    let socket = bind(args.listen, "--listen")?;
    let logprobs_mode = args.logprobs_mode.into();
    let options = EngineOptions { logprobs_mode, ..args.engine.options() };
    let engine = match (&args.weights.model, args.weights.random_weights) {
        (Some(model), _) => load(model, options).await?,
        (None, Some(config)) => random(config, options).await?,
        (None, None) => {
            return Err(Failure::new("neither --model nor --random-weights was given"));
        }
    };
    eprintln!("{}", engine.device());
    let listener = open(socket)?;
    eprintln!("listening on http://{}, serving {}", listener.local_addr()?, engine.model_name());
    engine::serve(listener, engine, signals.received()).await?;
    Ok(ExitCode::SUCCESS)
}

/// Makes a model without holding up the runtime.
async fn random(config: PathBuf, options: EngineOptions) -> Result<Engine, Failure> {
    let made = tokio::task::spawn_blocking(move || Engine::random(&config, options)).await;
    Ok(made.map_err(|e| Failure::of(&e))??)
}
