//! Taking out of a reply exactly what was asked for on the agent's behalf, by splicing bytes.
//!
//! A rule names a place and what stands there when nobody asks: null, an empty list, or nothing.
//! Some frames exist only because of the ask and leave as a whole; some are one only because of it
//! and leave as several (`parts`).

mod parts;

use std::ops::Range;

use bytes::Bytes;

use crate::json::{Edits, Malformed, Member, cuts, elements, members, root};
use crate::sse::Event;

/// What rolltape asked for and the agent did not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hide {
    rules: Vec<Rule>,
    drops: Vec<Drop>,
    splits: bool,
}

/// A place, as keys from the root (`*` is every element of a list), and what stands there when
/// nobody asks.
pub(crate) type Rule = (&'static [&'static str], With);

/// What stands in the place of a hidden value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    Null,
    /// Null; in a frame that spells null by leaving keys out, the key leaves with its value.
    NullOrAbsent,
    /// Null, but an empty list stays: it is there without the ask, too.
    NullIfFilled,
    EmptyList,
    /// An empty list, where the object's `type` is this.
    EmptyListOf(&'static str),
    /// The number 0.
    Zero,
    /// The key leaves with its value.
    Nothing,
}

/// Frames that are there only because of the ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drop {
    /// vLLM: one choice with an empty delta that does not finish.
    EmptyDelta,
    /// vLLM's Rust frontend: one choice of a text completion with the prompt's ids and no text.
    OnlyPrompt,
    /// SGLang: one choice whose delta says nothing, with logprobs that found no other frame.
    OnlyLogprobs,
    /// An event of this name.
    Named(&'static str),
    /// SGLang: a frame without choices that carries side values.
    Sglext,
}

impl Hide {
    pub(crate) fn rules(&mut self, rules: &[Rule]) {
        self.rules.extend_from_slice(rules);
    }

    pub(crate) fn drop(&mut self, frames: Drop) {
        self.drops.push(frames);
    }

    /// Lets frames that hold several deltas only because of the ask leave as one for each.
    pub(crate) fn split(&mut self) {
        self.splits = true;
    }

    /// Whether the reply goes to the agent as it came.
    pub fn nothing(&self) -> bool {
        self.rules.is_empty() && self.drops.is_empty()
    }

    /// A whole reply without what was asked for; one that is not JSON stays as it is.
    pub fn document(&self, body: &Bytes) -> Bytes {
        match self.edits(body) {
            Ok(edits) if !edits.is_empty() => Bytes::from(edits.apply(body)),
            _ => body.clone(),
        }
    }

    /// An event of a stream without what was asked for; `None` when all of it was.
    pub fn event(&self, event: &Event) -> Option<Bytes> {
        if self.nothing() {
            return Some(event.0.clone());
        }
        let parts = if self.splits { parts::apart(event) } else { Vec::new() };
        if parts.is_empty() {
            return self.hidden(event);
        }
        let shown: Vec<Bytes> = parts.iter().filter_map(|part| self.hidden(part)).collect();
        Some(Bytes::from(shown.concat()))
    }

    fn hidden(&self, event: &Event) -> Option<Bytes> {
        if self.drops.iter().any(|d| matches!(d, Drop::Named(name) if event.is_named(name))) {
            return None;
        }
        let places = event.payload();
        let doc = event.joined(&places);
        if self.leaves(&doc).unwrap_or(false) {
            return None;
        }
        match self.edits(&doc) {
            Ok(edits) if !edits.is_empty() => {
                let edits = edits.moved(|at| event.place_of(&places, at));
                Some(Bytes::from(edits.apply(&event.0)))
            }
            _ => Some(event.0.clone()),
        }
    }

    fn edits(&self, doc: &[u8]) -> Result<Edits, Malformed> {
        let mut edits = Edits::default();
        if !self.rules.is_empty() {
            let absent = self.rules.iter().any(|(_, with)| *with == With::NullOrAbsent)
                && leaves_nulls_out(doc)?;
            let as_spelled = |(at, with): &Rule| match with {
                With::NullOrAbsent if absent => (*at, With::Nothing),
                with => (*at, *with),
            };
            let rules: Vec<Rule> = self.rules.iter().map(as_spelled).collect();
            edit(doc, &root(doc)?, &rules, &mut edits)?;
        }
        Ok(edits)
    }

    /// Whether a frame leaves as a whole.
    fn leaves(&self, doc: &[u8]) -> Result<bool, Malformed> {
        if self.drops.is_empty() {
            return Ok(false);
        }
        let (mut choices, mut sglext) = (Vec::new(), false);
        for member in members(doc, &root(doc)?)? {
            match member.key(doc).as_ref() {
                "choices" => choices = elements(doc, &member.value)?,
                "sglext" => sglext = &doc[member.value.clone()] != b"null",
                _ => {}
            }
        }
        let shape = match choices.as_slice() {
            [only] => Shape::of(doc, only)?,
            _ => Shape::default(),
        };
        Ok(self.drops.iter().any(|drop| match drop {
            Drop::EmptyDelta => shape.delta == Delta::Empty && !shape.finishes,
            Drop::OnlyPrompt => shape.is_prompt && shape.is_silent && !shape.spells_finish,
            Drop::OnlyLogprobs => {
                shape.delta == Delta::Nulls && !shape.finishes && shape.has_logprobs
            }
            Drop::Sglext => sglext && choices.is_empty(),
            Drop::Named(_) => false,
        }))
    }
}

/// What a streamed choice says.
#[derive(Debug, Default)]
struct Shape {
    delta: Delta,
    finishes: bool,
    has_logprobs: bool,
    /// Whether a text completion says nothing.
    is_silent: bool,
    /// Whether it has ids of the prompt.
    is_prompt: bool,
    /// Whether the key is there that tells why the choice stopped.
    spells_finish: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Delta {
    #[default]
    Says,
    /// No key at all.
    Empty,
    /// Keys, all of them null.
    Nulls,
}

impl Shape {
    fn of(doc: &[u8], choice: &Range<usize>) -> Result<Self, Malformed> {
        let mut shape = Self::default();
        for field in members(doc, choice)? {
            let is_null = &doc[field.value.clone()] == b"null";
            match field.key(doc).as_ref() {
                "delta" => {
                    let said = members(doc, &field.value)?;
                    let nulls = said.iter().all(|m| &doc[m.value.clone()] == b"null");
                    shape.delta = match (said.is_empty(), nulls) {
                        (true, _) => Delta::Empty,
                        (false, true) => Delta::Nulls,
                        (false, false) => Delta::Says,
                    };
                }
                "finish_reason" => (shape.finishes, shape.spells_finish) = (!is_null, true),
                "text" => shape.is_silent = &doc[field.value.clone()] == b"\"\"",
                "prompt_token_ids" => shape.is_prompt = !is_null,
                "logprobs" => shape.has_logprobs = !is_null,
                _ => {}
            }
        }
        Ok(shape)
    }
}

/// Whether a frame leaves keys out that would be null. Python servers write both of these keys in
/// every choice, vLLM's Rust frontend never both.
fn leaves_nulls_out(doc: &[u8]) -> Result<bool, Malformed> {
    for member in members(doc, &root(doc)?)? {
        if member.key(doc) != "choices" || doc.get(member.value.start) != Some(&b'[') {
            continue;
        }
        for choice in elements(doc, &member.value)? {
            let keys = members(doc, &choice)?;
            let has = |name: &str| keys.iter().any(|field| field.key(doc) == name);
            if !(has("finish_reason") && has("logprobs")) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Collects the edits that `rules` make at `place`.
fn edit(
    doc: &[u8],
    place: &Range<usize>,
    rules: &[Rule],
    edits: &mut Edits,
) -> Result<(), Malformed> {
    match doc.get(place.start) {
        Some(b'[') => {
            let inner = below(rules, "*");
            if !inner.is_empty() {
                for element in elements(doc, place)? {
                    edit(doc, &element, &inner, edits)?;
                }
            }
            Ok(())
        }
        Some(b'{') => object(doc, place, rules, edits),
        _ => Ok(()),
    }
}

fn object(
    doc: &[u8],
    place: &Range<usize>,
    rules: &[Rule],
    edits: &mut Edits,
) -> Result<(), Malformed> {
    let all = members(doc, place)?;
    let mut gone = vec![false; all.len()];
    for (member, gone) in all.iter().zip(&mut gone) {
        let key = member.key(doc);
        let inner = below(rules, &key);
        match inner.iter().find(|(rest, _)| rest.is_empty()) {
            Some((_, With::Nothing)) => *gone = true,
            Some((_, With::EmptyListOf(kind))) if !is_of(doc, &all, kind) => {}
            Some((_, with)) => put(doc, &member.value, *with, edits),
            None if inner.is_empty() => {}
            None => edit(doc, &member.value, &inner, edits)?,
        }
    }
    cuts(&all, &gone).into_iter().for_each(|cut| edits.put(cut, ""));
    Ok(())
}

/// Whether the object of these members has the `type` of this name.
fn is_of(doc: &[u8], members: &[Member], kind: &str) -> bool {
    let named = members.iter().find(|member| member.key(doc) == "type");
    named.is_some_and(|member| {
        serde_json::from_slice::<&str>(&doc[member.value.clone()]).is_ok_and(|name| name == kind)
    })
}

fn put(doc: &[u8], place: &Range<usize>, with: With, edits: &mut Edits) {
    let there = &doc[place.clone()];
    let stand_in = match with {
        With::EmptyList | With::EmptyListOf(_) => "[]",
        With::NullIfFilled if there == b"[]" => "[]",
        With::Zero => "0",
        With::Null | With::NullOrAbsent | With::NullIfFilled | With::Nothing => "null",
    };
    if there != stand_in.as_bytes() && there != b"null" {
        edits.put(place.clone(), stand_in);
    }
}

/// The rules that go on below `key`, without it.
fn below(rules: &[Rule], key: &str) -> Vec<Rule> {
    rules
        .iter()
        .filter_map(|(at, with)| {
            at.split_first().filter(|(k, _)| **k == key).map(|(_, r)| (r, *with))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hide(rules: &[Rule], drops: &[Drop]) -> Hide {
        Hide { rules: rules.to_vec(), drops: drops.to_vec(), splits: false }
    }

    const LOGPROBS: Rule = (&["choices", "*", "logprobs"], With::Null);

    fn event(text: &str) -> Event {
        Event(Bytes::from(text.to_owned()))
    }

    #[test]
    fn each_place_gets_what_stands_there_unasked() {
        let hide = hide(
            &[
                LOGPROBS,
                (&["choices", "*", "ids"], With::Nothing),
                (&["output", "*", "content", "*", "logprobs"], With::NullIfFilled),
                (&["tops"], With::EmptyList),
                (&["__verbose"], With::Nothing),
            ],
            &[],
        );
        let reply = r#"{"choices":[{"ids":[1], "logprobs":{"a":[1]},"x":1e5},{"ids":[2]}],"output":[{"content":[{"logprobs":[1]},{"logprobs":[]}]},7],"tops":[[1]],"__verbose":{}}"#;
        let hidden = r#"{"choices":[{"logprobs":null,"x":1e5},{}],"output":[{"content":[{"logprobs":null},{"logprobs":[]}]},7],"tops":[]}"#;
        assert_eq!(hide.document(&Bytes::from_static(reply.as_bytes())), hidden);
        assert_eq!(hide.document(&Bytes::from_static(b"<html>")), &b"<html>"[..]);
    }

    #[test]
    fn frames_that_exist_only_because_of_the_ask_leave() {
        let empty = event("data: {\"choices\":[{\"delta\":{},\"finish_reason\":null}]}\n\n");
        let last = event("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
        let vllm = hide(&[LOGPROBS], &[Drop::EmptyDelta]);
        assert_eq!(vllm.event(&empty), None);
        assert_eq!(vllm.event(&last).unwrap(), last.0);
        assert_eq!(hide(&[LOGPROBS], &[]).event(&empty).unwrap(), empty.0);
        let only = event(
            "data: {\"choices\":[{\"delta\":{\"reasoning_content\":null},\"logprobs\":{},\
             \"finish_reason\":null}]}\n\n",
        );
        let named = event("event: sglext_ids\ndata: {\"choices\":[]}\n\n");
        let sglang = hide(&[LOGPROBS], &[Drop::OnlyLogprobs, Drop::Named("sglext_ids")]);
        assert_eq!((sglang.event(&only), sglang.event(&named)), (None, None));
        assert!(sglang.event(&event(": sglext_ids\n\n")).is_some());
    }

    #[test]
    fn a_payload_over_several_lines_is_hidden_in_too() {
        let hide = hide(&[LOGPROBS], &[]);
        let long = event("data: {\"choices\":\r\ndata: [{\"logprobs\":[1,\r\ndata:2]}]}\r\n\r\n");
        let shown = hide.event(&long).unwrap();
        assert_eq!(shown, &b"data: {\"choices\":\r\ndata: [{\"logprobs\":null}]}\r\n\r\n"[..]);
    }
}
