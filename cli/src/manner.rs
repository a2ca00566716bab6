//! How the upstream is spoken to, as options.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use engine::LogprobsMode;
use proxy::{Beside, Config, Translate, Upstream};
use wire::{Dialect, Force, Vocabulary};

use crate::exit::Failure;
use crate::feed_rows::Rows;

/// The control listener's token as the Python package knows it, and what names other variables.
const SECRET_VARIABLES: [&str; 3] =
    ["ROLLTAPE_CONTROL_TOKEN", "ROLLTAPE_CONTROL_TOKEN_ENV", "ROLLTAPE_UPSTREAM_KEY_ENV"];

/// How the upstream speaks, and the bounds and the door of a proxy before it.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Manner {
    #[command(flatten)]
    pub(crate) speech: Speech,
    /// Longest request that is held and recorded whole, in MiB; longer ones are passed through,
    /// up to 1 GiB [default: 64]
    #[arg(long, value_name = "MIB", env = "ROLLTAPE_REQUEST_MIB")]
    request_mib: Option<usize>,
    /// Let calls pass to routes that sample where nothing tells the tokens; they are recorded as
    /// plain exchanges
    #[arg(long, env = "ROLLTAPE_ALLOW_UNRECORDED_SAMPLING")]
    allow_unrecorded_sampling: bool,
    /// The certificate with which --listen speaks TLS, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "ROLLTAPE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "ROLLTAPE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) token: ControlToken,
}

/// What the control listener asks for.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ControlToken {
    /// The environment variable that holds the token of the control listener; without one it needs
    /// none
    #[arg(long, value_name = "NAME", env = "ROLLTAPE_CONTROL_TOKEN_ENV")]
    control_token_env: Option<String>,
}

impl ControlToken {
    /// The token, where one is named.
    ///
    /// # Errors
    /// [`Failure`] when the variable is not set, or holds nothing.
    pub(crate) fn read(&self) -> Result<Option<String>, Failure> {
        let Some(name) = &self.control_token_env else { return Ok(None) };
        let token = std::env::var(name).ok().filter(|token| !token.is_empty());
        token.map(Some).ok_or_else(|| {
            Failure::new(format!("the environment variable `{name}` holds no token"))
                .hint("set it to the control listener's token, or leave --control-token-env out")
        })
    }
}

/// How the upstream speaks and what its numbers are.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Speech {
    /// How the upstream speaks; it is asked when this is not given
    #[arg(long, value_enum, env = "ROLLTAPE_DIALECT")]
    pub(crate) dialect: Option<DialectName>,
    /// What the upstream's logprobs are, where rolltape cannot know: vLLM's are raw unless it was
    /// started with --logprobs-mode processed_logprobs
    #[arg(long, value_enum, env = "ROLLTAPE_LOGPROBS_MODE")]
    pub(crate) logprobs_mode: Option<LogprobsName>,
    /// When Responses and Messages calls go to the upstream's chat route
    #[arg(long, value_enum, default_value_t, env = "ROLLTAPE_TRANSLATE")]
    translate: TranslateName,
    /// Sampling parameters that every request gets: top_p=1,top_k=off
    #[arg(long, value_name = "NAME=VALUE,...", env = "ROLLTAPE_FORCE_SAMPLING")]
    force_sampling: Option<Force>,
    /// The upstream's tokenizer.json, to find ids by their bytes where the server reports no ids;
    /// a hosted server is asked for logprobs only with it
    #[arg(long, value_name = "FILE", env = "ROLLTAPE_TOKENIZER")]
    tokenizer: Option<PathBuf>,
    /// Alternatives to record beside each token
    #[arg(long, value_name = "N", default_value_t = 0, env = "ROLLTAPE_TOP_LOGPROBS")]
    top_logprobs: u32,
    /// Ask for the experts that each token was routed to (SGLang)
    #[arg(long, env = "ROLLTAPE_ROUTED_EXPERTS")]
    routed_experts: bool,
    /// Ask for the tokens that truncated sampling left to choose from (SGLang)
    #[arg(long, env = "ROLLTAPE_SAMPLING_MASK")]
    sampling_mask: bool,
    /// The environment variable that holds the upstream's API key, in place of the agent's
    #[arg(long, value_name = "NAME", env = "ROLLTAPE_UPSTREAM_KEY_ENV")]
    upstream_key_env: Option<String>,
    /// Certificates to trust beside the system's, in PEM
    #[arg(long, value_name = "FILE", env = "ROLLTAPE_UPSTREAM_CA")]
    upstream_ca: Option<PathBuf>,
    /// Speak HTTP/2 to a plain http:// upstream; over https:// it is agreed on
    #[arg(long, env = "ROLLTAPE_UPSTREAM_HTTP2")]
    upstream_http2: bool,
}

impl Manner {
    /// The settings of a proxy in front of `upstream`.
    ///
    /// # Errors
    /// [`Failure`] when a file cannot be used or a variable is not set.
    pub(crate) fn config(&self, upstream: Upstream, own_engine: bool) -> Result<Config, Failure> {
        let mut config = self.speech.config(upstream, own_engine)?;
        if let Some(mib) = self.request_mib {
            config.request_bytes_kept = mib.saturating_mul(1 << 20);
        }
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let tls = proxy::server_tls(&read(certificate)?, &read(key)?);
            config.tls = Some(tls.map_err(|e| Failure::of(&e))?);
        }
        config.allow_unrecorded_sampling = self.allow_unrecorded_sampling;
        config.control_token = self.token.read()?;
        config.rows = Some(Arc::new(Rows));
        Ok(config)
    }

    /// The variables that hold the control listener's token or the upstream's key, and those that
    /// name them: what no agent is to find in its environment.
    pub(crate) fn secret_variables(&self) -> Vec<&str> {
        let named = [&self.token.control_token_env, &self.speech.upstream_key_env];
        let named = named.into_iter().filter_map(|name| name.as_deref());
        SECRET_VARIABLES.into_iter().chain(named).collect()
    }
}

impl Speech {
    /// Whether tokens can be looked up by their bytes.
    pub(crate) fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// The upstream's `tokenizer.json`, where it was named.
    pub(crate) fn tokenizer(&self) -> Option<&Path> {
        self.tokenizer.as_deref()
    }

    /// The settings of what speaks to `upstream`.
    ///
    /// # Errors
    /// [`Failure`] when a file cannot be used or a variable is not set.
    pub(crate) fn config(&self, upstream: Upstream, own_engine: bool) -> Result<Config, Failure> {
        let mut config = Config::new(upstream);
        config.dialect = match self.dialect {
            None if own_engine => Some(Dialect::Rolltape),
            named => named.map(Into::into),
        };
        config.logprob_kind = self.logprobs_mode.map(|kind| match kind {
            LogprobsName::Processed => "processed".to_owned(),
            LogprobsName::Raw => "raw".to_owned(),
        });
        config.translate = self.translate.into();
        config.force = self.force_sampling.clone().unwrap_or_default();
        config.extras = Beside {
            top_logprobs: self.top_logprobs,
            routed_experts: self.routed_experts,
            sampling_mask: self.sampling_mask,
        };
        config.vocabulary = self.tokenizer.as_deref().map(vocabulary).transpose()?;
        config.upstream_key = self.upstream_key_env.as_deref().map(key).transpose()?;
        config.upstream_ca = self.upstream_ca.as_deref().map(read).transpose()?.unwrap_or_default();
        config.upstream_http2 = self.upstream_http2;
        Ok(config)
    }
}

fn vocabulary(path: &Path) -> Result<Arc<Vocabulary>, Failure> {
    let found = Vocabulary::read(&read(path)?);
    found.map(Arc::new).map_err(|e| Failure::new(format!("`{}` is {e}", path.display())))
}

fn key(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| {
        Failure::new(format!("the environment variable `{name}` is not set"))
            .hint("set it to the upstream's API key, or leave --upstream-key-env out")
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::new(format!("cannot read `{}`: {error}", path.display())))
}

/// When calls are translated to chat, as a word.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum TranslateName {
    /// Where the upstream would not say which tokens it sampled
    #[default]
    Auto,
    /// Never; such calls are recorded as text
    Never,
    /// Always
    Always,
}

impl From<TranslateName> for Translate {
    fn from(name: TranslateName) -> Self {
        match name {
            TranslateName::Auto => Self::Auto,
            TranslateName::Never => Self::Never,
            TranslateName::Always => Self::Always,
        }
    }
}

/// A dialect as a word.
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
    /// Any other OpenAI-compatible server: nothing is asked for without --tokenizer
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

/// What logprobs are of, in vLLM's words.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogprobsName {
    /// The distribution that was sampled, after temperature and filters
    #[value(name = "processed_logprobs")]
    Processed,
    /// The model's own, before temperature
    #[value(name = "raw_logprobs")]
    Raw,
}

impl From<LogprobsName> for LogprobsMode {
    fn from(name: LogprobsName) -> Self {
        match name {
            LogprobsName::Processed => Self::ProcessedLogprobs,
            LogprobsName::Raw => Self::RawLogprobs,
        }
    }
}
