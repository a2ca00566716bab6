//! The kind of endpoint that a request was sent to.

/// The kind of endpoint that a request was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Messages,
    /// A server's own route for text: SGLang's `/generate`, llama.cpp's `/completion`.
    Generate,
    /// `POST /v1/messages/count_tokens`: relayed; its count is kept.
    CountTokens,
    /// `POST /v1/embeddings`: relayed; its count is kept.
    Embeddings,
    /// `GET /v1/models`: relayed.
    Models,
    /// Any other path: relayed, and recorded as a plain exchange.
    Other,
}

impl Route {
    const ALL: [Self; 9] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Generate,
        Self::CountTokens,
        Self::Embeddings,
        Self::Models,
        Self::Other,
    ];

    /// The word that is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Generate => "generate",
            Self::CountTokens => "count_tokens",
            Self::Embeddings => "embeddings",
            Self::Models => "models",
            Self::Other => "other",
        }
    }

    /// The route that [`Self::as_str`] names; an unknown word is `Other`.
    pub fn from_word(word: &str) -> Self {
        Self::ALL.into_iter().find(|r| r.as_str() == word).unwrap_or(Self::Other)
    }

    /// True if calls to this route sample tokens.
    pub fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Responses | Self::Messages | Self::Generate
        )
    }
}
