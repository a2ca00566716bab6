//! `rolltape engine`: serves a model without the recording proxy.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use engine::{Access, Engine, EngineOptions};

use crate::exit::{CommandResult, Failure};
use crate::options::engine::{EngineArgs, ReportedLogprobsName};
use crate::options::parse::address;
use crate::options::token::EngineToken;
use crate::server::engine::load;
use crate::server::listen::{bind, open};
use crate::server::signals::StopSignals;
use crate::terminal;

/// Serve a model folder, without recording
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelSource,
    #[command(flatten)]
    listener: EngineListenerArgs,
    /// Kind of the reported logprobs
    ///
    /// The default is processed_logprobs.
    #[arg(long, value_enum, value_name = "MODE", default_value = "processed_logprobs")]
    #[arg(help_heading = "Engine", hide_default_value = true)]
    logprobs_mode: ReportedLogprobsName,
    /// Let requests overtake others by their `priority`
    ///
    /// Without it, priorities have no effect.
    #[arg(long, env = "ROLLTAPE_ALLOW_PRIORITY", help_heading = "Engine")]
    allow_priority: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The source of the model: one of the two is required.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model")]
#[group(required = true, multiple = false)]
struct ModelSource {
    /// Hugging Face model folder
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_MODEL")]
    model: Option<PathBuf>,
    /// config.json of a model with untrained weights
    ///
    /// For measuring a shape. The weights are made in memory, the same every time. The tokenizer
    /// is the tokenizer.json beside the file, or one of bytes.
    #[arg(long, value_name = "FILE")]
    random_weights: Option<PathBuf>,
}

/// The address, and who may call.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Listener")]
struct EngineListenerArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000", value_parser = address)]
    #[arg(alias = "port")]
    listen: SocketAddr,
    /// Another IP of --listen, for those who look for the option of other servers
    #[arg(long, value_name = "IP", hide = true)]
    host: Option<IpAddr>,
    #[command(flatten)]
    token: EngineToken,
    /// Origin whose web pages may call; repeatable
    ///
    /// A scheme and a host. `localhost` stands for the origins of this machine, `*` for all, as in
    /// vLLM. The pages may also read replies.
    #[arg(
        long,
        value_name = "ORIGIN",
        value_delimiter = ',',
        env = "ROLLTAPE_ENGINE_ALLOW_ORIGIN"
    )]
    allow_origin: Vec<String>,
}

impl EngineListenerArgs {
    fn address(&self) -> SocketAddr {
        self.host.map_or(self.listen, |host| (host, self.listen.port()).into())
    }
}

/// Serves until a signal asks it to stop.
pub(crate) async fn run(args: Args) -> CommandResult {
    let mut signals = StopSignals::new()?;
    let access = access(&args.listener)?;
    let socket = bind(args.listener.address(), "--listen")?;
    let logprobs_mode = args.logprobs_mode.into();

    let allow_priority = args.allow_priority;
    let options = EngineOptions { logprobs_mode, allow_priority, ..args.engine.options() };
    let engine = match (&args.model.model, args.model.random_weights) {
        (Some(model), _) => load(model, options).await?,
        (None, Some(config)) => random(config, options).await?,
        (None, None) => {
            return Err(Failure::new("neither --model nor --random-weights was given"));
        }
    };

    // The port opens only now: nobody reaches an engine that could not be loaded.
    engine.description().into_iter().for_each(terminal::message);
    let listener = open(socket)?;
    terminal::message(&format!(
        "listening on http://{}, serving {}",
        listener.local_addr()?,
        engine.model_name()
    ));
    if access.is_open() {
        terminal::message(
            "without --token-env or --token-file, every process of this machine can use every \
             route, those that change the weights included",
        );
    }
    engine::serve(listener, engine, access, signals.received()).await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns who may call the engine: callers with the token, or everybody on this machine.
fn access(args: &EngineListenerArgs) -> Result<Access, Failure> {
    let token = args.token.read()?;
    if token.is_none() && !args.listen.ip().is_loopback() {
        return Err(Failure::new("the engine needs a token beyond loopback").hint(
            "name the variable or the file that holds it with --token-env or --token-file, or give \
             a loopback address with --listen, such as 127.0.0.1:8000",
        ));
    }
    Ok(Access::with_tokens(token).with_origins(args.allow_origin.clone()))
}

/// Creates a model of random weights, on a thread that may block.
async fn random(config: PathBuf, options: EngineOptions) -> Result<Engine, Failure> {
    engine::refuse_gguf(&config)?;
    tokio::task::spawn_blocking(move || Engine::random(&config, options))
        .await
        .map_err(|e| Failure::of(&e))?
        .map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        listener: EngineListenerArgs,
    }

    #[test]
    fn the_options_of_other_servers_name_the_address() {
        for (words, expected) in [
            ("", "127.0.0.1:8000"),
            ("--port 21001", "127.0.0.1:21001"),
            ("--host 0.0.0.0 --port 21001", "0.0.0.0:21001"),
        ] {
            let line = ["engine"].into_iter().chain(words.split_whitespace());
            let address = Line::try_parse_from(line).unwrap().listener.address();
            assert_eq!(address.to_string(), expected);
        }
    }
}
