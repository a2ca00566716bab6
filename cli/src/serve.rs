//! `rolltape serve`: the recording proxy.

use std::net::SocketAddr;
use std::process::ExitCode;

use crate::at::At;
use crate::engine_options::EngineArgs;
use crate::exit::{Done, Failure};
use crate::manner::Manner;
use crate::print::count;
use crate::server::{DurabilityName, Plan, Running, Source, StopSignals};
use crate::words::address;

/// Serve agents and record every call
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    manner: Manner,
    #[command(flatten)]
    at: At,
    /// What a recorded call survives
    #[arg(long, value_enum, default_value_t, env = "ROLLTAPE_DURABILITY")]
    durability: DurabilityName,
    /// Where agents call
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = address)]
    #[arg(env = "ROLLTAPE_LISTEN")]
    listen: SocketAddr,
    /// Where rewards are given and episodes closed; keep it from agents
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081", value_parser = address)]
    #[arg(env = "ROLLTAPE_CONTROL")]
    control: SocketAddr,
    /// Where the engine of --model listens, for trainers that push weights; keep it from agents
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = address)]
    #[arg(env = "ROLLTAPE_ENGINE_LISTEN")]
    engine_listen: SocketAddr,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Serves until it is asked to stop.
pub(crate) async fn run(args: Args) -> Done {
    if !args.control.ip().is_loopback() && args.manner.token.read()?.is_none() {
        return Err(Failure::new("the control listener needs a token beyond loopback").hint(
            "name the variable that holds it with --control-token-env, or give a loopback \
             address with --control, such as 127.0.0.1:8081",
        ));
    }
    let mut signals = StopSignals::new()?;
    let store = args.at.store.to_string();
    let running = Running::start(Plan {
        source: args.source,
        manner: args.manner,
        engine: args.engine,
        store: args.at.store,
        durability: args.durability,
        listen: args.listen,
        control: args.control,
        engine_listen: args.engine_listen,
    })
    .await?;
    eprintln!(
        "listening on {}://{}, control on http://{}, in front of {}, recording to {store}",
        running.scheme, running.data, running.control, running.backend
    );
    if let Some(engine) = running.engine_at {
        eprintln!("the engine listens on http://{engine}, for trainers");
    }
    eprintln!("point an agent at it: OPENAI_BASE_URL={}/e/EPISODE/v1", running.agents_url());
    signals.received().await;
    let calls = running.calls_in_flight();
    if calls > 0 {
        let wait = running.drain_wait.as_secs();
        let calls = count(calls as u64, "call");
        eprintln!("waiting up to {wait} s for {calls} in flight; again to end at once");
    }
    running.stop(signals.received()).await?;
    Ok(ExitCode::SUCCESS)
}
