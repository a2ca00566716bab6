//! The kind of endpoint that a request was sent to.

use crate::words::words;

words! {
    /// The kind of endpoint that a request was sent to.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Route {
        /// `POST /v1/chat/completions`
        Chat = "chat",
        /// `POST /v1/completions`
        Completions = "completions",
        /// `POST /v1/responses`
        Responses = "responses",
        /// `POST /v1/messages`
        Messages = "messages",
        /// A server's own route for text: SGLang's `/generate`, llama.cpp's `/completion`.
        Generate = "generate",
        /// `POST /v1/messages/count_tokens`: relayed; its count is kept.
        CountTokens = "count_tokens",
        /// `POST /v1/embeddings`: relayed; its count is kept.
        Embeddings = "embeddings",
        /// `GET /v1/models`: relayed.
        Models = "models",
        /// Any other path: relayed, and recorded as a plain exchange.
        Other = "other",
    }
    unknown => Other
}

impl Route {
    /// True if calls to this route sample tokens.
    pub fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Responses | Self::Messages | Self::Generate
        )
    }
}
