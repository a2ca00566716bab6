//! `rolltape run --harbor`: each trial of Harbor's command as an episode.
//!
//! - [`messages`]: the socket on which Harbor's plugin says what its trials do.
//! - [`trials`]: the trials and their episodes: announced, rewarded, closed.
//! - [`ids`]: what was recorded of an episode, in the form of Harbor's `rollout_details`.
//! - [`result_file`]: `result.json` of a trial.
//! - `report`: the table of agents, and the file of trials.

mod ids;
mod messages;
mod report;
mod result_file;
mod trials;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;

use hyper::Method;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use self::messages::PluginListener;
use self::trials::Trials;
use super::client::{KEY, KEYS};
use super::environment::Variable;
use super::recorder::RecorderClient;
use super::{Args, ForwardedSignals, asked_server, exit_code, hide_memory};
use crate::exit::{self, CommandResult, Failure};

/// The plugin, which Harbor's process runs.
const PLUGIN: &str = include_str!("harbor/plugin.py");
/// The name of the plugin's file, and of what Harbor is to load from it.
const PLUGIN_FILE: &str = "rolltape_harbor.py";
const PLUGIN_CLASS: &str = "rolltape_harbor:Recorder";
/// The name of the socket beside the plugin.
const SOCKET: &str = "rolltape.sock";
/// The variable in which Python looks for modules.
const PYTHONPATH: &str = "PYTHONPATH";

/// Runs a command of Harbor with the plugin, settles its trials, and prints what was recorded.
///
/// A command that ends well and none of whose trials made a call has failed.
pub(super) async fn run(args: Args) -> CommandResult {
    if args.proxy.agents.require_key {
        return Err(Failure::new("`--harbor` gives trials no signed keys")
            .hint("leave out --require-key; the path names the episode of each trial"));
    }
    args.environment.check(&args.proxy.secret_variables())?;
    hide_memory();
    let server = asked_server(&args).await?;
    let mut recorder = RecorderClient::new(&args, server.as_ref())?;
    let bridge = recorder.bridge(&args).await?;
    recorder.request(Method::GET, "/ready", &Value::Null).await?;

    let folder = plugin_folder()?;
    let prefix = args.proxy.agents.episode_prefix.clone().unwrap_or_default();
    let trials = Arc::new(Trials::new(recorder, prefix, args.episode.labels()));
    let listener = PluginListener::start(&folder.path().join(SOCKET), Arc::clone(&trials))?;

    // Before the command starts, so that no signal is lost in between and leaves it an orphan.
    let signals = ForwardedSignals::new()?;
    let passed = args.environment.passed(env::vars_os(), &args.proxy.secret_variables());
    let ended = match spawn(&args.command, passed, folder.path()) {
        Ok(child) => Ok(signals.wait_for(child).await?.0),
        Err(error) => Err(error),
    };
    drop((listener, bridge));

    trials.finish().await;
    if let Some(server) = server {
        server.stop(std::future::pending()).await?;
    }
    match ended {
        Ok(ended) => report(&trials, ended).await,
        Err(error) => {
            let _ = Failure::new(format!("cannot run `{}`: {error}", args.command[0])).report();
            Ok(exit::not_run(&error))
        }
    }
}

/// Prints the table of agents and writes the file of trials. Returns the code of the command, or
/// that of a failure where it ended well and nothing was recorded.
async fn report(trials: &Trials, ended: ExitStatus) -> CommandResult {
    let settled = trials.settled().await;
    report::print(&settled)?;
    report::write_files(&settled)?;

    let silent = match settled.is_empty() {
        true => Some(
            Failure::new("the command started no trial of Harbor")
                .hint("give a command that takes Harbor's --plugin: `harbor run ...`"),
        ),
        false if settled.iter().all(|trial| trial.calls == 0) => Some(
            Failure::new("no trial called a model through rolltape")
                .hint("the table says why; docs/harbor.md says which address a sandbox reaches"),
        ),
        false => None,
    };
    let code = silent.map(|failure| failure.report());
    Ok(code.filter(|_| ended.success()).unwrap_or_else(|| exit_code(ended)))
}

/// A folder with the plugin, from which Harbor loads it.
fn plugin_folder() -> Result<TempDir, Failure> {
    let folder = TempDir::with_prefix("rolltape-harbor-")?;
    fs::write(folder.path().join(PLUGIN_FILE), PLUGIN)?;
    Ok(folder)
}

/// Starts the command with the plugin. Its base URLs stay the user's: what Harbor itself asks a
/// model, such as a verifier that judges, is no trial's.
fn spawn(command: &[String], passed: Vec<Variable>, folder: &Path) -> std::io::Result<Child> {
    let (program, arguments) = command.split_first().expect("clap requires one");
    let has = |name: &str| passed.iter().any(|(passed, _)| passed == name);
    let missing_keys: Vec<&str> = KEYS.into_iter().filter(|name| !has(name)).collect();
    let before = passed.iter().find(|(name, _)| name == PYTHONPATH).map(|(_, value)| value.clone());

    let mut child = Command::new(program);
    child.args(arguments).args(["--plugin", PLUGIN_CLASS]).kill_on_drop(true);
    child.env_clear().envs(passed).env(PYTHONPATH, python_path(folder, before));
    // Harbor refuses agents without a key. The user's own stays: the upstream may require it.
    for name in missing_keys {
        child.env(name, KEY);
    }
    child.spawn()
}

/// The folders in which Python looks for modules, that of the plugin first.
fn python_path(folder: &Path, before: Option<OsString>) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_is_found_before_what_the_user_has() {
        let folder = Path::new("/f");
        assert_eq!(python_path(folder, None), "/f");
        assert_eq!(python_path(folder, Some("".into())), "/f");
        assert_eq!(python_path(folder, Some("/a:/b".into())), "/f:/a:/b");
    }

    #[test]
    fn the_plugin_has_the_names_by_which_it_is_loaded() {
        let (module, class) = PLUGIN_CLASS.split_once(':').unwrap();
        assert_eq!(PLUGIN_FILE, format!("{module}.py"));
        assert!(PLUGIN.contains(&format!("class {class}(BaseJobPlugin):")));
        assert!(PLUGIN.contains(&format!("with_name(\"{SOCKET}\")")));
    }
}
