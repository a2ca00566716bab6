//! `rolltape engine`: the inference backend alone.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use engine::EngineOptions;

use crate::exit::Done;
use crate::manner::LogprobsName;
use crate::server::{StopSignals, bind, load};

/// Serve a model folder, without recording
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A Hugging Face model folder
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_MODEL")]
    model: PathBuf,
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// The name that requests give as `model`; the folder's name if absent
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Tokens of a prompt and its reply together; what the model was made for if absent
    #[arg(long, value_name = "N")]
    max_model_len: Option<usize>,
    /// What the reported logprobs are of
    #[arg(long, value_enum, default_value = "processed_logprobs")]
    logprobs_mode: LogprobsName,
    /// Makes requests that give no seed repeatable
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Serves until it is asked to stop.
pub(crate) async fn run(args: Args) -> Done {
    let signals = StopSignals::new()?;
    let listener = bind(args.listen, "--listen").await?;
    let options = EngineOptions {
        served_model_name: args.served_model_name,
        max_model_len: args.max_model_len,
        logprobs_mode: args.logprobs_mode.into(),
        seed: args.seed,
        ..EngineOptions::default()
    };
    let engine = load(&args.model, options).await?;
    eprintln!("listening on http://{}, serving {}", listener.local_addr()?, engine.model_name());
    engine::serve(listener, engine, signals.received()).await?;
    Ok(ExitCode::SUCCESS)
}
