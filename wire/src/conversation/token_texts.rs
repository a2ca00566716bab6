//! The texts of sampled tokens, if a recorded reply still has them.

use std::collections::BTreeMap;

use episode::Route;
use serde_json::Value;

use crate::json::tree;
use crate::sse::documents;

/// The texts of the tokens of each choice, in order, by the server's index. A reply has them if the
/// agent itself asked for logprobs; otherwise they were taken out of it.
pub fn token_texts(route: Route, reply: &[u8]) -> BTreeMap<u32, Vec<String>> {
    let mut found = BTreeMap::new();
    if matches!(route, Route::Chat | Route::Completions) {
        for document in documents(reply) {
            if let Some(part) = tree(&document) {
                add_part(&mut found, &part);
            }
        }
    }
    found
}

fn add_part(found: &mut BTreeMap<u32, Vec<String>>, part: &Value) {
    for choice in part.get("choices").and_then(Value::as_array).into_iter().flatten() {
        let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
        let texts = found.entry(u32::try_from(index).unwrap_or(u32::MAX)).or_default();
        let logprobs = choice.get("logprobs").unwrap_or(&Value::Null);
        if let Some(Value::Array(entries)) = logprobs.get("content") {
            texts.extend(entries.iter().map(entry_text));
        } else if let Some(Value::Array(tokens)) = logprobs.get("tokens") {
            texts.extend(tokens.iter().map(|token| token.as_str().unwrap_or_default().to_owned()));
        }
    }
}

/// The text of an entry's bytes, which are the token itself. The text beside them may stand for
/// half a character.
fn entry_text(entry: &Value) -> String {
    let bytes: Vec<u8> = entry
        .get("bytes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()))
        .collect();
    match bytes.is_empty() {
        false => String::from_utf8_lossy(&bytes).into_owned(),
        true => entry.get("token").and_then(Value::as_str).unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_streams_and_text_completions_show_the_same() {
        let entry = |token: &str| format!(r#"{{"token":"{token}","bytes":null}}"#);
        let chunk = |entries: &str| {
            format!(r#"{{"choices":[{{"index":0,"logprobs":{{"content":[{entries}]}}}}]}}"#)
        };
        let document = chunk(&format!("{},{}", entry("a"), entry("b")));
        let stream = format!("data: {}\n\ndata: {}\n\n", chunk(&entry("a")), chunk(&entry("b")));
        let plain = r#"{"choices":[{"logprobs":{"tokens":["a","b"]}}]}"#;
        for (route, reply) in
            [(Route::Chat, document.as_str()), (Route::Chat, &stream), (Route::Completions, plain)]
        {
            assert_eq!(token_texts(route, reply.as_bytes())[&0], ["a", "b"], "{reply}");
        }
    }

    #[test]
    fn bytes_are_the_token() {
        let reply =
            br#"{"choices":[{"logprobs":{"content":[{"token":"\\xe2","bytes":[195,169]}]}}]}"#;
        assert_eq!(token_texts(Route::Chat, reply)[&0], ["\u{e9}"]);
        assert!(token_texts(Route::Messages, reply).is_empty());
        assert!(token_texts(Route::Chat, b"{}").is_empty());
    }
}
