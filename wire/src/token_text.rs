//! The texts of sampled tokens, where a recorded reply still shows them.

use std::collections::BTreeMap;

use episode::Route;
use serde_json::Value;

use crate::sse::{Event, events};

/// For each choice of a reply the texts of its tokens, in order, by the server's index. An agent
/// that asked for logprobs was sent them; what rolltape alone asked for was taken out.
pub fn token_texts(route: Route, reply: &[u8]) -> BTreeMap<u32, Vec<String>> {
    let mut found = BTreeMap::new();
    if !matches!(route, Route::Chat | Route::Completions) {
        return found;
    }
    match serde_json::from_slice::<Value>(reply) {
        Ok(document) => add(&mut found, &document),
        Err(_) => events(&[reply]).iter().filter_map(Event::data).for_each(|data| {
            if let Ok(chunk) = serde_json::from_slice::<Value>(&data) {
                add(&mut found, &chunk);
            }
        }),
    }
    found
}

fn add(found: &mut BTreeMap<u32, Vec<String>>, part: &Value) {
    for choice in part.get("choices").and_then(Value::as_array).into_iter().flatten() {
        let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
        let texts = found.entry(u32::try_from(index).unwrap_or(u32::MAX)).or_default();
        let list = |path: &str| choice.pointer(path).and_then(Value::as_array);
        if let Some(entries) = list("/logprobs/content") {
            texts.extend(entries.iter().map(text_of));
        } else if let Some(tokens) = list("/logprobs/tokens") {
            texts.extend(tokens.iter().map(|token| token.as_str().unwrap_or_default().to_owned()));
        }
    }
}

/// The bytes are the token itself; the text beside them may stand for half a character.
fn text_of(entry: &Value) -> String {
    let bytes = entry.get("bytes").and_then(Value::as_array).map(|bytes| {
        let byte = |b: &Value| b.as_u64().and_then(|b| u8::try_from(b).ok());
        bytes.iter().filter_map(byte).collect::<Vec<u8>>()
    });
    match bytes {
        Some(bytes) if !bytes.is_empty() => String::from_utf8_lossy(&bytes).into_owned(),
        _ => entry.get("token").and_then(Value::as_str).unwrap_or_default().to_owned(),
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
