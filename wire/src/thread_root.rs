//! The beginning of a conversation, by which its calls are told from those of other threads.

use std::ops::Range;

use episode::Route;
use serde_json::Value;

use crate::conversation::canonical;
use crate::json::{first_elements, tree};
use crate::request::Request;

/// Messages before the first of a user that are read.
const ROOT_MESSAGES_MAX: usize = 8;
/// Bytes of a message, or of a prompt that is no list of messages, that are read whole.
const ROOT_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a text or of ids by which a completion's thread is known: later turns are longer.
const ROOT_PROMPT_BYTES: usize = 512;

/// The beginning of the conversation of `request`: its messages up to the first of a user, or the
/// beginning of its prompt. All turns and forks of one thread have it, and other agents of the same
/// episode have another, unless they are told the same. `None` if the request has none.
pub fn thread_root(route: Route, request: &Request) -> Option<String> {
    match route {
        Route::Chat | Route::Messages => messages(request, "messages"),
        Route::Responses => messages(request, "input"),
        Route::Completions | Route::Generate => prompt(request),
        _ => None,
    }
}

fn messages(request: &Request, key: &str) -> Option<String> {
    let raw = request.raw(key)?;
    if raw.first() != Some(&b'[') {
        return Some(beginning(raw, ROOT_MESSAGE_BYTES_MAX));
    }
    let first = first_elements(raw, &(0..raw.len()), ROOT_MESSAGES_MAX).ok()?;
    let mut root = String::new();
    for place in first {
        let (text, is_user) = message(raw, place);
        root.push_str(&text);
        root.push('\n');
        if is_user {
            break;
        }
    }
    Some(root).filter(|root| !root.is_empty())
}

/// A message as one text for all its spellings, and whether it is a user's.
fn message(raw: &[u8], place: Range<usize>) -> (String, bool) {
    let bytes = &raw[place];
    let read = tree(bytes).filter(|_| bytes.len() <= ROOT_MESSAGE_BYTES_MAX);
    match read {
        Some(value) => {
            let is_user = value.get("role").and_then(Value::as_str) == Some("user");
            (canonical(&value), is_user)
        }
        // So long a message is not one that is common to threads.
        None => (beginning(bytes, ROOT_MESSAGE_BYTES_MAX), true),
    }
}

fn prompt(request: &Request) -> Option<String> {
    let raw = ["prompt", "text", "input_ids", "token_ids"].iter().find_map(|key| request.raw(key));
    raw.map(|raw| beginning(raw, ROOT_PROMPT_BYTES))
}

fn beginning(raw: &[u8], bytes_max: usize) -> String {
    String::from_utf8_lossy(&raw[..raw.len().min(bytes_max)]).into_owned()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn root(route: Route, body: &str) -> Option<String> {
        thread_root(route, &Request::read(&Bytes::from(body.to_owned())).unwrap())
    }

    #[test]
    fn turns_and_forks_share_their_root_and_other_agents_have_another() {
        let chat = |rest: &str| {
            let head = r#"{"role":"system","content":"s"},{"role":"user","content":"u"}"#;
            root(Route::Chat, &format!(r#"{{"messages":[{head}{rest}]}}"#)).unwrap()
        };
        let first = chat("");
        assert_eq!(first, chat(r#",{"role":"assistant","content":"a"}"#));
        assert_eq!(first, chat(r#",{"role":"assistant","content":"another"}"#));
        let other =
            r#"{"messages":[{"role":"system","content":"t"},{"role":"user","content":"u"}]}"#;
        assert_ne!(first, root(Route::Chat, other).unwrap());
    }

    #[test]
    fn a_mark_for_the_cache_that_moves_changes_no_root() {
        let with = |mark: &str| {
            let part = format!(r#"{{"type":"text","text":"u"{mark}}}"#);
            let body = format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#);
            root(Route::Messages, &body).unwrap()
        };
        assert_eq!(with(""), with(r#","cache_control":{"type":"ephemeral"}"#));
    }

    #[test]
    fn a_prompt_that_grows_keeps_its_root() {
        let long = "x".repeat(ROOT_PROMPT_BYTES);
        let of = |more: &str| root(Route::Completions, &format!(r#"{{"prompt":"{long}{more}"}}"#));
        assert_eq!(of("a"), of("b"));
        assert!(of("a").is_some());
        assert_eq!(root(Route::Other, r#"{"prompt":"x"}"#), None);
    }
}
