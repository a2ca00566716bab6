//! The texts of sampled tokens, if a recorded reply still has them.

use std::collections::BTreeMap;

use episode::Route;
use serde_json::Value;

use crate::json::tree;
use crate::sse::documents;

/// A sampled token as a recorded reply lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedToken {
    /// Its id, if the reply puts it beside the text.
    pub id: Option<u32>,
    /// Its text in bytes, which may be a part of a character; `None` if the reply only has an id.
    pub bytes: Option<Vec<u8>>,
}

/// The tokens of each choice, in order, by the server's index. A reply has them if the agent itself
/// asked for logprobs; otherwise they were taken out of it.
pub fn listed_tokens(route: Route, reply: &[u8]) -> BTreeMap<u32, Vec<ListedToken>> {
    let mut lists = Lists::default();
    if matches!(route, Route::Chat | Route::Completions | Route::Responses | Route::Generate) {
        for document in documents(reply) {
            if let Some(part) = tree(&document) {
                lists.add(route, &part);
            }
        }
    }
    lists.finish()
}

/// The bytes of each of the ids `sampled`, by the tokens that a reply lists of the same choice.
/// Without ids beside the texts, a list of another length does not show which text is whose. With
/// them, the beginning and the end of it do.
pub fn bytes_of_ids(listed: &[ListedToken], sampled: &[u32]) -> Vec<Option<Vec<u8>>> {
    let fits = |(token, id): &(&ListedToken, &u32)| token.id.is_none_or(|known| known == **id);
    let has_id = |(token, id): &(&ListedToken, &u32)| token.id == Some(**id);
    let mut found = vec![None; sampled.len()];
    if listed.len() == sampled.len() {
        if listed.iter().zip(sampled).all(|pair| fits(&pair)) {
            found = listed.iter().map(|token| token.bytes.clone()).collect();
        }
        return found;
    }

    let head = listed.iter().zip(sampled).take_while(has_id).count();
    for (at, token) in listed[..head].iter().enumerate() {
        found[at].clone_from(&token.bytes);
    }
    let (listed, sampled) = (&listed[head..], &sampled[head..]);
    let tail = listed.iter().rev().zip(sampled.iter().rev()).take_while(has_id).count();
    for (token, bytes) in listed.iter().rev().zip(found.iter_mut().rev()).take(tail) {
        bytes.clone_from(&token.bytes);
    }
    found
}

/// The lists of a reply, as they grow out of its documents.
#[derive(Default)]
struct Lists {
    choices: BTreeMap<u32, Vec<ListedToken>>,
    /// The tokens of a whole response, which repeats what its events had.
    response: Vec<ListedToken>,
}

impl Lists {
    fn add(&mut self, route: Route, part: &Value) {
        match route {
            Route::Responses => self.add_response(part),
            Route::Generate => match part {
                Value::Array(parts) => {
                    (0..).zip(parts).for_each(|(at, part)| self.add_native(at, part));
                }
                part => self.add_native(0, part),
            },
            _ => self.add_choices(part),
        }
    }

    fn finish(self) -> BTreeMap<u32, Vec<ListedToken>> {
        let mut choices = self.choices;
        if !self.response.is_empty() {
            choices.insert(0, self.response);
        }
        choices
    }

    /// Takes a reply of a chat or a text completion, or a chunk of one.
    fn add_choices(&mut self, part: &Value) {
        for choice in items(part.get("choices")) {
            let list = self.choices.entry(index(choice, 0)).or_default();
            let logprobs = choice.get("logprobs").unwrap_or(&Value::Null);
            let entries = ["content", "refusal"].map(|name| items(logprobs.get(name)));
            let before = list.len();
            list.extend(entries.into_iter().flatten().map(of_entry));
            if list.len() > before {
                continue;
            }

            let ids = logprobs.get("token_ids").and_then(Value::as_array);
            list.extend(items(logprobs.get("tokens")).enumerate().map(|(at, token)| {
                let id = ids.and_then(|ids| ids.get(at)).and_then(as_id);
                let named = named(token.as_str(), None);
                ListedToken { id: id.or(named.id), ..named }
            }));
        }
    }

    /// Takes a response, or an event of one.
    fn add_response(&mut self, part: &Value) {
        let deltas = items(part.get("logprobs")).map(of_entry);
        if part["type"].as_str().is_some_and(|kind| kind.ends_with(".delta")) {
            self.choices.entry(0).or_default().extend(deltas);
        }

        let response = part.get("response").unwrap_or(part);
        let contents = items(response.get("output")).flat_map(|item| items(item.get("content")));
        let entries = contents.flat_map(|content| items(content.get("logprobs")));
        self.response.extend(entries.map(of_entry));
    }

    /// Takes a reply of a server's own route for text, or an event of one.
    fn add_native(&mut self, at: u32, part: &Value) {
        let list = self.choices.entry(index(part, at)).or_default();
        list.extend(items(part.get("completion_probabilities")).map(of_entry));

        // SGLang: all tokens so far, or the new ones.
        let triples = items(part.pointer("/meta_info/output_token_logprobs"));
        let triples: Vec<ListedToken> = triples.map(of_triple).collect();
        if triples.starts_with(list) {
            *list = triples;
        } else {
            list.extend(triples);
        }
    }
}

fn items(list: Option<&Value>) -> impl Iterator<Item = &Value> {
    list.and_then(Value::as_array).into_iter().flatten()
}

fn index(choice: &Value, otherwise: u32) -> u32 {
    let index = choice.get("index").and_then(Value::as_u64);
    index.map_or(otherwise, |index| u32::try_from(index).unwrap_or(u32::MAX))
}

fn as_id(id: &Value) -> Option<u32> {
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// The token of an entry. Its bytes are the token itself; the text beside them may stand for half a
/// character.
fn of_entry(entry: &Value) -> ListedToken {
    let bytes = entry.get("bytes").and_then(Value::as_array).and_then(|bytes| {
        let byte = |byte: &Value| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
        bytes.iter().map(byte).collect::<Option<Vec<u8>>>()
    });
    let named = named(entry.get("token").and_then(Value::as_str), bytes);
    ListedToken { id: entry.get("id").and_then(as_id).or(named.id), ..named }
}

/// The token of a triple: logprob, id and text.
fn of_triple(triple: &Value) -> ListedToken {
    let text = triple.get(2).and_then(Value::as_str);
    ListedToken { id: triple.get(1).and_then(as_id), ..named(text, None) }
}

/// The token of this name, which is its text, or its id as `token_id:N`. Bytes that only repeat
/// such a name are no text either.
fn named(name: Option<&str>, bytes: Option<Vec<u8>>) -> ListedToken {
    let id = name.and_then(|name| name.strip_prefix("token_id:")?.parse().ok());
    let is_text =
        |bytes: &Vec<u8>| id.is_none() || Some(bytes.as_slice()) != name.map(str::as_bytes);
    let text = name.filter(|_| id.is_none()).map(|name| name.as_bytes().to_vec());
    ListedToken { id, bytes: bytes.filter(is_text).or(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of the first choice of a tape, which is a recorded reply.
    fn tape(route: Route, name: &str) -> Vec<ListedToken> {
        let path = format!("{}/../tests/tapes/{name}", env!("CARGO_MANIFEST_DIR"));
        let reply = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        listed_tokens(route, &reply).remove(&0).unwrap_or_default()
    }

    fn texts(tokens: &[ListedToken]) -> Vec<String> {
        let text = |token: &ListedToken| token.bytes.clone().map(|b| String::from_utf8(b).unwrap());
        tokens.iter().map(|token| text(token).unwrap_or_else(|| "-".to_owned())).collect()
    }

    fn token(id: Option<u32>, text: Option<&str>) -> ListedToken {
        ListedToken { id, bytes: text.map(|text| text.as_bytes().to_vec()) }
    }

    #[test]
    fn each_server_spells_its_tokens_in_its_own_way() {
        let hi = ["Hi", "!", "<|im_end|>"];
        for (route, name) in [
            (Route::Chat, "vllm/chat/own_logprobs.plain.json"),
            (Route::Completions, "vllm/completions/own_logprobs.plain.json"),
            (Route::Responses, "vllm/responses/own_logprobs.plain.json"),
            (Route::Chat, "sglang/chat/own_logprobs.plain.json"),
            (Route::Completions, "sglang/completions/own_logprobs_stream.plain.sse"),
        ] {
            assert_eq!(texts(&tape(route, name)), hi, "{name}");
        }
        let whole = ["Hi", "!", ""];
        for name in ["llamacpp/chat/own_logprobs", "llamacpp/completions/own_logprobs"] {
            let route = if name.contains("chat") { Route::Chat } else { Route::Completions };
            let tokens = tape(route, &format!("{name}.plain.json"));
            assert_eq!((texts(&tokens), tokens[0].id), (whole.map(str::to_owned).into(), Some(13)));
        }
    }

    #[test]
    fn own_routes_list_their_tokens_with_ids() {
        let tokens = tape(Route::Generate, "llamacpp/generate/text_stream.asked.sse");
        assert_eq!((texts(&tokens)[2].as_str(), tokens[2].id, tokens.len()), ("4", Some(19), 6));
        let tokens = tape(Route::Generate, "sglang/generate/text_stream.asked.sse");
        assert_eq!((tokens[2].id, tokens.len()), (Some(19), 6), "each token once");
        assert_eq!(texts(&tokens), ["-"; 6], "the server was not asked for texts");
        let triple = br#"{"meta_info":{"output_token_logprobs":[[-0.5,13,"Hi"],[-1,0,null]]}}"#;
        let listed = listed_tokens(Route::Generate, triple).remove(&0).unwrap();
        assert_eq!(listed, [token(Some(13), Some("Hi")), token(Some(0), None)]);
    }

    #[test]
    fn a_name_that_is_an_id_is_no_text() {
        let reply = br#"{"choices":[{"logprobs":{"tokens":["token_id:5","a"]}}]}"#;
        let listed = listed_tokens(Route::Completions, reply).remove(&0).unwrap();
        assert_eq!(listed, [token(Some(5), None), token(None, Some("a"))]);
        let entry = |bytes: &str| {
            format!(
                r#"{{"choices":[{{"logprobs":{{"content":[
                {{"token":"token_id:5","bytes":{bytes}}}]}}}}]}}"#
            )
        };
        let name: Vec<u8> = b"token_id:5".to_vec();
        for (bytes, text) in [("null", None), (&format!("{name:?}"), None), ("[97]", Some("a"))] {
            let listed = listed_tokens(Route::Chat, entry(bytes).as_bytes()).remove(&0).unwrap();
            assert_eq!(listed, [token(Some(5), text)], "{bytes}");
        }
    }

    #[test]
    fn bytes_are_the_token_and_may_be_half_a_character() {
        let tokens = tape(Route::Chat, "sglang/chat/utf8.asked.json");
        let halves = [vec![240, 159], vec![152, 128]].map(Some);
        assert_eq!([&tokens[1].bytes, &tokens[2].bytes], [&halves[0], &halves[1]]);
        assert_eq!(texts(&tape(Route::Chat, "vllm/chat/utf8_stream.asked.sse"))[1], "");
        assert!(listed_tokens(Route::Chat, b"{}").is_empty());
        assert!(tape(Route::Messages, "sglang/chat/utf8.asked.json").is_empty());
    }

    #[test]
    fn a_list_of_another_length_needs_ids() {
        let bytes = |listed: &[ListedToken], sampled: &[u32]| {
            let found = bytes_of_ids(listed, sampled).into_iter();
            found.map(|b| b.map(|b| String::from_utf8(b).unwrap())).collect::<Vec<_>>()
        };
        let some = |text: &str| Some(text.to_owned());
        let plain = [token(None, Some("a")), token(None, Some("b"))];
        assert_eq!(bytes(&plain, &[1, 2]), [some("a"), some("b")]);
        assert_eq!(bytes(&plain, &[1, 2, 3]), [None, None, None]);

        // llama.cpp lists two tokens of one character as one.
        let tokens = tape(Route::Chat, "llamacpp/chat/utf8.asked.json");
        let found = bytes(&tokens, &[60, 30, 31, 61, 2]);
        assert_eq!(found, [some("数"), None, some("😀"), some("\u{2028}語"), some("")]);
        assert_eq!(bytes(&tokens, &[60, 31, 61, 7]), [None, None, None, None], "other ids");
        assert_eq!(bytes(&tokens[..2], &[60, 31, 61]), [some("数"), some("😀"), None]);
    }
}
