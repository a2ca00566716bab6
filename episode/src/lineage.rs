//! Which of its agents made a call.

/// Where a call stands among the agents of its episode, as the agent's own headers and metadata
/// say. What an agent does not say stays empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    /// The program: `claude-code`, `codex`, `opencode`, `openhands`, `litellm`.
    pub client: Option<String>,
    /// Its own name for the run.
    pub session: Option<String>,
    /// Its own name for the agent or thread within the run.
    pub agent: Option<String>,
    /// The agent or thread that started this one.
    pub parent: Option<String>,
    /// What the call is for.
    pub kind: CallKind,
    /// How often the client has sent this request before, by its own count.
    pub retry: u32,
}

/// What a call is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// A turn of the main thread, as far as anyone says.
    #[default]
    Main,
    /// A turn of an agent that another agent started.
    Subagent,
    /// The history is being summarized.
    Compaction,
    /// Beside the conversation: a title, a probe, a suggestion.
    Auxiliary,
}

impl CallKind {
    const ALL: [Self; 4] = [Self::Main, Self::Subagent, Self::Compaction, Self::Auxiliary];

    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Subagent => "subagent",
            Self::Compaction => "compaction",
            Self::Auxiliary => "auxiliary",
        }
    }

    /// The kind that [`Self::as_str`] names; an unknown word is `Main`.
    pub fn from_word(word: &str) -> Self {
        Self::ALL.into_iter().find(|k| k.as_str() == word).unwrap_or(Self::Main)
    }
}
