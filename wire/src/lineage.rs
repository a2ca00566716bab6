//! The agent that made a call, read off the headers and fields that agents send by themselves.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use episode::{CallKind, Lineage, Route};
use serde::Deserialize;
use serde_json::Value;

use crate::bounds::VALUE_BYTES_MAX;
use crate::request::Request;

/// The header in which an SDK counts how often it sent this request before.
const RETRY_COUNT: &str = "x-stainless-retry-count";

/// Texts of requests beside the conversation. Only requests without tools are searched for them: an
/// agent at work has tools.
const AUXILIARY: [&str; 7] = [
    // OpenCode and Claude Code name a session by its first message.
    "You are a title generator",
    "Generate a concise, sentence-case title",
    "Please write a 5-10 word title",
    "isNewTopic",
    // Claude Code looks at the prefix of a shell command.
    "Claude Code Code Bash command prefix detection",
    // Claude Code asks whether it may call at all.
    "\"content\":\"quota\"",
    // Inspect finds out whether reasoning summaries are allowed.
    "Please say 'hello, world'",
];

/// The last message of calls beside the conversation that offer a tool of the server.
const SEARCH: [&str; 1] = [
    // Claude Code has a call of its own search the web.
    "Perform a web search for the query: ",
];

/// Texts of requests that fold the history into a summary.
const COMPACTION: [&str; 5] = [
    "Your task is to create a detailed summary of the conversation so far",
    // Claude Code 2.1
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    // Codex
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
    "\"type\":\"compaction_trigger\"",
    // qwen-code
    "You are the component that summarizes a conversation when its context window",
];

/// Agents of their own, which have no tools, summarize for OpenCode and for Cline.
const SUMMARIZER: [&str; 2] = [
    "You are a context summarization agent",
    "Summarize the provided coding session into a concise continuation note",
];

/// A search for all of [`AUXILIARY`] and [`SUMMARIZER`] in one pass.
static WITHOUT_TOOLS: LazyLock<AhoCorasick> =
    LazyLock::new(|| search_for(&[&AUXILIARY[..], &SUMMARIZER]));
/// The same for [`SEARCH`] and [`COMPACTION`].
static LAST: LazyLock<AhoCorasick> = LazyLock::new(|| search_for(&[&SEARCH, &COMPACTION]));

fn search_for(texts: &[&[&str]]) -> AhoCorasick {
    AhoCorasick::new(texts.iter().copied().flatten()).expect("so few texts make a small automaton")
}

/// Codex's description of a turn, as JSON in a header.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CodexTurn {
    session_id: Option<String>,
    thread_id: Option<String>,
    parent_thread_id: Option<String>,
    subagent_kind: Option<String>,
    request_kind: Option<String>,
}

/// Reads the lineage of a call off its headers and its body's metadata.
pub fn lineage<'h>(
    header: impl Fn(&str) -> Option<&'h str>,
    route: Route,
    request: Option<&Request>,
) -> Lineage {
    let mut found = claude_code(&header, request)
        .or_else(|| codex(&header))
        .or_else(|| open_code(&header))
        .or_else(|| litellm(&header, request))
        .unwrap_or_default();

    found.retry = header(RETRY_COUNT).and_then(|count| count.parse().ok()).unwrap_or(0);
    if found.kind == CallKind::Main
        && let Some(request) = request.filter(|_| route.generates())
    {
        found.kind = kind_of(request);
    }
    found
}

fn claude_code<'h>(
    header: &impl Fn(&str) -> Option<&'h str>,
    request: Option<&Request>,
) -> Option<Lineage> {
    let is_agent = header("user-agent").is_some_and(|agent| agent.starts_with("claude-cli/"));
    let session = header("x-claude-code-session-id").map(str::to_owned);
    if !is_agent && session.is_none() {
        return None;
    }

    let parent = header("x-claude-code-parent-agent-id").map(str::to_owned);
    let agent = header("x-claude-code-agent-id").map(str::to_owned);
    Some(Lineage {
        client: Some("claude-code".to_owned()),
        session: session.or_else(|| session_of_user(request?)),
        kind: if agent.is_some() || parent.is_some() { CallKind::Subagent } else { CallKind::Main },
        agent,
        parent,
        retry: 0,
    })
}

/// The session in `metadata.user_id`: a JSON text in newer versions, `user_..._session_ID` in older
/// ones.
fn session_of_user(request: &Request) -> Option<String> {
    let metadata = short_value(request, "metadata")?;
    let user = metadata.get("user_id")?.as_str()?;
    let json = serde_json::from_str::<Value>(user).ok();
    let session = json.as_ref().and_then(|user| user.get("session_id")?.as_str());
    session.or_else(|| Some(user.split_once("_session_")?.1)).map(str::to_owned)
}

fn codex<'h>(header: &impl Fn(&str) -> Option<&'h str>) -> Option<Lineage> {
    let metadata = header("x-codex-turn-metadata");
    let is_agent = header("originator").is_some_and(|name| name.starts_with("codex"));
    if metadata.is_none() && !is_agent {
        return None;
    }

    let owned = |name| header(name).map(str::to_owned);
    let turn: CodexTurn =
        metadata.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
    let parent = turn.parent_thread_id.or_else(|| owned("x-codex-parent-thread-id"));
    let subagent = turn.subagent_kind.or_else(|| owned("x-openai-subagent"));
    let kind = codex_kind(subagent.as_deref(), turn.request_kind.as_deref(), parent.is_some());

    Some(Lineage {
        client: Some("codex".to_owned()),
        session: turn.session_id.or_else(|| owned("session-id")).or_else(|| owned("session_id")),
        agent: turn.thread_id.or_else(|| owned("thread-id")),
        parent,
        kind,
        retry: 0,
    })
}

fn codex_kind(subagent: Option<&str>, request_kind: Option<&str>, has_parent: bool) -> CallKind {
    let names =
        |word: &str| [subagent, request_kind].into_iter().flatten().any(|kind| kind.contains(word));
    if names("compact") {
        CallKind::Compaction
    } else if names("title") || names("memory") {
        CallKind::Auxiliary
    } else if has_parent || subagent.is_some() {
        CallKind::Subagent
    } else {
        CallKind::Main
    }
}

fn open_code<'h>(header: &impl Fn(&str) -> Option<&'h str>) -> Option<Lineage> {
    let is_agent = header("user-agent").is_some_and(|agent| agent.contains("opencode/"));
    let affinity = header("x-session-affinity");
    if !is_agent && affinity.is_none() {
        return None;
    }

    let session = header("x-session-id").or(affinity).map(str::to_owned);
    let parent = header("x-parent-session-id").map(str::to_owned);
    Some(Lineage {
        client: Some("opencode".to_owned()),
        agent: session.clone(),
        // A child has a session of its own; the run is that of its parent.
        session: parent.clone().or(session),
        kind: if parent.is_some() { CallKind::Subagent } else { CallKind::Main },
        parent,
        retry: 0,
    })
}

/// Reads calls of LiteLLM, and of OpenHands, harbor and mini-swe-agent, which call through it.
fn litellm<'h>(
    header: &impl Fn(&str) -> Option<&'h str>,
    request: Option<&Request>,
) -> Option<Lineage> {
    let is_openhands = header("x-title").is_some_and(|title| title.contains("OpenHands"));
    let litellm_session = header("x-litellm-session-id").or_else(|| header("x-litellm-trace-id"));
    let session = litellm_session
        .or_else(|| header("x-session-id"))
        .map(str::to_owned)
        .or_else(|| body_session(request?))?;

    let client = match (is_openhands, litellm_session.is_some()) {
        (true, _) => Some("openhands"),
        (false, true) => Some("litellm"),
        (false, false) => None,
    };
    Some(Lineage {
        client: client.map(str::to_owned),
        session: Some(session),
        ..Lineage::default()
    })
}

/// The session in the body's fields in which harnesses name it.
fn body_session(request: &Request) -> Option<String> {
    ["session_id", "litellm_session_id"]
        .iter()
        .find_map(|key| Some(short_value(request, key)?.as_str()?.to_owned()))
        .or_else(|| {
            let metadata = short_value(request, "metadata")?;
            Some(metadata.get("session_id")?.as_str()?.to_owned())
        })
}

/// The value of a field that names a session; `None` if it is too long to be one.
fn short_value(request: &Request, key: &str) -> Option<Value> {
    let raw = request.raw(key).filter(|raw| raw.len() <= VALUE_BYTES_MAX)?;
    serde_json::from_slice(raw).ok()
}

fn kind_of(request: &Request) -> CallKind {
    let body = request.body();
    if !request.has_tools() {
        let found = found_in(body, &WITHOUT_TOOLS);
        if found.iter().any(|text| *text < AUXILIARY.len()) {
            return CallKind::Auxiliary;
        }
        if !found.is_empty() {
            return CallKind::Compaction;
        }
    }
    // A summary is asked for in the last message, and quoted in the first ones of what follows.
    let last = ["messages", "input"].iter().find_map(|key| request.last_of(key));
    match last.and_then(|last| found_in(last, &LAST).first().copied()) {
        Some(text) if text < SEARCH.len() => CallKind::Auxiliary,
        Some(_) => CallKind::Compaction,
        None => CallKind::Main,
    }
}

/// The numbers of the texts that `bytes` holds.
fn found_in(bytes: &[u8], search: &AhoCorasick) -> Vec<usize> {
    search.find_iter(bytes).map(|text| text.pattern().as_usize()).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn read(headers: &[(&str, &'static str)], body: &'static str) -> Lineage {
        let request = Request::read(&Bytes::from_static(body.as_bytes()));
        let header = |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, v)| *v);
        lineage(header, Route::Chat, request.as_ref())
    }

    fn parts(found: &Lineage) -> [Option<&str>; 4] {
        [&found.client, &found.session, &found.agent, &found.parent].map(|part| part.as_deref())
    }

    #[test]
    fn claude_code_names_its_session_and_its_agents() {
        let agent = ("user-agent", "claude-cli/2.1.197 (external, sdk-cli)");
        let main = read(&[agent, ("x-claude-code-session-id", "s")], r#"{"tools":[{}]}"#);
        assert_eq!(parts(&main), [Some("claude-code"), Some("s"), None, None]);
        assert_eq!(main.kind, CallKind::Main);
        let sub = read(
            &[agent, ("x-claude-code-session-id", "s"), ("x-claude-code-agent-id", "a")],
            "{}",
        );
        assert_eq!((parts(&sub)[2], sub.kind), (Some("a"), CallKind::Subagent));
        let older = read(&[agent], r#"{"metadata":{"user_id":"user_1_account__session_abc"}}"#);
        assert_eq!(older.session.as_deref(), Some("abc"));
        let newer = read(&[agent], r#"{"metadata":{"user_id":"{\"session_id\":\"abc\"}"}}"#);
        assert_eq!(newer.session.as_deref(), Some("abc"));
    }

    #[test]
    fn codex_names_its_threads() {
        let metadata = r#"{"session_id":"s","thread_id":"t2","parent_thread_id":"t1","subagent_kind":"review"}"#;
        let sub = read(&[("x-codex-turn-metadata", metadata)], "{}");
        assert_eq!(parts(&sub), [Some("codex"), Some("s"), Some("t2"), Some("t1")]);
        assert_eq!(sub.kind, CallKind::Subagent);
        let main = [("originator", "codex_exec"), ("session-id", "s"), ("thread-id", "t")];
        assert_eq!(parts(&read(&main, "{}")), [Some("codex"), Some("s"), Some("t"), None]);
        let compact = [("originator", "codex_exec"), ("x-openai-subagent", "compact")];
        assert_eq!(read(&compact, "{}").kind, CallKind::Compaction);
    }

    #[test]
    fn sessions_of_others_and_retries_are_read() {
        let open_code = read(
            &[("user-agent", "opencode/1.18"), ("x-session-id", "b"), ("x-parent-session-id", "a")],
            "{}",
        );
        assert_eq!(parts(&open_code), [Some("opencode"), Some("a"), Some("b"), Some("a")]);
        let hands = read(&[("x-title", "OpenHands"), ("x-litellm-session-id", "s")], "{}");
        assert_eq!(parts(&hands)[..2], [Some("openhands"), Some("s")]);
        let body = read(&[], r#"{"session_id":"s"}"#);
        assert_eq!(parts(&body)[..2], [None, Some("s")]);
        assert_eq!(read(&[(RETRY_COUNT, "2")], "{}").retry, 2);
        assert_eq!(read(&[], "{}"), Lineage::default());
    }

    #[test]
    fn calls_beside_the_conversation_are_told() {
        let title = r#"{"messages":[{"role":"system","content":"You are a title generator."}]}"#;
        assert_eq!(read(&[], title).kind, CallKind::Auxiliary);
        let at_work = r#"{"tools":[{"name":"You are a title generator"}]}"#;
        assert_eq!(read(&[], at_work).kind, CallKind::Main);
        let summary = r#"{"messages":[{"content":"Your task is to create a detailed summary of the conversation so far"}]}"#;
        assert_eq!(read(&[], summary).kind, CallKind::Compaction);
        let after = r#"{"messages":[{"content":"Your task is to create a detailed summary of the conversation so far"},{"content":"go on"}]}"#;
        assert_eq!(read(&[], after).kind, CallKind::Main);
    }

    #[test]
    fn newer_agents_are_known_by_their_words() {
        let search = r#"{"tools":[{}],"messages":[{"role":"user","content":[{"type":"text",
            "text":"Perform a web search for the query: two lines"}]}]}"#;
        assert_eq!(read(&[], search).kind, CallKind::Auxiliary);
        let cline = r#"{"messages":[{"role":"system","content":"Summarize the provided coding session into a concise continuation note with detailed next steps."}]}"#;
        assert_eq!(read(&[], cline).kind, CallKind::Compaction);
        let qwen = r#"{"tools":[{}],"messages":[{"content":"a"},{"content":[{"type":"text","text":"You are the component that summarizes a conversation when its context window is about to overflow."}]}]}"#;
        assert_eq!(read(&[], qwen).kind, CallKind::Compaction);
    }
}
