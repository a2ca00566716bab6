//! Prompts whose experts are recorded, so that a later call need not ask for them again.
//!
//! The ids of a prompt are known only once its reply came. So a call is compared by its spelling:
//! if its prompt begins, byte for byte, with that of an earlier call, its ids are expected to begin
//! with that call's. Templates leave parts of a history out, so this is believed only after it was
//! seen once in the same attempt, and each reply is checked again.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

use episode::{Choice, Route};

use crate::bounds::KNOWN_PROMPTS_MAX;
use crate::conversation::TEMPLATE_FIELDS;
use crate::json::{each_element, members};
use crate::request::Request;
use crate::token_data::{ExpertRows, expert_rows};

/// Fields beside the prompt and [`TEMPLATE_FIELDS`] of which a prompt's tokens are made.
const RENDERED_FIELDS: [&str; 3] = ["model", "tools", "functions"];

/// Prompts of one attempt whose experts are recorded.
#[derive(Debug, Clone, Default)]
pub struct KnownPrompts {
    /// The newest one is last.
    prompts: VecDeque<KnownPrompt>,
    /// By the kind of continuation.
    trust: [Trust; 2],
}

/// A prompt whose experts are recorded.
#[derive(Debug, Clone, Copy)]
struct KnownPrompt {
    spelled: PromptSpelling,
    ids: usize,
    ids_hash: u64,
    /// Number of experts of a token, over all layers, where the server does not say it.
    width: Option<usize>,
}

/// A prompt as a request spells it, without the mark that ends it.
#[derive(Debug, Clone, Copy)]
struct PromptSpelling {
    bytes: usize,
    hash: u64,
    /// The hash of the other fields of which its tokens are made.
    fields: u64,
}

/// The messages by which a prompt goes on. Templates cut thoughts where a user speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Continuation {
    Results,
    Spoken,
}

/// Trust that prompts which are spelled as continuations are continuations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Trust {
    #[default]
    Untried,
    Held,
    Broken,
}

/// A prompt on its way to the server.
#[derive(Debug, Clone)]
pub struct AskedPrompt {
    spelled: PromptSpelling,
    continued: Option<(KnownPrompt, Continuation)>,
    /// The first token whose experts are asked for.
    start: usize,
}

/// A prompt as its reply told it.
#[derive(Debug, Clone)]
pub struct LearnedPrompt {
    /// The prompt, if the experts of all its tokens are recorded now.
    known: Option<KnownPrompt>,
    /// True if its ids begin with those of the prompt that it continues by its spelling.
    held: Option<(Continuation, bool)>,
}

impl KnownPrompts {
    /// Finds the prompt that `request` continues; `None` if it has no prompt that can be compared.
    pub fn find(&self, route: Route, request: &Request) -> Option<AskedPrompt> {
        let raw = prompt_of(route, request)?;
        let fields = rendered_fields(request);
        let (spelled, found) = self.longest_beginning(raw, fields);
        let continued = found.map(|known| (known, continuation(raw, known.spelled.bytes)));
        let is_trusted =
            |(_, kind): &(KnownPrompt, Continuation)| self.trust[*kind as usize] == Trust::Held;
        let trusted = continued.filter(is_trusted);
        // The last token is asked for again, so that there is one in any case.
        let start = trusted.map_or(0, |(known, _)| known.ids.saturating_sub(1));
        Some(AskedPrompt { spelled, continued, start })
    }

    /// The spelling of a prompt, and the longest known one that it begins with.
    fn longest_beginning(&self, raw: &[u8], fields: u64) -> (PromptSpelling, Option<KnownPrompt>) {
        let whole = without_end(raw);
        let of_fields = self.prompts.iter().filter(|known| known.spelled.fields == fields);
        let mut known: Vec<_> =
            of_fields.filter(|known| known.spelled.bytes <= whole.len()).copied().collect();
        known.sort_by_key(|known| known.spelled.bytes);

        let (mut hash, mut at, mut found) = (FNV_START, 0, None);
        for known in known {
            hash = fnv(hash, &whole[at..known.spelled.bytes]);
            at = known.spelled.bytes;
            if hash == known.spelled.hash && ends_an_element(raw, at) {
                found = Some(known);
            }
        }
        (PromptSpelling { bytes: whole.len(), hash: fnv(hash, &whole[at..]), fields }, found)
    }

    /// Takes what a reply told, once the call is recorded.
    pub fn learn(&mut self, learned: LearnedPrompt) {
        if let Some((kind, has_held)) = learned.held {
            let trust = &mut self.trust[kind as usize];
            *trust = match (*trust, has_held) {
                (Trust::Broken, _) | (_, false) => Trust::Broken,
                (_, true) => Trust::Held,
            };
        }
        let Some(known) = learned.known else { return };
        let is_same = |other: &KnownPrompt| {
            (other.spelled.hash, other.spelled.bytes) == (known.spelled.hash, known.spelled.bytes)
        };
        self.prompts.retain(|other| !is_same(other));
        self.prompts.push_back(known);
        if self.prompts.len() > KNOWN_PROMPTS_MAX {
            self.prompts.pop_front();
        }
    }
}

impl AskedPrompt {
    /// The first token whose experts are to be asked for; 0 for all.
    pub fn start(&self) -> usize {
        self.start
    }

    /// The same if the server was asked for the experts of all tokens.
    pub fn whole(self) -> Self {
        Self { start: 0, ..self }
    }

    /// Reads what the reply tells of the prompt. Where a server does not say at which token its
    /// experts begin, it is written beside them.
    pub fn settle(&self, prompts: &[Vec<u32>], choices: &mut [Choice]) -> Option<LearnedPrompt> {
        let [ids] = prompts else { return None };
        let held = self.continued.map(|(known, kind)| (kind, known.is_beginning_of(ids)));
        let width = self.continued.and_then(|(known, _)| known.width);

        let mut known = None;
        for choice in choices {
            let Some(sampled) = choice.token_ids.as_ref().map(Vec::len) else { continue };
            let tokens = (ids.len() + sampled).saturating_sub(1);
            let column = choice.token_columns.iter_mut().find(|c| c.name == "routed_experts");
            let Some(column) = column else { continue };
            let Some(rows) = expert_rows(&column.json) else { continue };
            let Some((start, width)) = self.first_row(rows, tokens, width) else {
                // Without a shape nobody takes them for others.
                column.json = started(&column.json, self.start, None);
                continue;
            };
            if let Some(width) = width.filter(|_| start > 0) {
                column.json = started(&column.json, start, Some((tokens - start, width)));
            }
            if start == 0 || held.is_some_and(|(_, has_held)| has_held) {
                let ids_hash = hash_of(ids);
                known =
                    Some(KnownPrompt { spelled: self.spelled, ids: ids.len(), ids_hash, width });
            }
        }
        Some(LearnedPrompt { known, held })
    }

    /// The first token of these rows, and the width of one where the server does not say it. A
    /// server that does not know the field sends all rows.
    fn first_row(
        &self,
        rows: ExpertRows,
        tokens: usize,
        width: Option<usize>,
    ) -> Option<(usize, Option<usize>)> {
        let asked = tokens.checked_sub(self.start)?;
        match rows {
            ExpertRows::Counted(rows) if rows == asked => Some((self.start, None)),
            ExpertRows::Counted(rows) => (rows >= tokens).then_some((0, None)),
            ExpertRows::Bare(count) if self.start == 0 => {
                let is_whole = tokens > 0 && count.is_multiple_of(tokens);
                is_whole.then(|| (0, Some(count / tokens)))
            }
            ExpertRows::Bare(count) => {
                let width = width?;
                let fits = |start: &usize| (tokens - start) * width == count;
                let start = [self.start, 0].into_iter().find(fits)?;
                Some((start, Some(width)))
            }
        }
    }
}

impl KnownPrompt {
    fn is_beginning_of(&self, ids: &[u32]) -> bool {
        ids.get(..self.ids).is_some_and(|beginning| hash_of(beginning) == self.ids_hash)
    }
}

/// A column of bytes in base64 with its first token, and its shape if that is known.
fn started(json: &str, start: usize, shape: Option<(usize, usize)>) -> String {
    let data = json.trim_start_matches('[').trim_end_matches(']');
    let shape = shape.map(|(rows, width)| format!(r#","shape":[{rows},{width}]"#));
    let shape = shape.unwrap_or_default();
    format!(r#"[{{"data":{data},"dtype":"int32"{shape},"start":{start}}}]"#)
}

/// The prompt of a request as spelled.
fn prompt_of(route: Route, request: &Request) -> Option<&[u8]> {
    let key = match route {
        Route::Chat => "messages",
        Route::Completions => "prompt",
        _ => return None,
    };
    request.raw(key).filter(|raw| matches!(raw, [b'[', .., b']'] | [b'"', .., b'"']))
}

/// A list or a text without its last mark, and without space before it.
fn without_end(raw: &[u8]) -> &[u8] {
    raw[..raw.len() - 1].trim_ascii_end()
}

/// True if an element of a list ends at `at`; a text may end anywhere.
fn ends_an_element(raw: &[u8], at: usize) -> bool {
    raw[0] == b'"' || matches!(raw[at..].trim_ascii_start().first(), Some(b',' | b']'))
}

/// The kind of the messages from the byte `from` on.
fn continuation(raw: &[u8], from: usize) -> Continuation {
    let mut kind = Continuation::Results;
    let walked = each_element(raw, &(0..raw.len()), |place| {
        if place.start < from || raw[place.start] != b'{' {
            return Ok(());
        }
        let found = members(raw, &place)?;
        let role = found.iter().rfind(|member| member.key(raw) == "role");
        let role = role.map_or(&b""[..], |role| &raw[role.value.clone()]);
        if !matches!(role, br#""assistant""# | br#""tool""# | br#""function""#) {
            kind = Continuation::Spoken;
        }
        Ok(())
    });
    // A text is no list of messages.
    if raw[0] == b'[' && walked.is_err() { Continuation::Spoken } else { kind }
}

fn rendered_fields(request: &Request) -> u64 {
    let names = RENDERED_FIELDS.iter().chain(&TEMPLATE_FIELDS);
    names.fold(FNV_START, |hash, name| {
        fnv(fnv(hash, name.as_bytes()), request.raw(name).unwrap_or_default())
    })
}

fn hash_of(ids: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    ids.iter().for_each(|id| hasher.write_u32(*id));
    hasher.finish()
}

/// FNV-1a, which gives the same for a text in any pieces.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use episode::TokenColumn;
    use serde_json::json;

    use super::*;
    use crate::token_data::routing;

    fn request(messages: &[&str], more: &str) -> Request {
        let said: Vec<String> = messages
            .iter()
            .map(|m| format!(r#"{{"role": "{m}", "content": "]}},\"x"}}"#))
            .collect();
        let body = format!(r#"{{"model":"m"{more}, "messages": [{}]}}"#, said.join(", "));
        Request::read(&Bytes::from(body)).unwrap()
    }

    /// A reply of bare integers, two for each token from `start` on.
    fn reply(path: usize, sampled: usize, start: usize) -> Vec<Choice> {
        let bytes: Vec<u8> =
            (start * 2..(path - 1) * 2).flat_map(|expert| (expert as u32).to_le_bytes()).collect();
        let json = json!([STANDARD.encode(bytes)]).to_string();
        let column = TokenColumn { name: "routed_experts".to_owned(), json };
        vec![Choice {
            token_ids: Some(vec![7; sampled]),
            token_columns: vec![column],
            ..Choice::default()
        }]
    }

    fn ids(count: usize) -> Vec<Vec<u32>> {
        vec![(0..count as u32).collect()]
    }

    /// Tells a turn whose prompt has `prompt` ids and whose reply begins where it was asked to.
    fn turn(known: &mut KnownPrompts, messages: &[&str], prompt: usize) -> usize {
        let asked = known.find(Route::Chat, &request(messages, "")).unwrap();
        let mut choices = reply(prompt + 2, 2, asked.start());
        known.learn(asked.settle(&ids(prompt), &mut choices).unwrap());
        let read = routing(&choices[0].token_columns[0].json, prompt + 2).unwrap();
        assert_eq!(read.experts[0] as usize, asked.start() * 2);
        assert_eq!((read.width(), read.start.unwrap_or(0)), (2, asked.start()));
        asked.start()
    }

    const FIRST: [&str; 2] = ["system", "user"];
    const SECOND: [&str; 4] = ["system", "user", "assistant", "tool"];
    const THIRD: [&str; 6] = ["system", "user", "assistant", "tool", "assistant", "tool"];

    #[test]
    fn what_held_once_is_believed() {
        let mut known = KnownPrompts::default();
        let starts = [(&FIRST[..], 10), (&SECOND, 20), (&THIRD, 30), (&THIRD, 30)]
            .map(|(messages, prompt)| turn(&mut known, messages, prompt));
        assert_eq!(starts, [0, 0, 19, 29], "the second shows that prompts go on");
        let fork = ["system", "user", "assistant", "tool", "assistant", "assistant"];
        assert_eq!(turn(&mut known, &fork, 31), 19);
        let of = |messages: &[&str], more: &str| {
            known.find(Route::Chat, &request(messages, more)).unwrap().start()
        };
        assert_eq!(of(&[&THIRD[..], &["user"]].concat(), ""), 0, "a user speaks");
        assert_eq!(of(&THIRD, r#","tools":[{}]"#), 0);
        assert_eq!(of(&["system", "tool"], ""), 0);
    }

    #[test]
    fn what_did_not_hold_is_never_believed_again() {
        let mut known = KnownPrompts::default();
        turn(&mut known, &FIRST, 10);
        turn(&mut known, &SECOND, 20);
        let asked = known.find(Route::Chat, &request(&THIRD, "")).unwrap();
        assert_eq!(asked.start(), 19);
        // The template left out a thought: the ids begin with others.
        let mut choices = reply(32, 2, 19);
        known.learn(asked.settle(&[vec![9; 30]], &mut choices).unwrap());
        assert_eq!(routing(&choices[0].token_columns[0].json, 32).unwrap().start, Some(19));
        for _ in 0..2 {
            assert_eq!(turn(&mut known, &THIRD, 30), 0);
        }
    }

    #[test]
    fn a_server_that_does_not_know_the_field_sends_all() {
        let mut known = KnownPrompts::default();
        turn(&mut known, &FIRST, 10);
        turn(&mut known, &SECOND, 20);
        let asked = known.find(Route::Chat, &request(&THIRD, "")).unwrap();
        let mut choices = reply(32, 2, 0);
        let before = choices[0].token_columns[0].json.clone();
        assert!(asked.settle(&ids(30), &mut choices).unwrap().known.is_some());
        assert_eq!(choices[0].token_columns[0].json, before);
        let mut odd = reply(32, 2, 5);
        assert!(asked.settle(&ids(30), &mut odd).unwrap().known.is_none());
        assert_eq!(routing(&odd[0].token_columns[0].json, 32), None, "of no token for sure");
    }

    #[test]
    fn texts_and_ids_go_on_too() {
        let of = |prompt: &str| {
            Request::read(&Bytes::from(format!(r#"{{"prompt":{prompt}}}"#))).unwrap()
        };
        for [first, second, third, other] in [
            ["\"ab\"", "\"abc\"", "\"abcd\"", "\"b\""],
            ["[1,2]", "[1,2, 3]", "[1,2, 3,4]", "[1,2, 34]"],
        ] {
            let mut known = KnownPrompts::default();
            for (prompt, count) in [(first, 10), (second, 20)] {
                let asked = known.find(Route::Completions, &of(prompt)).unwrap();
                let mut choices = reply(count + 1, 1, 0);
                known.learn(asked.settle(&ids(count), &mut choices).unwrap());
            }
            let start = |prompt| known.find(Route::Completions, &of(prompt)).unwrap().start();
            assert_eq!(start(third), 19);
            assert!(start(other) < 19, "{other}");
        }
        assert!(KnownPrompts::default().find(Route::Responses, &of("\"a\"")).is_none());
    }
}
