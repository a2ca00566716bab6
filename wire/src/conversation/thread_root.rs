//! The beginning of a conversation, by which its calls are told from those of other threads.

use std::ops::Range;

use episode::Route;

use crate::json::{Malformed, each_element, members};
use crate::request::Request;

/// Messages before the first of a user that are read.
const ROOT_MESSAGES_MAX: usize = 8;
/// Bytes of a message, or of a prompt that is no list of messages, that are read whole.
const ROOT_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a text or of ids by which a completion's thread is known: later turns are longer.
const ROOT_PROMPT_BYTES: usize = 512;

/// The beginning of the conversation of `request`, in pieces: the texts of its messages up to the
/// first of a user, or the beginning of its prompt. All turns and forks of one thread have it, and
/// other agents of the same episode have another, unless they are told the same. `None` if the
/// request has none.
pub fn thread_root(route: Route, request: &Request) -> Option<Vec<&[u8]>> {
    match route {
        Route::Chat | Route::Messages => messages(request, "messages"),
        Route::Responses => messages(request, "input"),
        Route::Completions | Route::Generate => prompt(request),
        _ => None,
    }
}

fn messages<'a>(request: &'a Request, key: &str) -> Option<Vec<&'a [u8]>> {
    let raw = request.raw(key)?;
    if raw.first() != Some(&b'[') {
        return Some(vec![beginning(raw, ROOT_MESSAGE_BYTES_MAX)]);
    }
    let (mut root, mut count, mut has_user) = (Vec::new(), 0, false);
    let walked = each_element(raw, &(0..raw.len()), |place| {
        has_user = message(raw, place, &mut root);
        count += 1;
        // Not malformed, but far enough.
        if has_user || count == ROOT_MESSAGES_MAX { Err(Malformed) } else { Ok(()) }
    });
    let is_read = walked.is_ok() || has_user || count == ROOT_MESSAGES_MAX;
    (is_read && !root.is_empty()).then_some(root)
}

/// Adds the role and the texts of a message, as spelled. True if it is a user's, or so long that it
/// is not one that threads have in common.
///
/// An agent that moves its mark for the cache writes one text as a string or as a list of parts.
fn message<'a>(raw: &'a [u8], place: Range<usize>, root: &mut Vec<&'a [u8]>) -> bool {
    let whole = &raw[place.clone()];
    if whole.len() > ROOT_MESSAGE_BYTES_MAX {
        root.push(beginning(whole, ROOT_MESSAGE_BYTES_MAX));
        return true;
    }
    let Ok(members) = members(raw, &place) else {
        root.push(whole);
        return false;
    };
    let value = |key: &str| members.iter().rfind(|member| member.key(raw) == key);
    let role = value("role").map_or(&raw[..0], |role| &raw[role.value.clone()]);
    root.push(role);
    if let Some(content) = value("content") {
        texts(raw, &content.value, root);
    }
    role == br#""user""#
}

/// Adds the texts of a content: a string, or those of a list of parts. What has no text is added as
/// it is.
fn texts<'a>(raw: &'a [u8], content: &Range<usize>, root: &mut Vec<&'a [u8]>) {
    let listed = each_element(raw, content, |part| {
        let members = members(raw, &part).unwrap_or_default();
        let text = members.iter().rfind(|member| member.key(raw) == "text");
        root.push(&raw[text.map_or(part, |text| text.value.clone())]);
        Ok(())
    });
    if listed.is_err() {
        root.push(&raw[content.clone()]);
    }
}

fn prompt(request: &Request) -> Option<Vec<&[u8]>> {
    let raw = ["prompt", "text", "input_ids", "token_ids"].iter().find_map(|key| request.raw(key));
    raw.map(|raw| vec![beginning(raw, ROOT_PROMPT_BYTES)])
}

fn beginning(raw: &[u8], bytes_max: usize) -> &[u8] {
    &raw[..raw.len().min(bytes_max)]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn root(route: Route, body: &str) -> Option<Vec<Vec<u8>>> {
        let request = Request::read(&Bytes::from(body.to_owned())).unwrap();
        let root = thread_root(route, &request)?;
        Some(root.into_iter().map(<[u8]>::to_vec).collect())
    }

    #[test]
    fn turns_and_forks_share_a_root_other_agents_do_not() {
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
        let plain = r#"{"messages":[{"role":"user","content":"u"}]}"#;
        assert_eq!(with(""), root(Route::Messages, plain).unwrap());
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
