//! `rolltape serve`: the recording proxy.

mod call_lines;
mod sealing;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use store::Location;

use self::sealing::SealingArgs;
use crate::exit::{CommandResult, Failure};
use crate::log::LogFormat;
use crate::options::address::{ListenAddress, UNIX, file_mode, listen_address};
use crate::options::control::FoundToken;
use crate::options::engine::EngineArgs;
use crate::options::parse::address;
use crate::options::pointer::{self, ServerPointer};
use crate::options::proxy::ProxyArgs;
use crate::options::store::StoreArgs;
use crate::options::tls::ControlTlsArgs;
use crate::print::count;
use crate::server::passed::{PassedSockets, report_ready, report_stopping};
use crate::server::signals::{StopSignals, raise_descriptors};
use crate::server::{BackendArgs, DurabilityName, OWN_SOCKET_MODE, RunningServer, ServerOptions};
use crate::terminal;

/// Serve agents and record every call
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    recording: RecordingArgs,
    #[command(flatten)]
    listeners: ListenerArgs,
    #[command(flatten)]
    proxy: ProxyArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The store, and how safely it is written.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Store")]
struct RecordingArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Failures that a recorded call survives
    #[arg(long, value_enum, value_name = "FAILURE", default_value_t, env = "ROLLTAPE_DURABILITY")]
    durability: DurabilityName,
    #[command(flatten)]
    sealing: SealingArgs,
}

/// Addresses to listen on.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Listeners")]
struct ListenerArgs {
    /// Address of the data listener
    ///
    /// Agents call it. IP:PORT, a port of 127.0.0.1, or unix:PATH for a socket in the file system.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    #[arg(value_parser = listen_address, env = "ROLLTAPE_LISTEN", alias = "port")]
    listen: ListenAddress,
    /// Another IP of --listen, for those who look for the option of other servers
    #[arg(long, value_name = "IP", hide = true)]
    host: Option<IpAddr>,
    /// Address of the control listener
    ///
    /// It takes rewards and closes episodes: keep agents away from it. IP:PORT, a port of
    /// 127.0.0.1, or unix:PATH.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    #[arg(value_parser = listen_address, env = "ROLLTAPE_CONTROL")]
    control: ListenAddress,
    #[command(flatten)]
    control_tls: ControlTlsArgs,
    /// Address of --model's own listener
    ///
    /// Trainers push weights to it: keep agents away from it.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = address)]
    #[arg(env = "ROLLTAPE_ENGINE_LISTEN")]
    engine_listen: SocketAddr,
    /// Mode of the socket of --listen unix:PATH [default: 0600]
    ///
    /// The mode is octal.
    #[arg(long, value_name = "MODE", value_parser = file_mode, env = "ROLLTAPE_SOCKET_MODE")]
    socket_mode: Option<u32>,
}

impl ListenerArgs {
    /// The address of the data listener.
    fn data(&self) -> ListenAddress {
        match (&self.listen, self.host) {
            (ListenAddress::Tcp(address), Some(host)) => {
                ListenAddress::Tcp((host, address.port()).into())
            }
            (listen, _) => listen.clone(),
        }
    }
}

/// Serves until a signal asks it to stop.
pub(crate) async fn run(args: Args, log_format: LogFormat) -> CommandResult {
    let passed = PassedSockets::take()?;
    let control = passed.control_address()?.map(ListenAddress::from);
    let control = control.as_ref().unwrap_or(&args.listeners.control);
    args.proxy.control.check(control)?;
    args.listeners.control_tls.check(control)?;
    let data = passed.data_address()?.map(ListenAddress::from);
    let listen = args.listeners.data();
    args.proxy.check_relay(data.as_ref().unwrap_or(&listen))?;

    check_engine(&args)?;

    let mut signals = StopSignals::new()?;
    let location = args.recording.store.location.clone();
    let store = location.to_string();
    let requires_key = args.proxy.agents.require_key;
    let options = ServerOptions {
        backend: args.backend,
        proxy: args.proxy,
        engine: args.engine,
        store: args.recording.store.location,
        durability: args.recording.durability,
        listen,
        socket_mode: args.listeners.socket_mode.unwrap_or(OWN_SOCKET_MODE),
        control: args.listeners.control,
        control_tls: args.listeners.control_tls,
        engine_listen: args.listeners.engine_listen,
        is_private: false,
        passed,
        descriptors_max: raise_descriptors(),
    };
    let tokenizer = options.tokenizer();
    let running = RunningServer::start(options).await?;

    let pointer = pointer_to(&running, &location, tokenizer);
    let _pointer = pointer.and_then(|pointer| pointer.leave());
    report_addresses(&running, &store, requires_key);
    report_ready();
    let sealing = args.recording.sealing.start(location);
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
    // A sealing may end at any moment; the next one goes on.
    sealing.iter().for_each(tokio::task::JoinHandle::abort);
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
    if !has_engine
        || args.listeners.engine_listen.ip().is_loopback()
        || !args.proxy.control.is_open()
    {
        return Ok(());
    }
    Err(Failure::new("the engine needs a token beyond loopback").hint(
        "leave --control-open out, since the control listener's token opens the engine, too, or \
         give a loopback address with --engine-listen",
    ))
}

/// The pointer by which this server is found.
fn pointer_to(
    running: &RunningServer,
    store: &Location,
    tokenizer: Option<PathBuf>,
) -> Option<ServerPointer> {
    let token = running.token.as_ref().and_then(|found| found.place.as_ref());
    Some(ServerPointer {
        place: pointer::here()?,
        agents: pointer::absolute_address(&running.agents_url()),
        control: pointer::absolute_address(&running.control_url()),
        store: pointer::absolute(store),
        token_file: token.map(PathBuf::from).filter(|path| path.is_absolute()),
        tokenizer: tokenizer.and_then(|path| std::path::absolute(path).ok()),
    })
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

    if !running.control.is_of_this_machine() && running.control_scheme == "http" {
        terminal::message(
            "the control listener can be reached from other machines, and what it says is not \
             encrypted: give it TLS with --control-tls-cert and --control-tls-key",
        );
    }
    terminal::message(&format!(
        "listening on {}, control on {}, in front of {}, recording to {store}",
        running.data.url(running.scheme),
        running.control.url(running.control_scheme),
        running.backend
    ));

    if let Some(engine) = running.engine {
        let whom = match running.token {
            Some(_) => "trainers with the control listener's token",
            None => "this process alone: --control-open leaves no token for trainers",
        };
        terminal::message(&format!("the engine listens on http://{engine}, for {whom}"));
    }

    terminal::message(&agent_hint(&running.agents_url(), requires_key));
    terminal::message(&reader_hint(&running.control_url()));
}

/// The line that points a person to the page. A browser opens no socket of the file system.
fn reader_hint(control_url: &str) -> String {
    match control_url.starts_with(UNIX) {
        true => "read what is recorded: the link that `rolltape view` prints".to_owned(),
        false => format!(
            "read what is recorded: {control_url}/ in a browser, or the link that `rolltape view` \
             prints"
        ),
    }
}

/// The line that points an agent here. OpenAI's SDK does not start without a key.
fn agent_hint(agents_url: &str, requires_key: bool) -> String {
    if let Some(path) = agents_url.strip_prefix(UNIX) {
        let key = if requires_key { " --require-key" } else { "" };
        return format!(
            "point an agent at it: rolltape run{key} --proxy {agents_url} -- COMMAND, or a client \
             of sockets such as curl --unix-socket {path} http://localhost/e/EPISODE/v1/models"
        );
    }
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
