//! The agent that made a call.

/// The place of a call among the agents of its episode, read from the agent's own headers and
/// metadata. A field that the agent does not send is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    /// The program: `claude-code`, `codex`, `opencode`, `openhands`, `litellm`.
    pub client: Option<String>,
    /// The program's own name for the run.
    pub session: Option<String>,
    /// The program's own name for the agent or thread within the run.
    pub agent: Option<String>,
    /// The agent or thread that started this one.
    pub parent: Option<String>,
    /// The purpose of the call.
    pub kind: CallKind,
    /// Number of times that the client sent this request before, by its own count.
    pub retry: u32,
}

/// The purpose of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// A turn of the main thread; also the purpose of a call that names none.
    #[default]
    Main,
    /// A turn of an agent that another agent started.
    Subagent,
    /// A summary of the history.
    Compaction,
    /// A call beside the conversation: a title, a probe, a suggestion.
    Auxiliary,
}

impl CallKind {
    const ALL: [Self; 4] = [Self::Main, Self::Subagent, Self::Compaction, Self::Auxiliary];

    /// The word that is stored and shown.
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
