//! `rolltape serve`: the recording proxy.

use std::net::SocketAddr;
use std::process::ExitCode;

use crate::exit::{CommandResult, Failure};
use crate::log::LogFormat;
use crate::options::control::FoundToken;
use crate::options::engine::EngineArgs;
use crate::options::parse::address;
use crate::options::proxy::ProxyArgs;
use crate::options::store::StoreArgs;
use crate::print::count;
use crate::server::call_lines;
use crate::server::listen::reachable;
use crate::server::passed::{PassedSockets, report_ready, report_stopping};
use crate::server::signals::{StopSignals, raise_descriptors};
use crate::server::{BackendArgs, DurabilityName, RunningServer, ServerOptions};
use crate::terminal;

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
pub(crate) async fn run(args: Args, log_format: LogFormat) -> CommandResult {
    let passed = PassedSockets::take()?;
    let control = passed.control_address()?.unwrap_or(args.control);
    args.proxy.control.check(control)?;
    args.proxy.check_relay(passed.data_address()?.unwrap_or(args.listen))?;

    check_engine(&args)?;

    let mut signals = StopSignals::new()?;
    let store = args.store.location.to_string();
    let requires_key = args.proxy.require_key;
    let running = RunningServer::start(ServerOptions {
        backend: args.backend,
        proxy: args.proxy,
        engine: args.engine,
        store: args.store.location,
        durability: args.durability,
        listen: args.listen,
        control: args.control,
        engine_listen: args.engine_listen,
        is_private: false,
        passed,
        descriptors_max: raise_descriptors(),
    })
    .await?;

    report_addresses(&running, &store, requires_key);
    report_ready();
    let lines =
        (!terminal::is_quiet()).then(|| call_lines::start(running.viewer.clone(), log_format));

    signals.received().await;
    report_stopping();
    let calls = running.calls_in_flight();
    if calls > 0 {
        let wait = running.drain_wait.as_secs();
        let calls = count(calls as u64, "call");
        terminal::message(&format!(
            "waiting up to {wait} s for {calls} in flight; a second signal ends them at once"
        ));
    }
    running.stop(signals.received()).await?;
    if let Some(lines) = lines {
        // A person waits for the lines of the last calls; a log does not.
        if terminal::messages_are_read() {
            tokio::time::sleep(call_lines::LOOK_EVERY).await;
        }
        lines.abort();
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses an engine that everybody beyond this machine could use.
fn check_engine(args: &Args) -> Result<(), Failure> {
    let has_engine = args.backend.model.is_some();
    if !has_engine || args.engine_listen.ip().is_loopback() || !args.proxy.control.is_open() {
        return Ok(());
    }
    Err(Failure::new("the engine needs a token beyond loopback").hint(
        "leave --control-open out, since the control listener's token opens the engine, too, or \
         give a loopback address with --engine-listen",
    ))
}

/// Prints the token's place and the addresses. Tests and scripts read these lines.
fn report_addresses(running: &RunningServer, store: &str, requires_key: bool) {
    match &running.token {
        Some(FoundToken { place: Some(place), .. }) => {
            terminal::message(&format!("the control listener's token is in {place}"));
        }
        Some(_) => {}
        None => terminal::message(
            "anybody on this machine can use the control listener: --control-open",
        ),
    }

    terminal::message(&format!(
        "listening on {}://{}, control on http://{}, in front of {}, recording to {store}",
        running.scheme, running.data, running.control, running.backend
    ));

    if let Some(engine) = running.engine {
        let whom = match running.token {
            Some(_) => "trainers with the control listener's token",
            None => "this process alone: --control-open leaves no token for trainers",
        };
        terminal::message(&format!("the engine listens on http://{engine}, for {whom}"));
    }

    terminal::message(&agent_hint(&running.agents_url(), requires_key));
    let page = reachable(running.control);
    terminal::message(&format!(
        "read what is recorded: http://{page}/ in a browser, or the link that `rolltape view` \
         prints"
    ));
}

/// The line that points an agent here. OpenAI's SDK does not start without a key.
fn agent_hint(agents_url: &str, requires_key: bool) -> String {
    let url = format!("OPENAI_BASE_URL={agents_url}/e/EPISODE/v1");
    match requires_key {
        // A key is made for one episode.
        true => format!(
            "point an agent at it: rolltape run --require-key --proxy {agents_url} -- COMMAND, or \
             {url} with a key of the episode in OPENAI_API_KEY"
        ),
        // The user's own key stays: the upstream may require it.
        false => format!(
            "point an agent at it: {url} OPENAI_API_KEY=${{OPENAI_API_KEY:-unused}} python agent.py"
        ),
    }
}
