//! The upstream's options: its dialect, and what it is asked for.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use engine::LogprobsMode;
use proxy::{Config, ContinueMode, TokenExtras, TranslateMode, Upstream};
use wire::{Dialect, ForcedSampling, Vocabulary};

use super::tokenizer::tokenizer_file;
use crate::exit::Failure;

/// The upstream's dialect, its key, and how it is reached.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Upstream")]
pub(crate) struct UpstreamArgs {
    /// Dialect of the upstream [default: auto-detect]
    #[arg(long, value_enum, value_name = "NAME", env = "ROLLTAPE_DIALECT")]
    dialect: Option<DialectName>,
    /// Variable that holds the upstream's API key
    ///
    /// The key replaces the agent's.
    #[arg(long, value_name = "NAME", env = "ROLLTAPE_UPSTREAM_KEY_ENV")]
    upstream_key_env: Option<String>,
    /// File that holds the upstream's API key
    ///
    /// The key replaces the agent's. Other processes of this user find it in no environment.
    #[arg(long, value_name = "FILE", env = "ROLLTAPE_UPSTREAM_KEY_FILE")]
    #[arg(conflicts_with = "upstream_key_env")]
    upstream_key_file: Option<PathBuf>,
    /// Certificates to trust beside the system's, in PEM
    #[arg(long, value_name = "FILE", env = "ROLLTAPE_UPSTREAM_CA")]
    upstream_ca: Option<PathBuf>,
    /// Use HTTP/2 with a plain http:// upstream
    ///
    /// Over https:// it is negotiated.
    #[arg(long, env = "ROLLTAPE_UPSTREAM_HTTP2")]
    upstream_http2: bool,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
}

/// Options of what is recorded of each token.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Recorded tokens")]
pub(crate) struct TokenArgs {
    /// Translation of Responses and Messages calls
    ///
    /// A translated call goes to the upstream's chat route.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, env = "ROLLTAPE_TRANSLATE")]
    translate: TranslateName,
    /// Begin prompts with sampled ids
    ///
    /// vLLM 0.33 and SGLang 0.5.23 take them for chats. Calls on all wires go to the chat route.
    #[arg(long = "continue", value_enum, value_name = "HOW", default_value_t)]
    #[arg(env = "ROLLTAPE_CONTINUE")]
    continues: ContinueName,
    /// Text of these ids
    #[arg(long, value_enum, value_name = "HOW", default_value_t, env = "ROLLTAPE_HISTORY")]
    history: HistoryName,
    /// The upstream's tokenizer.json, or its model folder
    ///
    /// It maps reported token bytes to ids. A hosted server is asked for logprobs only with it.
    #[arg(long, value_name = "PATH", env = "ROLLTAPE_TOKENIZER")]
    tokenizer: Option<PathBuf>,
    /// Sampling parameters of every request: top_p=1,top_k=off
    ///
    /// NAME=VALUE, with commas between. They override those of the request.
    #[arg(long, value_name = "PARAMETERS", env = "ROLLTAPE_FORCE_SAMPLING")]
    force_sampling: Option<ForcedSampling>,
    /// Kind of the upstream's logprobs [default: by dialect]
    ///
    /// The default for a vLLM is its own --logprobs-mode, or raw if it does not report that.
    #[arg(long, value_enum, value_name = "MODE", env = "ROLLTAPE_LOGPROBS_MODE")]
    pub(crate) logprobs_mode: Option<UpstreamLogprobsName>,
    /// Alternatives to record for each token
    #[arg(long, value_name = "N", default_value_t = 0, env = "ROLLTAPE_TOP_LOGPROBS")]
    top_logprobs: u32,
    /// Record the experts that each token was routed to
    ///
    /// SGLang and rolltape's engine report them, and vLLM with --enable-return-routed-experts.
    #[arg(long, env = "ROLLTAPE_ROUTED_EXPERTS")]
    routed_experts: bool,
    /// Record the tokens that truncated sampling kept
    ///
    /// SGLang reports them.
    #[arg(long, env = "ROLLTAPE_SAMPLING_MASK")]
    sampling_mask: bool,
}

impl TokenArgs {
    /// Sets the tokens' part of `config`.
    ///
    /// # Errors
    /// [`Failure`] if the tokenizer cannot be read.
    fn apply(&self, config: &mut Config) -> Result<(), Failure> {
        config.logprob_kind = self.logprobs_mode.map(|kind| match kind {
            UpstreamLogprobsName::Processed => "processed".to_owned(),
            UpstreamLogprobsName::Raw => "raw".to_owned(),
        });
        config.translate = self.translate.into();
        config.continues = match (self.continues, self.history) {
            (ContinueName::Off, _) => ContinueMode::Off,
            (ContinueName::Exact, HistoryName::AsRendered) => ContinueMode::Exact,
            (ContinueName::Exact, HistoryName::AsSampled) => ContinueMode::AsSampled,
        };
        config.force = self.force_sampling.clone().unwrap_or_default();
        config.extras = TokenExtras {
            top_logprobs: self.top_logprobs,
            routed_experts: self.routed_experts,
            sampling_mask: self.sampling_mask,
        };
        config.vocabulary = self.tokenizer.as_deref().map(read_vocabulary).transpose()?;
        Ok(())
    }
}

impl UpstreamArgs {
    /// The upstream's `tokenizer.json`, if it or its folder was given.
    pub(crate) fn tokenizer(&self) -> Option<PathBuf> {
        self.tokens.tokenizer.as_deref().map(tokenizer_file)
    }

    /// True if prompts are to begin with sampled ids.
    pub(crate) fn continues(&self) -> bool {
        matches!(self.tokens.continues, ContinueName::Exact)
    }

    /// True if rolltape calls the upstream with a key of its own.
    pub(super) fn has_key(&self) -> bool {
        self.upstream_key_env.is_some() || self.upstream_key_file.is_some()
    }

    /// The name of the variable that holds the upstream's key, if it was given.
    pub(super) fn key_variable(&self) -> Option<&str> {
        self.upstream_key_env.as_deref()
    }

    /// The settings of a client of `upstream`. `own_engine` says that it is rolltape's own.
    ///
    /// # Errors
    /// [`Failure`] if a file cannot be used or a variable is not set.
    pub(crate) fn config(&self, upstream: Upstream, own_engine: bool) -> Result<Config, Failure> {
        if upstream.has_credentials() {
            return Err(Failure::new("the upstream's address holds a user or a password").hint(
                "give the address without them, and name the variable that holds the key with \
                 --upstream-key-env",
            ));
        }
        let mut config = Config::new(upstream);

        config.dialect = match self.dialect {
            // The engine of this process need not be asked what it is.
            None if own_engine => Some(Dialect::Rolltape),
            named => named.map(Into::into),
        };
        self.tokens.apply(&mut config)?;

        config.upstream_key = match (&self.upstream_key_env, &self.upstream_key_file) {
            (Some(variable), _) => Some(read_key(variable)?),
            (None, Some(path)) => Some(read_key_file(path)?),
            (None, None) => None,
        };
        let authorities = self.upstream_ca.as_deref().map(read_file).transpose()?;
        config.upstream_ca = authorities.unwrap_or_default();
        config.upstream_http2 = self.upstream_http2;
        Ok(config)
    }
}

fn read_vocabulary(path: &Path) -> Result<Arc<Vocabulary>, Failure> {
    let path = tokenizer_file(path);
    Vocabulary::read(&read_file(&path)?)
        .map(Arc::new)
        .map_err(|e| Failure::new(format!("`{}` is {e}", path.display())))
}

fn read_key(variable: &str) -> Result<String, Failure> {
    std::env::var(variable).map_err(|_| {
        Failure::new(format!("the environment variable `{variable}` is not set"))
            .hint("set it to the upstream's API key, or leave --upstream-key-env out")
    })
}

/// Reads a key from a file. It ends with the line, as editors and `echo` write it.
fn read_key_file(path: &Path) -> Result<String, Failure> {
    let bytes = read_file(path)?;
    let key = String::from_utf8(bytes).ok().map(|text| text.trim_end().to_owned());
    let key = key.filter(|key| !key.is_empty() && !key.contains(char::is_control));

    let mode = path.metadata().map(|file| file.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o077 != 0) {
        tracing::warn!("others can read the key in `{}`; chmod 600 it", path.display());
    }
    key.ok_or_else(|| Failure::new(format!("`{}` does not hold a key on one line", path.display())))
}

/// Reads a file that an option names.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::new(format!("cannot read `{}`: {error}", path.display())))
}

/// A value of `--translate`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum TranslateName {
    /// Translate if the route would not report the sampled tokens
    #[default]
    Auto,
    /// Never translate; such calls are recorded as text
    Never,
    /// Translate every such call
    Always,
}

impl From<TranslateName> for TranslateMode {
    fn from(name: TranslateName) -> Self {
        match name {
            TranslateName::Auto => Self::Auto,
            TranslateName::Never => Self::Never,
            TranslateName::Always => Self::Always,
        }
    }
}

/// A value of `--continue`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ContinueName {
    /// The upstream encodes all messages
    #[default]
    Off,
    /// A history that is the text of recorded calls has their ids
    Exact,
}

/// A value of `--history`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum HistoryName {
    /// The text of the upstream's own template
    #[default]
    AsRendered,
    /// Also what the template leaves out or writes otherwise: thoughts, spacing
    AsSampled,
}

/// A value of `--dialect`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum DialectName {
    /// vLLM
    Vllm,
    /// SGLang
    Sglang,
    /// llama.cpp
    Llamacpp,
    /// rolltape's own engine
    Rolltape,
    /// Any other OpenAI-compatible server; without --tokenizer nothing extra is asked for
    Openai,
}

impl From<DialectName> for Dialect {
    fn from(name: DialectName) -> Self {
        match name {
            DialectName::Vllm => Self::Vllm,
            DialectName::Sglang => Self::Sglang,
            DialectName::Llamacpp => Self::Llamacpp,
            DialectName::Rolltape => Self::Rolltape,
            DialectName::Openai => Self::OpenAi,
        }
    }
}

/// A value of `--logprobs-mode` of an upstream, in vLLM's words.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum UpstreamLogprobsName {
    /// The distribution that was sampled, after temperature and filters
    #[value(name = "processed_logprobs")]
    Processed,
    /// The model's own distribution, before temperature
    #[value(name = "raw_logprobs")]
    Raw,
}

impl From<UpstreamLogprobsName> for LogprobsMode {
    fn from(name: UpstreamLogprobsName) -> Self {
        match name {
            UpstreamLogprobsName::Processed => Self::ProcessedLogprobs,
            UpstreamLogprobsName::Raw => Self::RawLogprobs,
        }
    }
}
