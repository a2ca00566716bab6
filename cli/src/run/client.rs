//! One episode of `rolltape run`, as the control listener and the command see it.

use episode::{EpisodeId, GroupId, TaskId};
use hyper::Method;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::agents::{AgentServer, AgentSetup, KnownAgent};
use super::environment::{Variable, variable};
use super::recorder::RecorderClient;
use super::{Args, AttemptChoice, names};
use crate::exit::Failure;

/// Names that are tried for one that no episode has. Two in a row are never taken by chance.
const NAMES_MAX: usize = 8;
/// Attempts that are looked at for the first that is not there.
const ATTEMPTS_MAX: u32 = 10_000;
/// The API key of a command that has none.
pub(super) const KEY: &str = "rolltape";

/// The variables in which agents look for an API key.
pub(super) const KEYS: [&str; 3] = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HOSTED_VLLM_API_KEY"];

/// One episode, and the server that records it.
pub(super) struct EpisodeClient {
    pub(super) id: EpisodeId,
    pub(super) attempt: u32,
    pub(super) recorder: RecorderClient,
    /// The command's own API key, if it needs one.
    key: Option<String>,
}

/// A new name for the command's episode.
fn fresh_id(args: &Args) -> Result<EpisodeId, Failure> {
    let id = names::name(&args.command).parse().map_err(|e: episode::InvalidId| Failure::of(&e))?;
    recorded(args, id)
}

/// The name by which the episode is recorded.
pub(super) fn recorded(args: &Args, id: EpisodeId) -> Result<EpisodeId, Failure> {
    let prefix = args.proxy.agents.episode_prefix.clone().unwrap_or_default();
    prefix.before(id).map_err(|e| Failure::of(&e).context("with --episode-prefix"))
}

impl EpisodeClient {
    pub(super) fn new(args: &Args, recorder: RecorderClient) -> Result<Self, Failure> {
        let id = match &args.episode.id {
            Some(id) => recorded(args, id.clone())?,
            None => fresh_id(args)?,
        };
        let attempt = match args.episode.attempt {
            AttemptChoice::Number(number) => number,
            // Found by `take_free_name`.
            AttemptChoice::Next => 0,
        };
        Ok(Self { id, attempt, recorder, key: None })
    }

    /// Takes another name while this one is that of a recorded episode, unless the user gave it;
    /// and the first attempt that is not there, if the user wants the next one.
    pub(super) async fn take_free_name(&mut self, args: &Args) -> Result<(), Failure> {
        if args.episode.attempt == AttemptChoice::Next {
            while self.attempt < ATTEMPTS_MAX && self.is_taken().await? {
                self.attempt += 1;
            }
        }
        if args.episode.id.is_some() {
            return Ok(());
        }
        for _ in 0..NAMES_MAX {
            if !self.is_taken().await? {
                break;
            }
            self.id = fresh_id(args)?;
        }
        Ok(())
    }

    /// True if the attempt is recorded.
    async fn is_taken(&self) -> Result<bool, Failure> {
        let page = format!("/episodes/{}?attempt={}", self.id, self.attempt);
        let (_, reply) = self.recorder.ask(Method::GET, &page, &Value::Null).await?;
        Ok(!reply["episode_id"].is_null())
    }

    /// Announces group, task and labels, which the path that the agent gets cannot carry.
    /// The server tells the name by which it records.
    /// With `replay`, a recording answers its calls.
    pub(super) async fn announce(
        &mut self,
        args: &Args,
        replay: Option<&Value>,
    ) -> Result<(), Failure> {
        let body = json!({
            "episode_id": self.id.as_str(),
            "attempt": self.attempt,
            "labels": args.episode.labels(),
            "group_id": args.episode.group.as_ref().map(GroupId::as_str),
            "task_id": args.episode.task.as_ref().map(TaskId::as_str),
            "replay": replay,
        });
        let told = self.recorder.request(Method::POST, "/episodes", &body).await?;
        if let Some(id) = told["episode_id"].as_str().and_then(|id| id.parse().ok()) {
            self.id = id;
        }
        Ok(())
    }

    /// Makes an API key for the command.
    pub(super) async fn mint_key(&mut self) -> Result<(), Failure> {
        let page = format!("/episodes/{}/key?attempt={}", self.id, self.attempt);
        let minted = self.recorder.request(Method::POST, &page, &json!({})).await?;
        self.key = minted["api_key"].as_str().map(str::to_owned);
        Ok(())
    }

    /// The progress of the replay.
    pub(super) async fn replay_state(&self) -> Result<Value, Failure> {
        let page = format!("/episodes/{}?attempt={}", self.id, self.attempt);
        Ok(self.recorder.request(Method::GET, &page, &Value::Null).await?["replay"].take())
    }

    /// Closes the episode and returns its summary.
    pub(super) async fn close(&self, status: &str) -> Result<Value, Failure> {
        let page = format!("/episodes/{}", self.id);
        let query = format!("?attempt={}", self.attempt);
        let body = json!({ "status": status });

        self.recorder.request(Method::POST, &format!("{page}/close{query}"), &body).await?;
        self.recorder.request(Method::GET, &format!("{page}{query}"), &Value::Null).await
    }

    /// The URL below which the command's calls are the episode's.
    fn root(&self) -> String {
        let attempt = match self.attempt {
            0 => String::new(),
            attempt => format!("/a/{attempt}"),
        };
        format!("{}/e/{}{attempt}", self.recorder.proxy, self.id)
    }

    /// The setup with which a known agent calls the episode's server. Of the environment it sees
    /// what the command may see.
    pub(super) async fn set_up(
        &self,
        agent: Option<&KnownAgent>,
        command: &[String],
        passed: &[Variable],
    ) -> Result<AgentSetup, Failure> {
        let Some(agent) = agent else { return Ok(AgentSetup::default()) };
        let own = variable(passed, "OPENAI_API_KEY");
        let key = self.key.clone().or(own).unwrap_or_else(|| KEY.to_owned());
        let models = match agent.wants_models() {
            true => self.models().await,
            false => Vec::new(),
        };
        agent.setup(&AgentServer { root: self.root(), key, models, passed }, command)
    }

    /// The models that the server lists; none if it does not say. The control listener asks for
    /// them, and does not record that.
    async fn models(&self) -> Vec<String> {
        let listed = self.recorder.request(Method::GET, "/v1/models", &Value::Null).await;
        let models = listed.ok().and_then(|listed| listed["data"].as_array().cloned());
        let id = |model: &Value| model["id"].as_str().map(str::to_owned);
        models.unwrap_or_default().iter().filter_map(id).collect()
    }

    /// Starts the command with the episode in its environment, beside what is passed of the user.
    pub(super) fn spawn(
        &self,
        args: &Args,
        passed: Vec<Variable>,
        setup: &AgentSetup,
    ) -> std::io::Result<Child> {
        let (program, arguments) = args.command.split_first().expect("clap requires one");
        let root = self.root();
        let mut child = Command::new(program);
        child.args(&setup.arguments).args(arguments).kill_on_drop(true);

        let has = |name: &str| passed.iter().any(|(passed, _)| passed == name);
        let missing_keys = KEYS.into_iter().filter(|name| !has(name)).collect::<Vec<_>>();
        child.env_clear().envs(passed);

        for name in ["OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_BASE"] {
            child.env(name, format!("{root}/v1"));
        }
        child.env("ANTHROPIC_BASE_URL", &root);
        // The user's own key stays: the upstream may require it.
        for name in missing_keys {
            child.env(name, KEY);
        }
        if let Some(key) = &self.key {
            child.envs(KEYS.map(|name| (name, key)));
        }

        // Claude Code's header puts a nonce into the system prompt: every request would be a new
        // history.
        child.env("CLAUDE_CODE_ATTRIBUTION_HEADER", "0");
        child.env("ROLLTAPE_EPISODE", self.id.as_str());
        child.env("ROLLTAPE_ATTEMPT", self.attempt.to_string());
        child.envs(setup.variables.iter().map(|(name, value)| (name, value)));
        child.spawn()
    }
}
