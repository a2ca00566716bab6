//! Chats whose prompts begin with ids that were sampled: how a server encodes the messages, and
//! where it takes a prompt as ids.
//!
//! vLLM answers `/tokenize` with the ids of a chat's messages and the string of each, and takes ids
//! in `kv_transfer_params.prompt_token_ids` since 0.33. SGLang answers it with the ids alone, tells
//! the text of ids by `/detokenize` ([`told_texts`]), and takes them in `input_ids`.

pub(super) mod told_texts;

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use episode::ContinueReason;
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::json;

use crate::dialect::Dialect;
use crate::json::{each_element, members};
use crate::reply::Spelling;
use crate::request::Request;

const TOKENIZE: &str = "/tokenize";

/// Fields of a chat that vLLM's `/tokenize` takes under the same names and with the same meaning.
const RENDERED: [&str; 8] = [
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
];

/// Fields that SGLang's `/tokenize` reads as its chat route does. It also hands on all others.
const RENDERED_BY_SGLANG: [&str; 7] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "reasoning_effort",
    "continue_final_message",
    "chat_template_kwargs",
];

/// Fields that SGLang's chat route ignores and its `/tokenize` does not.
const READ_BY_TOKENIZE: [&str; 3] = ["add_generation_prompt", "add_special_tokens", "prompt"];

/// Fields that decide what is sampled and reported, and not what is read.
const INERT: [&str; 60] = [
    "stream",
    "stream_options",
    "stream_interval",
    "n",
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "top_a",
    "typical_p",
    "top_n_sigma",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "ignore_eos",
    "include_stop_str_in_output",
    "no_stop_trim",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "thinking_token_budget",
    "parallel_tool_calls",
    "include_reasoning",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "priority",
    "request_id",
    "session_id",
    "cache_salt",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "return_weight_versions",
    "return_meta_info",
    "return_prompt_token_ids",
    "routed_experts_prompt_start",
    "return_routed_experts",
];

/// Fields by which an agent itself decides about the ids of the prompt, or asks for its text.
const DECIDING: [&str; 6] = [
    "kv_transfer_params",
    "input_ids",
    "prompt_token_ids",
    "echo",
    "truncate_prompt_tokens",
    "mm_payload",
];

/// Types of the parts of a message that are text.
const TEXT_PARTS: [&[u8]; 7] = [
    b"\"text\"",
    b"\"input_text\"",
    b"\"output_text\"",
    b"\"refusal\"",
    b"\"thinking\"",
    b"\"reasoning\"",
    b"\"tool_reference\"",
];

/// The question how a server encodes the messages of a chat.
#[derive(Debug, Clone)]
pub struct PromptQuestion {
    /// The path to ask.
    pub path: &'static str,
    /// The body.
    pub body: Bytes,
    /// A hash of the fields beside the messages that may change the prompt.
    pub shape: u64,
    /// True if the server's answer holds for the chat route as far as is known. Else it must be
    /// shown first, by a call that the server encodes itself.
    pub is_known: bool,
    /// True if the conversation has an answer that it may go on from.
    pub has_answers: bool,
}

impl PromptQuestion {
    /// The question for a chat request.
    ///
    /// # Errors
    /// The reason for which the prompt can only be encoded by the server itself.
    pub fn new(dialect: Dialect, request: &Request) -> Result<Self, ContinueReason> {
        let rendered: &[&str] = match dialect {
            Dialect::Vllm | Dialect::Rolltape => &RENDERED,
            Dialect::Sglang => &RENDERED_BY_SGLANG,
            _ => return Err(ContinueReason::NotSupported),
        };
        if DECIDING.iter().any(|key| is_set(request, key)) {
            return Err(ContinueReason::PromptFields);
        }
        let messages = messages(request).ok_or(ContinueReason::NotSupported)?;
        if messages.has_media {
            return Err(ContinueReason::Media);
        }

        let is_ignored = |key| dialect == Dialect::Sglang && READ_BY_TOKENIZE.contains(&key);
        let mut hasher = DefaultHasher::new();
        let mut is_known = true;
        for (key, value) in request.raw_fields() {
            let is_default = value == b"null" || (key == "tool_choice" && value == b"\"auto\"");
            if key == "messages" || INERT.contains(&key) || is_default || is_ignored(key) {
                continue;
            }
            (key, value).hash(&mut hasher);
            is_known &= rendered.contains(&key);
        }
        Ok(Self {
            path: TOKENIZE,
            body: match dialect {
                Dialect::Sglang => sglang_body(request),
                _ => tokenize_body(request),
            },
            shape: hasher.finish(),
            is_known,
            has_answers: messages.has_answers,
        })
    }
}

/// The body that asks for the ids of a chat's messages.
fn tokenize_body(request: &Request) -> Bytes {
    let mut body = b"{\"return_token_strs\":true".to_vec();
    for key in RENDERED {
        let Some(value) = request.raw(key).filter(|value| *value != b"null") else { continue };
        body.extend_from_slice(b",\"");
        body.extend_from_slice(key.as_bytes());
        body.extend_from_slice(b"\":");
        match key {
            "chat_template_kwargs" => body.extend_from_slice(&with_effort(request, value)),
            _ => body.extend_from_slice(value),
        }
    }
    if request.raw("chat_template_kwargs").is_none() && is_set(request, "reasoning_effort") {
        body.extend_from_slice(b",\"chat_template_kwargs\":");
        body.extend_from_slice(&with_effort(request, b"{}"));
    }
    body.push(b'}');
    Bytes::from(body)
}

/// The body that asks SGLang for the ids of a chat's messages. It reads a chat there.
fn sglang_body(request: &Request) -> Bytes {
    let mut body = b"{".to_vec();
    let is_left = |key: &str| INERT.contains(&key) || READ_BY_TOKENIZE.contains(&key);
    for (key, value) in request.raw_fields() {
        if is_left(key) || value == b"null" {
            continue;
        }
        if body.len() > 1 {
            body.push(b',');
        }
        body.extend_from_slice(json!(key).to_string().as_bytes());
        body.push(b':');
        body.extend_from_slice(value);
    }
    body.push(b'}');
    Bytes::from(body)
}

/// The template's variables with the effort, which vLLM hands to it for chats.
fn with_effort<'a>(request: &Request, variables: &'a [u8]) -> Cow<'a, [u8]> {
    let Some(effort) = request.raw("reasoning_effort").filter(|value| *value != b"null") else {
        return Cow::Borrowed(variables);
    };
    let Ok(serde_json::Value::Object(mut all)) = serde_json::from_slice(variables) else {
        return Cow::Borrowed(variables);
    };
    let Ok(effort) = serde_json::from_slice::<serde_json::Value>(effort) else {
        return Cow::Borrowed(variables);
    };
    all.entry("enable_thinking").or_insert((effort != "none").into());
    all.insert("reasoning_effort".to_owned(), effort);
    Cow::Owned(serde_json::Value::Object(all).to_string().into_bytes())
}

/// What the messages of a chat hold.
#[derive(Debug, Clone, Copy, Default)]
struct MessageFacts {
    has_media: bool,
    has_answers: bool,
}

/// Looks at the messages; `None` if they are no list of objects.
fn messages(request: &Request) -> Option<MessageFacts> {
    let raw = request.raw("messages")?;
    let mut facts = MessageFacts::default();
    each_element(raw, &(0..raw.len()), |place| {
        for member in members(raw, &place)? {
            let value = &raw[member.value.clone()];
            match &*member.key(raw) {
                "role" => facts.has_answers |= value == b"\"assistant\"",
                "content" if value.first() == Some(&b'[') => {
                    facts.has_media |= has_other_parts(value);
                }
                _ => {}
            }
        }
        Ok(())
    })
    .ok()?;
    Some(facts)
}

/// True if a list of parts has one that is not text.
fn has_other_parts(parts: &[u8]) -> bool {
    let mut has_others = false;
    let walked = each_element(parts, &(0..parts.len()), |place| {
        if parts[place.start] == b'"' {
            return Ok(());
        }
        let found = members(parts, &place)?;
        let kind = found.iter().rfind(|member| member.key(parts) == "type");
        has_others |= !kind.is_some_and(|kind| TEXT_PARTS.contains(&&parts[kind.value.clone()]));
        Ok(())
    });
    has_others || walked.is_err()
}

fn is_set(request: &Request, key: &str) -> bool {
    !matches!(request.raw(key), None | Some(b"null" | b"false"))
}

/// A prompt as the server's tokenizer has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerEncoding {
    /// The ids.
    pub ids: Vec<u32>,
    /// The text of all of them. A token may be a part of a character.
    pub text: Vec<u8>,
    /// For each id the end of its text, in bytes.
    pub ends: Vec<usize>,
}

impl ServerEncoding {
    /// Reads the answer to a [`PromptQuestion`]; `None` if it does not tell each token's string.
    pub fn read(answer: &[u8]) -> Option<Self> {
        let spelling = Spelling::shown_in(answer);
        let mut document = serde_json::Deserializer::from_slice(answer);
        let read = AnswerReader(spelling).deserialize(&mut document).ok()?;
        (read.ids.len() == read.ends.len() && !read.ids.is_empty()).then_some(read)
    }
}

/// Reads the server's answer. Strings are joined as they come: a long prompt has a hundred
/// thousand.
struct AnswerReader(Spelling);

impl<'de> DeserializeSeed<'de> for AnswerReader {
    type Value = ServerEncoding;

    fn deserialize<D: Deserializer<'de>>(self, answer: D) -> Result<ServerEncoding, D::Error> {
        answer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AnswerReader {
    type Value = ServerEncoding;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `tokens` and `token_strs`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut answer: A) -> Result<ServerEncoding, A::Error> {
        let mut read = ServerEncoding { ids: Vec::new(), text: Vec::new(), ends: Vec::new() };
        while let Some(key) = answer.next_key::<Cow<'_, str>>()? {
            match &*key {
                "tokens" => read.ids = answer.next_value()?,
                "token_strs" => {
                    let strings = StringReader { spelling: self.0, read: &mut read };
                    answer.next_value_seed(strings)?;
                }
                _ => {
                    answer.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(read)
    }
}

/// Reads the strings of tokens, or one of them.
struct StringReader<'a> {
    spelling: Spelling,
    read: &'a mut ServerEncoding,
}

impl<'de> DeserializeSeed<'de> for StringReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StringReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("strings of tokens")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut strings: A) -> Result<(), A::Error> {
        let Self { spelling, read } = self;
        read.ends.reserve(read.ids.len());
        while strings.next_element_seed(StringReader { spelling, read })?.is_some() {}
        Ok(())
    }

    fn visit_str<E: Error>(self, string: &str) -> Result<(), E> {
        self.spelling.push_bytes(string, &mut self.read.text);
        self.read.ends.push(self.read.text.len());
        Ok(())
    }
}

/// A prompt as ids, in the field of a server that takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptField {
    pub(super) name: &'static str,
    pub(super) value: String,
}

impl PromptField {
    /// The field of a server of `dialect`; `None` if it takes no prompt as ids.
    pub fn new(dialect: Dialect, ids: &[u32]) -> Option<Self> {
        let (name, start, end) = match dialect {
            Dialect::Vllm | Dialect::Rolltape => (VLLM_PROMPT, "{\"prompt_token_ids\":[", "]}"),
            Dialect::Sglang => (SGLANG_PROMPT, "[", "]"),
            _ => return None,
        };
        let mut value = String::with_capacity(start.len() + end.len() + ids.len() * 7);
        let mut digits = itoa::Buffer::new();
        value.push_str(start);
        for (at, id) in ids.iter().enumerate() {
            if at > 0 {
                value.push(',');
            }
            value.push_str(digits.format(*id));
        }
        value.push_str(end);
        Some(Self { name, value })
    }
}

pub(super) const VLLM_PROMPT: &str = "kv_transfer_params";
pub(super) const SGLANG_PROMPT: &str = "input_ids";

#[cfg(test)]
mod tests {
    use super::*;

    fn question(body: &str) -> Result<PromptQuestion, ContinueReason> {
        let request = Request::read(&Bytes::from(body.to_owned())).unwrap();
        PromptQuestion::new(Dialect::Vllm, &request)
    }

    #[test]
    fn the_question_has_what_makes_the_prompt_and_nothing_else() {
        let asked = question(
            r#"{"model":"m","messages":[{"role":"user","content":"é"}],"temperature":1,"n":2,
                "tools":[{"a":1}],"tool_choice":"auto","stream":true,"logprobs":null}"#,
        )
        .unwrap();
        let body = r#"{"return_token_strs":true,"model":"m","messages":[{"role":"user","content":"é"}],"tools":[{"a":1}]}"#;
        assert_eq!(asked.body, body);
        assert!(asked.is_known && !asked.has_answers);
    }

    #[test]
    fn sglang_is_asked_with_the_chat_itself() {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"top_p":1,
            "tool_choice":"none","tools":null,"stream":true"#;
        let ask = |more: &str| {
            let body = Bytes::from(format!("{body}{more}}}"));
            PromptQuestion::new(Dialect::Sglang, &Request::read(&body).unwrap()).unwrap()
        };
        let asked = ask("");
        let sent =
            r#"{"model":"m","messages":[{"role":"user","content":"a"}],"tool_choice":"none"}"#;
        assert_eq!((&*asked.body, asked.is_known), (sent.as_bytes(), true));
        let unknown = ask(r#","task":"query""#);
        assert!(!unknown.is_known && unknown.body.ends_with(br#","task":"query"}"#));
        let other = ask(r#","add_generation_prompt":true"#);
        assert!(other.is_known && other.body == sent, "it means something else there");
        assert_eq!((other.shape, asked.shape != unknown.shape), (asked.shape, true));
    }

    #[test]
    fn fields_that_nobody_knows_must_be_shown_to_change_nothing() {
        let said = r#""messages":[{"role":"assistant","content":[{"type":"text","text":"a"}]}]"#;
        let known = question(&format!("{{{said}}}")).unwrap();
        assert!(known.is_known && known.has_answers);
        for field in [r#""x":1"#, r#""tool_choice":"required""#, r#""documents":[]"#] {
            let asked = question(&format!("{{{said},{field}}}")).unwrap();
            assert!(!asked.is_known && asked.shape != known.shape, "{field}");
        }
        let effort = question(&format!(r#"{{{said},"reasoning_effort":"low"}}"#)).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&effort.body).unwrap();
        let variables = json!({ "reasoning_effort": "low", "enable_thinking": true });
        assert_eq!(body["chat_template_kwargs"], variables);
        assert!(!effort.is_known);
    }

    #[test]
    fn what_the_server_must_encode_itself_is_told() {
        let of = |content: &str, more: &str| {
            let body = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]{more}}}"#);
            question(&body).unwrap_err()
        };
        let picture = r#"[{"type":"image_url","image_url":{"url":"x"}}]"#;
        assert_eq!(of(picture, ""), ContinueReason::Media);
        assert_eq!(of(r#"[{"image":"x"}]"#, ""), ContinueReason::Media);
        for field in [r#","echo":true"#, r#","kv_transfer_params":{}"#] {
            assert_eq!(of(r#""a""#, field), ContinueReason::PromptFields);
        }
        assert_eq!(question("{}").unwrap_err(), ContinueReason::NotSupported);
    }

    #[test]
    fn ids_and_strings_are_read_and_ids_are_written() {
        let answer =
            r#"{"count":2,"max_model_len":9,"tokens":[7,4294967295],"token_strs":["Ġa","\"b"]}"#;
        let read = ServerEncoding::read(answer.as_bytes()).unwrap();
        assert_eq!(read.ids, [7, u32::MAX]);
        assert_eq!((&*read.text, &*read.ends), (&b" a\"b"[..], &[2, 4][..]));
        assert!(ServerEncoding::read(br#"{"tokens":[7],"token_strs":null}"#).is_none());
        let value = |dialect| PromptField::new(dialect, &read.ids).map(|field| field.value);
        let vllm = r#"{"prompt_token_ids":[7,4294967295]}"#;
        assert_eq!(value(Dialect::Vllm).as_deref(), Some(vllm));
        assert_eq!(value(Dialect::Sglang).as_deref(), Some("[7,4294967295]"));
        assert_eq!(value(Dialect::Llamacpp), None);
        // The keys may come in any order, and the strings may be missing.
        let turned = r#"{"token_strs":["Ġa","\"b"],"tokens":[7,4294967295]}"#;
        assert_eq!(ServerEncoding::read(turned.as_bytes()), Some(read.clone()));
        assert!(ServerEncoding::read(br#"{"tokens":[7]}"#).is_none());
    }
}
