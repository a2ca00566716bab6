//! The agent that made a call.

use crate::words::words;

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

words! {
    /// The purpose of a call.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub enum CallKind {
        /// A turn of the main thread; also the purpose of a call that names none.
        #[default]
        Main = "main",
        /// A turn of an agent that another agent started.
        Subagent = "subagent",
        /// A summary of the history.
        Compaction = "compaction",
        /// A call beside the conversation: a title, a probe, a suggestion.
        Auxiliary = "auxiliary",
    }
    unknown => Main
}
