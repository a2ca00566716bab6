//! `rolltape serve`: the recording proxy.

use std::net::SocketAddr;
use std::process::ExitCode;

use crate::exit::{CommandResult, Failure};
use crate::options::engine::EngineArgs;
use crate::options::parse::address;
use crate::options::proxy::ProxyArgs;
use crate::options::store::StoreArgs;
use crate::print::count;
use crate::server::signals::StopSignals;
use crate::server::{BackendArgs, DurabilityName, RunningServer, ServerOptions};

/// Serve agents and record every call
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    proxy: ProxyArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Failures that a recorded call survives
    #[arg(long, value_enum, default_value_t, env = "ROLLTAPE_DURABILITY")]
    durability: DurabilityName,
    /// Address of the data listener, for agents
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = address)]
    #[arg(env = "ROLLTAPE_LISTEN")]
    listen: SocketAddr,
    /// Address of the control listener, for rewards and closing; keep agents away from it
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081", value_parser = address)]
    #[arg(env = "ROLLTAPE_CONTROL")]
    control: SocketAddr,
    /// Address of --model's own listener, for trainers that push weights; keep agents away from it
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = address)]
    #[arg(env = "ROLLTAPE_ENGINE_LISTEN")]
    engine_listen: SocketAddr,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Serves until a signal asks it to stop.
pub(crate) async fn run(args: Args) -> CommandResult {
    if !args.control.ip().is_loopback() && args.proxy.token.read()?.is_none() {
        return Err(Failure::new("the control listener needs a token beyond loopback").hint(
            "name the variable that holds it with --control-token-env, or give a loopback \
             address with --control, such as 127.0.0.1:8081",
        ));
    }

    let mut signals = StopSignals::new()?;
    let store = args.store.location.to_string();
    let running = RunningServer::start(ServerOptions {
        backend: args.backend,
        proxy: args.proxy,
        engine: args.engine,
        store: args.store.location,
        durability: args.durability,
        listen: args.listen,
        control: args.control,
        engine_listen: args.engine_listen,
    })
    .await?;

    // Tests and scripts read the addresses from these lines.
    eprintln!(
        "listening on {}://{}, control on http://{}, in front of {}, recording to {store}",
        running.scheme, running.data, running.control, running.backend
    );
    if let Some(engine) = running.engine {
        eprintln!("the engine listens on http://{engine}, for trainers");
    }
    eprintln!("point an agent at it: OPENAI_BASE_URL={}/e/EPISODE/v1", running.agents_url());

    signals.received().await;
    let calls = running.calls_in_flight();
    if calls > 0 {
        let wait = running.drain_wait.as_secs();
        let calls = count(calls as u64, "call");
        eprintln!(
            "waiting up to {wait} s for {calls} in flight; a second signal ends them at once"
        );
    }
    running.stop(signals.received()).await?;
    Ok(ExitCode::SUCCESS)
}
