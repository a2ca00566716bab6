//! A server that scores recorded ids: the user's, or an engine of this process with a model folder.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ::engine::{Access, EngineOptions};
use bytes::Bytes;
use exporter::{Scored, ScoringServer};
use hyper::Method;
use serde_json::Value;
use tokio::task::JoinHandle;
use wire::{Dialect, PromptQuestion, ScoreQuestion, ServerInfo, dialect_of_models};

use super::weights::WeightsPattern;
use crate::exit::Failure;
use crate::http::{Http, base_url, read_body};
use crate::options::secret_file;
use crate::server::engine::load;
use crate::server::listen::{bind, open};

/// Ids beside each token that a server of others is asked for: vLLM's limit.
const TOP: usize = 20;
/// Those that the engine of this process is asked for.
const TOP_OF_ENGINE: usize = 100;

/// A server to score with.
pub(crate) struct Scorer {
    http: Http,
    base: String,
    key: Option<String>,
    dialect: Dialect,
    models: Vec<String>,
    top: usize,
    weights: ScorerWeights,
    /// The engine of this process, which ends with the scorer.
    engine: Option<JoinHandle<std::io::Result<()>>>,
}

/// The weights that the server has, and those that it could have.
#[derive(Debug, Default)]
pub(crate) struct ScorerWeights {
    /// Label of the server's own weights; none where every label may be theirs.
    pub(crate) own: Option<Option<String>>,
    /// Folders of other weights.
    pub(crate) pattern: Option<WeightsPattern>,
    /// Folder of the server's own weights, if it is an engine of this process.
    pub(crate) folder: Option<PathBuf>,
    /// Folder that the engine serves.
    pub(crate) served: Option<PathBuf>,
}

impl Drop for Scorer {
    fn drop(&mut self) {
        self.engine.iter().for_each(JoinHandle::abort);
    }
}

impl Scorer {
    /// Asks the server at `url` what it is.
    pub(crate) async fn of_url(
        url: &str,
        key: Option<String>,
        weights: ScorerWeights,
    ) -> Result<Self, Failure> {
        let base = base_url(url.trim_end_matches('/').trim_end_matches("/v1"));
        let http = Http::of(&base, &[])?;
        let mut scorer = Self {
            http,
            base,
            key,
            dialect: Dialect::OpenAi,
            models: Vec::new(),
            top: TOP,
            weights,
            engine: None,
        };
        scorer.identify().await?;
        Ok(scorer)
    }

    /// Starts an engine with a model folder on a port of this machine that only this process can
    /// use.
    pub(crate) async fn of_folder(
        folder: &Path,
        options: EngineOptions,
        weights: ScorerWeights,
    ) -> Result<Self, Failure> {
        let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), "--with")?;
        let max_logprobs = options.max_logprobs.max(TOP_OF_ENGINE);
        let options = EngineOptions { max_logprobs, ..options };
        let engine = load(folder, options).await?;
        let listener = open(socket)?;
        let url = format!("http://{}", listener.local_addr()?);
        let key = secret_file::random()?;
        let access = Access::with_tokens([&key]);
        let served =
            tokio::spawn(::engine::serve(listener, engine, access, std::future::pending()));

        let weights = ScorerWeights {
            folder: Some(folder.to_owned()),
            served: Some(folder.to_owned()),
            ..weights
        };
        let mut scorer = Self::of_url(&url, Some(key), weights).await?;
        scorer.top = TOP_OF_ENGINE;
        scorer.engine = Some(served);
        Ok(scorer)
    }

    /// Makes the engine serve an adapter.
    pub(crate) async fn add_adapter(&mut self, name: &str, folder: &Path) -> Result<(), Failure> {
        let (path, body) = wire::adapter_request(name, &folder.to_string_lossy());
        let (status, reply) = self.post(path, &body).await?;
        if status != 200 {
            return Err(refusal(&reply).context(&format!("cannot use the adapter `{name}`")));
        }
        self.models.push(name.to_owned());
        Ok(())
    }

    /// Asks for this many ids beside each token.
    pub(crate) fn ask_for(&mut self, top: usize) {
        self.top = top;
    }

    /// True if the server takes the beginning of ids that it scored before from its cache.
    pub(crate) fn takes_known(&self) -> bool {
        matches!(self.dialect, Dialect::Sglang | Dialect::Rolltape)
    }

    /// Asks for the scores of ids under a model of the server, or under its first. Those of the
    /// first `known` ids are not needed.
    pub(crate) async fn scores(
        &self,
        model: &str,
        ids: &[u32],
        known: usize,
    ) -> Result<Scored, Failure> {
        let served = self.models.iter().find(|served| *served == model).or(self.models.first());
        let question = ScoreQuestion { ids, known, top: self.top, model: None };
        // SGLang takes names of adapters only; its base model is what it asks without one.
        let is_sglang = question.asked_in(self.dialect) == Dialect::Sglang;
        let is_asked = !is_sglang || served != self.models.first();
        let model = served.filter(|_| is_asked).map(String::as_str);
        let question = ScoreQuestion { model, ..question };
        let (path, body) = question.request(self.dialect).map_err(|e| Failure::of(&e))?;
        let (status, reply) = self.post(path, &body).await?;
        match status {
            200 => {
                let scores = question.answer(self.dialect, &reply);
                Ok(Scored::Scores(scores.map_err(|error| Failure::of(&error))?))
            }
            400 | 413 | 422 => Ok(Scored::Refused(refusal(&reply).to_string())),
            _ => Err(refusal(&reply).context(&format!("{} answered {status}", self.base))),
        }
    }

    /// Asks for the text of ids.
    pub(crate) async fn text(&self, ids: &[u32]) -> Option<String> {
        let model = self.models.first().map(String::as_str);
        let reply = self.answer(wire::text_question(self.dialect, model, ids)).await?;
        wire::text_answer(&reply)
    }

    async fn identify(&mut self) -> Result<(), Failure> {
        let (status, models) = self.ask(Method::GET, "/v1/models", &Value::Null).await?;
        let mut server = ServerInfo::default();
        server.take_models(&models);
        if server.models.is_empty() {
            let sentence = format!("{} lists no model (status {status})", self.base);
            return Err(Failure::new(sentence).hint(match status {
                401 | 403 => "give its key with --with-key-env",
                _ => "--with names an inference server, or a model folder",
            }));
        }
        self.models = server.models;
        self.dialect = dialect_of_models(&models);
        // Refused here and not at the first row.
        let question = ScoreQuestion { ids: &[1], known: 0, top: 0, model: None };
        question.request(self.dialect).map_err(|error| Failure::of(&error))?;
        Ok(())
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Result<(u16, Bytes), Failure> {
        let url = format!("{}{path}", self.base);
        let bearer = self.key.as_ref().map(|key| format!("Bearer {key}"));
        let headers: Vec<_> = bearer.iter().map(|b| ("authorization", b.as_str())).collect();
        let (status, _, reply) = self.http.begin(method, &url, &headers, body).await?;
        Ok((status, read_body(reply, &url).await?))
    }

    async fn post(&self, path: &str, body: &[u8]) -> Result<(u16, Bytes), Failure> {
        let body = serde_json::from_slice(body).map_err(|error| Failure::of(&error))?;
        self.ask(Method::POST, path, &body).await
    }

    /// The answer to a question of which no answer is an answer, too.
    async fn answer(&self, (path, body): (&'static str, Bytes)) -> Option<Bytes> {
        let (status, reply) = self.post(path, &body).await.ok()?;
        (status == 200).then_some(reply)
    }
}

impl ScoringServer for Scorer {
    type Error = Failure;

    async fn use_weights(&mut self, version: Option<&str>) -> Result<bool, Failure> {
        let pattern = self.weights.pattern.as_ref();
        let of_label = pattern.zip(version).and_then(|(pattern, label)| pattern.folder(label));
        let is_own = self.weights.own.as_ref().is_none_or(|own| own.as_deref() == version);
        let Some(folder) = of_label.or_else(|| self.weights.folder.clone().filter(|_| is_own))
        else {
            return Ok(is_own);
        };
        if self.weights.served.as_ref() == Some(&folder) {
            return Ok(true);
        }

        let full = std::path::absolute(&folder)?;
        let (path, body) = wire::weights_request(&full.to_string_lossy());
        let (status, reply) = self.post(path, &body).await?;
        if status != 200 {
            let doing = format!("cannot use the weights in `{}`", folder.display());
            return Err(refusal(&reply).context(&doing));
        }
        self.weights.served = Some(folder);
        Ok(true)
    }

    fn weights_beside(&self, version: Option<&str>) -> Vec<String> {
        self.weights.pattern.iter().flat_map(|pattern| pattern.labels_beside(version)).collect()
    }

    fn models(&self) -> Vec<String> {
        self.models.clone()
    }

    async fn score(&mut self, model: &str, ids: &[u32]) -> Result<Scored, Failure> {
        self.scores(model, ids, 0).await
    }

    async fn encode(&mut self, chat: &Bytes) -> Option<Vec<u32>> {
        let dialect = match self.dialect {
            // The engine tokenizes as vLLM does.
            Dialect::Rolltape => Dialect::Vllm,
            other => other,
        };
        let request = wire::Request::read(chat)?;
        let question = PromptQuestion::new(dialect, &request).ok()?;
        let body: Value = serde_json::from_slice(&question.body).ok()?;
        let body = with_model(body, self.models.first()?);
        let reply = self.answer((question.path, Bytes::from(body.to_string()))).await?;
        wire::ids_answer(&reply)
    }

    async fn decode(&mut self, ids: &[u32]) -> Option<String> {
        self.text(ids).await
    }

    async fn first_id(&mut self) -> Option<u32> {
        let model = self.models.first().map(String::as_str);
        let [with, without] = wire::around_questions(model, "a");
        let with = wire::ids_answer(&self.answer(with).await?)?;
        let without = wire::ids_answer(&self.answer(without).await?)?;
        with.first().copied().filter(|first| without.first() != Some(first))
    }
}

/// The body of a question, for a model that the server has: the agent may have named another.
fn with_model(mut body: Value, model: &str) -> Value {
    if let Some(fields) = body.as_object_mut() {
        fields.insert("model".to_owned(), model.into());
    }
    body
}

fn refusal(reply: &[u8]) -> Failure {
    Failure::new(wire::error_text(reply))
}
