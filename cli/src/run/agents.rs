//! The agents that `rolltape run` knows by their command, and how each is told its base URL.
//!
//! Most agents read `OPENAI_BASE_URL` or `ANTHROPIC_BASE_URL`, which every command gets. Some read
//! neither: without an option, a variable or a file of their own they would call their maker, and
//! nothing would be recorded.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::environment::{Variable, variable};
use crate::exit::Failure;
use crate::terminal::table::{plain, table};
use crate::terminal::{self, width};

/// The name of our provider where an agent has a list of providers.
const PROVIDER: &str = "rolltape";
/// The variable in which opencode takes a configuration.
const OPENCODE: &str = "OPENCODE_CONFIG_CONTENT";
/// A window that an agent may take for that of a model which it does not know, in tokens.
const CONTEXT_TOKENS: u32 = 128_000;
/// The longest reply that it may ask such a model for, in tokens.
const REPLY_TOKENS: u32 = 16_384;

/// An agent that is known by its command.
#[derive(Debug)]
pub(super) struct KnownAgent {
    pub(super) name: &'static str,
    command: &'static str,
    wire: &'static str,
    /// The means by which it is told, for people.
    pub(super) told: &'static str,
    way: Way,
}

/// The way in which an agent is told its base URL.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// By the variables that every command gets.
    Variables,
    Cline,
    Codex,
    Goose,
    Opencode,
    Qwen,
    /// Not at all: it speaks a wire that is not recorded.
    Unrecorded,
}

impl KnownAgent {
    const fn new([name, command, wire, told]: [&'static str; 4], way: Way) -> Self {
        Self { name, command, wire, told, way }
    }
}

const KNOWN: [KnownAgent; 9] = [
    KnownAgent::new(["Aider", "aider", "chat", "OPENAI_API_BASE"], Way::Variables),
    KnownAgent::new(["Claude Code", "claude", "messages", "ANTHROPIC_BASE_URL"], Way::Variables),
    KnownAgent::new(["Cline", "cline", "chat", "--data-dir, a folder of this run"], Way::Cline),
    KnownAgent::new(["Codex", "codex", "responses", "-c openai_base_url=..."], Way::Codex),
    KnownAgent::new(["Gemini CLI", "gemini", "Gemini", "refused: not recorded"], Way::Unrecorded),
    KnownAgent::new(["Goose", "goose", "chat", "OPENAI_HOST, OPENAI_BASE_PATH"], Way::Goose),
    KnownAgent::new(["mini-swe-agent", "mini", "chat", "OPENAI_API_BASE"], Way::Variables),
    KnownAgent::new(["opencode", "opencode", "chat", "OPENCODE_CONFIG_CONTENT"], Way::Opencode),
    KnownAgent::new(["Qwen Code", "qwen", "chat", "--openai-base-url"], Way::Qwen),
];

/// The server as an agent of one episode sees it.
#[derive(Debug)]
pub(super) struct AgentServer<'a> {
    /// The URL below which all wires are, with the episode in its path.
    pub(super) root: String,
    /// The API key that the agent sends.
    pub(super) key: String,
    /// The models that the server lists.
    pub(super) models: Vec<String>,
    /// The variables of the user that the agent sees.
    pub(super) passed: &'a [Variable],
}

/// Arguments and variables of one agent, beside those that every command gets.
#[derive(Debug, Default)]
pub(super) struct AgentSetup {
    /// Arguments that come before the command's own.
    pub(super) arguments: Vec<String>,
    pub(super) variables: Vec<(&'static str, String)>,
    /// A folder that is removed with this value.
    _folder: Option<TempDir>,
}

impl KnownAgent {
    /// The agent that a command starts, if it is a known one.
    ///
    /// # Errors
    /// [`Failure`] if it speaks a wire that rolltape does not record.
    pub(super) fn of(command: &[String]) -> Result<Option<&'static Self>, Failure> {
        let program = command.first().and_then(|program| Path::new(program).file_name());
        let known = KNOWN.iter().find(|agent| program == Some(OsStr::new(agent.command)));
        match known {
            Some(agent) if matches!(agent.way, Way::Unrecorded) => {
                let (name, wire) = (agent.name, agent.wire);
                Err(Failure::new(format!(
                    "{name} speaks the wire of {wire}, which is not recorded"
                ))
                .hint("`rolltape run --list-agents` names agents that are"))
            }
            known => Ok(known),
        }
    }

    /// Returns true if the agent must be told which models there are.
    pub(super) fn wants_models(&self) -> bool {
        matches!(self.way, Way::Cline | Way::Opencode)
    }

    /// The setup with which the agent calls `server`. A server that `command` itself names stands.
    ///
    /// # Errors
    /// [`Failure`] if a file of the agent cannot be written.
    pub(super) fn setup(
        &self,
        server: &AgentServer<'_>,
        command: &[String],
    ) -> Result<AgentSetup, Failure> {
        let says = |options: &[&str]| {
            let starts = |argument: &String| options.iter().any(|o| argument.starts_with(o));
            command.iter().skip(1).any(starts)
        };
        let base = format!("{}/v1", server.root);

        Ok(match self.way {
            Way::Variables | Way::Unrecorded => AgentSetup::default(),
            Way::Codex if says(&["model_provider", "openai_base_url", "--oss"]) => {
                AgentSetup::default()
            }
            // A provider of the user's configuration would lead elsewhere.
            Way::Codex => arguments(&[
                "-c",
                "model_provider=\"openai\"",
                "-c",
                &format!("openai_base_url=\"{base}\""),
            ]),
            Way::Qwen if says(&["--openai-base-url", "--auth-type"]) => AgentSetup::default(),
            Way::Qwen => arguments(&["--auth-type", "openai", "--openai-base-url", &base]),
            Way::Goose => AgentSetup { variables: goose(server), ..AgentSetup::default() },
            Way::Opencode => {
                let content = opencode(server, &base, !says(&["-m", "--model"]))?;
                let variables = vec![(OPENCODE, content)];
                AgentSetup { variables, ..AgentSetup::default() }
            }
            Way::Cline if says(&["--data-dir", "--config", "-P", "--provider"]) => {
                AgentSetup::default()
            }
            Way::Cline => cline(server, &base)?,
        })
    }
}

fn arguments(all: &[&str]) -> AgentSetup {
    let arguments = all.iter().map(|&argument| argument.to_owned()).collect();
    AgentSetup { arguments, ..AgentSetup::default() }
}

/// Goose takes a host, and the path of its route.
fn goose(server: &AgentServer<'_>) -> Vec<(&'static str, String)> {
    let root = &server.root;
    let authority = root.find("://").map_or(0, |at| at + "://".len());
    let path = root[authority..].find('/').map_or(root.len(), |at| authority + at);
    let mut variables = vec![
        ("OPENAI_HOST", root[..path].to_owned()),
        ("OPENAI_BASE_PATH", format!("{}/v1/chat/completions", &root[path..]).split_off(1)),
        ("ANTHROPIC_HOST", root.clone()),
    ];
    if variable(server.passed, "GOOSE_PROVIDER").is_none() {
        variables.push(("GOOSE_PROVIDER", "openai".to_owned()));
    }
    variables
}

/// opencode's configuration: the user's own, in which the makers' providers lead to `base` as well
/// as one of ours that has the server's models. It is the default where the server has one model.
///
/// # Errors
/// [`Failure`] if the user's own is not an object, or has something else in such a place.
fn opencode(server: &AgentServer<'_>, base: &str, may_choose: bool) -> Result<String, Failure> {
    let own = variable(server.passed, OPENCODE).unwrap_or_else(|| "{}".to_owned());
    let odd = || {
        Failure::new(format!("{OPENCODE} is not a JSON object with providers"))
            .hint("take comments out of it, or unset it")
    };
    let mut config: Value = serde_json::from_str(&own).map_err(|_| odd())?;

    let limit = json!({ "context": CONTEXT_TOKENS, "output": REPLY_TOKENS });
    let models = server.models.iter().map(|name| (name.clone(), json!({ "limit": limit })));
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        "options": { "baseURL": base, "apiKey": server.key },
        "models": models.collect::<serde_json::Map<_, _>>(),
    });
    for maker in ["openai", "anthropic"] {
        let path = ["provider", maker, "options", "baseURL"];
        *member(&mut config, &path).ok_or_else(odd)? = json!(base);
    }
    *member(&mut config, &["provider", PROVIDER]).ok_or_else(odd)? = provider;
    if let ([model], true) = (server.models.as_slice(), may_choose) {
        *member(&mut config, &["model"]).ok_or_else(odd)? = json!(format!("{PROVIDER}/{model}"));
    }
    Ok(config.to_string())
}

/// The member at `path`, which is made if it is not there; nothing where its way leads through
/// something else than objects.
fn member<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, name| {
        if value.is_null() {
            *value = json!({});
        }
        Some(value.as_object_mut()?.entry(*name).or_insert(Value::Null))
    })
}

/// Cline keeps its providers in a file, and takes another folder for it.
fn cline(server: &AgentServer<'_>, base: &str) -> Result<AgentSetup, Failure> {
    let folder = tempfile::Builder::new().prefix("rolltape-cline-").tempdir()?;
    let id = "openai-compatible";
    let mut settings = json!({ "provider": id, "apiKey": server.key, "baseUrl": base });
    if let Some(model) = server.models.first() {
        settings["model"] = json!(model);
    }
    let provider = json!({
        "settings": settings, "updatedAt": "1970-01-01T00:00:00.000Z", "tokenSource": "manual",
    });
    let providers = json!({
        "version": 1, "lastUsedProvider": id, "modes": {}, "providers": { id: provider },
    });

    let write = || -> io::Result<()> {
        let settings = folder.path().join("settings");
        std::fs::create_dir(&settings)?;
        let file = settings.join("providers.json");
        std::fs::write(&file, providers.to_string())?;
        std::fs::set_permissions(file, Permissions::from_mode(0o600))
    };
    write()?;
    let place = folder.path().to_string_lossy().into_owned();
    Ok(AgentSetup { _folder: Some(folder), ..arguments(&["--data-dir", &place]) })
}

/// Prints the known agents.
pub(super) fn print_list() -> io::Result<()> {
    let columns = [("agent", 0), ("command", 0), ("wire", 1), ("told by", 0)];
    let rows = KNOWN
        .iter()
        .map(|agent| [agent.name, agent.command, agent.wire, agent.told].map(plain).to_vec());
    for line in table(columns, rows.collect(), width()) {
        terminal::styled(&line)?;
    }
    terminal::line("")?;
    terminal::line("Any command that reads OPENAI_BASE_URL or ANTHROPIC_BASE_URL is recorded.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn setup(command: &[&str], models: &[&str]) -> AgentSetup {
        setup_beside(&[], command, models).unwrap()
    }

    fn setup_beside(
        passed: &[Variable],
        command: &[&str],
        models: &[&str],
    ) -> Result<AgentSetup, Failure> {
        let command = owned(command);
        let server = AgentServer {
            root: "http://127.0.0.1:8080/e/run-1".to_owned(),
            key: "k".to_owned(),
            models: owned(models),
            passed,
        };
        let agent = KnownAgent::of(&command).unwrap().unwrap();
        agent.setup(&server, &command)
    }

    #[test]
    fn an_agent_is_known_by_the_last_part_of_its_command() {
        for program in ["codex", "/usr/local/bin/codex", "node_modules/.bin/codex"] {
            assert_eq!(setup(&[program, "exec", "x"], &[]).arguments.len(), 4, "{program}");
        }
        for program in ["codex-helper", "sh", "my/codex/run"] {
            assert!(KnownAgent::of(&owned(&[program])).unwrap().is_none(), "{program}");
        }
    }

    #[test]
    fn what_the_user_says_of_a_server_stands() {
        for own in ["openai_base_url=\"http://x/v1\"", "model_provider=\"x\"", "--oss"] {
            assert!(setup(&["codex", "exec", "-c", own, "x"], &[]).arguments.is_empty(), "{own}");
        }
        let own = setup(&["qwen", "--openai-base-url=http://x/v1", "x"], &[]);
        assert!(own.arguments.is_empty());
        assert!(setup(&["cline", "-P", "cline", "x"], &[]).arguments.is_empty());
    }

    #[test]
    fn goose_gets_its_host_and_its_path() {
        let found = setup(&["goose", "run"], &[]).variables;
        let of = |name| &found.iter().find(|(found, _)| *found == name).unwrap().1;
        assert_eq!(of("OPENAI_HOST"), "http://127.0.0.1:8080");
        assert_eq!(of("OPENAI_BASE_PATH"), "e/run-1/v1/chat/completions");
    }

    #[test]
    fn opencode_takes_the_model_that_is_alone() {
        let config = |command: &[&str], models: &[&str]| -> Value {
            let found = setup(command, models).variables;
            serde_json::from_str(&found[0].1).unwrap()
        };
        let alone = config(&["opencode", "run", "x"], &["coder"]);
        assert_eq!(alone["model"], "rolltape/coder");
        assert!(alone["provider"]["rolltape"]["models"]["coder"].is_object());
        assert_eq!(
            config(&["opencode", "run", "-m", "a/b", "x"], &["coder"])["model"],
            Value::Null
        );
        assert_eq!(config(&["opencode", "run", "x"], &["a", "b"])["model"], Value::Null);
    }

    #[test]
    fn what_opencode_was_told_is_kept_and_what_is_odd_is_named() {
        let told = |own: &str| {
            setup_beside(&[(OPENCODE.into(), own.into())], &["opencode", "run", "x"], &["coder"])
        };
        let kept = told(r#"{"share": "disabled", "provider": {"openai": {"name": "mine"}}}"#);
        let kept: Value = serde_json::from_str(&kept.unwrap().variables[0].1).unwrap();
        assert_eq!(kept["share"], "disabled");
        assert_eq!(kept["provider"]["openai"]["name"], "mine");
        assert!(kept["provider"]["openai"]["options"]["baseURL"].is_string());
        for odd in ["{} // mine", "[]", r#"{"provider": "x"}"#, r#"{"provider": {"openai": 1}}"#] {
            assert!(told(odd).unwrap_err().to_string().contains(OPENCODE), "{odd}");
        }
    }

    #[test]
    fn cline_s_folder_is_gone_with_the_setup() {
        let found = setup(&["cline", "x"], &["coder"]);
        let folder = std::path::PathBuf::from(&found.arguments[1]);
        let file = folder.join("settings/providers.json");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(std::fs::read_to_string(file).unwrap().contains("coder"));
        drop(found);
        assert!(!folder.exists());
    }

    #[test]
    fn a_wire_that_is_not_recorded_is_refused() {
        let refused = KnownAgent::of(&owned(&["gemini", "-p", "x"])).unwrap_err();
        assert!(refused.to_string().contains("Gemini CLI"));
    }
}
