//! The token of `rolltape engine`.

use std::path::PathBuf;

use crate::exit::Failure;

/// The token that callers of the engine must send.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Listener")]
pub(crate) struct EngineToken {
    /// Variable that holds the token of callers
    ///
    /// Without a token everybody on this machine can use every route.
    #[arg(long, value_name = "NAME", conflicts_with = "token_file")]
    #[arg(env = "ROLLTAPE_ENGINE_TOKEN_ENV")]
    token_env: Option<String>,
    /// File that holds the token of callers
    ///
    /// Such as the file from which vLLM's clients read their key.
    #[arg(long, value_name = "FILE", env = "ROLLTAPE_ENGINE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// The token itself, under vLLM's name
    ///
    /// Other users of this machine may see it in the list of processes. The variable and the file
    /// are safer.
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["token_env", "token_file"])]
    #[arg(env = "ROLLTAPE_ENGINE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

impl EngineToken {
    /// Reads the token, if one is named. White space around it is not part of it.
    ///
    /// # Errors
    /// [`Failure`] if there is no token where it should be.
    pub(crate) fn read(&self) -> Result<Option<String>, Failure> {
        let (place, text) = match (&self.token_env, &self.token_file) {
            _ if self.api_key.is_some() => ("`--api-key`".to_owned(), self.api_key.clone()),
            (Some(name), _) => {
                (format!("the environment variable `{name}`"), std::env::var(name).ok())
            }
            (None, Some(path)) => {
                (format!("the file `{}`", path.display()), std::fs::read_to_string(path).ok())
            }
            (None, None) => return Ok(None),
        };
        let token = text.as_deref().map(str::trim).filter(|token| is_sendable(token));

        token.map(|token| Some(token.to_owned())).ok_or_else(|| {
            Failure::new(format!("{place} holds no token")).hint(
                "a token is one line of visible ASCII characters, such as `openssl rand -hex 32` \
                 prints",
            )
        })
    }
}

/// True for a text that can be sent in a header as it is.
fn is_sendable(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_holds_no_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = folder.path().join("token");
            std::fs::write(&path, text).unwrap();
            EngineToken { token_file: Some(path), ..EngineToken::default() }.read()
        };
        assert_eq!(read("secret\n").unwrap().as_deref(), Some("secret"));
        for text in ["", " ", "\n", "two words", "two\nlines", "\u{e9}"] {
            assert!(read(text).is_err(), "{text:?}");
        }
        assert_eq!(EngineToken::default().read().unwrap(), None);
        let key = |text: &str| {
            EngineToken { api_key: Some(text.to_owned()), ..EngineToken::default() }.read()
        };
        assert_eq!(key("secret").unwrap().as_deref(), Some("secret"));
        assert!(key("").is_err());
    }
}
