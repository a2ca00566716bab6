//! Rules for what does not matter when a request is held against a recorded one.

use regex::Regex;
use serde_json::{Number, Value};
use thiserror::Error;

/// Top-level fields that name a call or its user. Nothing that a model reads depends on them.
const LABELS: [&str; 8] = [
    "user",
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "session_id",
    "request_id",
    "client_metadata",
    "cache_salt",
];

/// Fields of an item of a conversation that a client makes up anew in every run: its name, and
/// Codex' note of turn and time. Only what refers to an item means it by its name.
const ITEM_LABELS: [[&str; 3]; 2] =
    [["input", "*", "id"], ["input", "*", "internal_chat_message_metadata_passthrough"]];
const REFERENCE: &str = "item_reference";

/// Patterns of what the rules by name leave out of every text.
const NAMED: [(&str, &str); 4] = [
    (
        "clocks",
        r"(?ix)
        \b\d{4}-\d\d-\d\d(?:[T\ ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?
        | \b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\ ?[ap]m)?\b
        | \b(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\ )?
          (?:\d{1,2}\ )?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*
          \ \d{1,4}(?:,?\ \d{4})?\b
        | \b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b
        | \b1[5-9]\d{8}(?:\d{3}|\.\d+)?\b
        | \b\d+(?:\.\d+)?\ ?(?:ms|s|secs?|seconds?)\b",
    ),
    (
        "ids",
        r"(?x)
        \b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b
        | \b0x[0-9a-fA-F]+\b
        | \b[Ii][Dd][:=]\ ?[\w-]{4,}
        | \b[0-9a-f]{4,}[0-9][0-9a-f]{2,}\b
        | \b(?:call|toolu|msg|resp|chatcmpl|rs|fc|item|req|sess|session|run|thread)[_-][\w-]{6,}
        | \b(?:[a-z]{2,10}[_-])?[A-Za-z]*\d[A-Za-z0-9]{9,}\b",
    ),
    ("paths", r"(?:/[\w.@+~-]+){2,}/?"),
    ("numbers", r"\d+(?:[.,]\d+)*"),
];

/// Fields that hold the conversation.
pub(super) const CONVERSATIONS: [&str; 3] = ["messages", "input", "prompt"];

/// The text in the place of what a rule leaves out.
const LEFT_OUT: &str = "\u{2026}";

/// A rule that cannot be read.
#[derive(Debug, Clone, Error)]
#[error(
    "`{rule}` is no rule: {reason}; give clocks, ids, paths, numbers, /FIELD/FIELD with * for any \
     one, or re:PATTERN"
)]
pub struct InvalidIgnoreRule {
    rule: String,
    reason: String,
}

/// The rules for what does not matter in a request: fields, and parts of texts.
#[derive(Debug, Clone)]
pub struct IgnoreRules {
    /// Each is the names on the way to a field.
    fields: Vec<Vec<String>>,
    patterns: Vec<Regex>,
}

impl Default for IgnoreRules {
    fn default() -> Self {
        let fields = LABELS.iter().map(|name| vec![(*name).to_owned()]).collect();
        Self { fields, patterns: Vec::new() }
    }
}

impl IgnoreRules {
    /// Reads rules. Labels of a call and of its user never matter.
    ///
    /// # Errors
    /// [`InvalidIgnoreRule`] if one cannot be read.
    pub fn read(rules: &[String]) -> Result<Self, InvalidIgnoreRule> {
        let mut read = Self::default();
        for rule in rules {
            read.add(rule).map_err(|reason| InvalidIgnoreRule { rule: rule.clone(), reason })?;
        }
        Ok(read)
    }

    fn add(&mut self, rule: &str) -> Result<(), String> {
        if rule.contains(['\r', '\n']) {
            return Err("it has a line break".to_owned());
        }
        if let Some(names) = rule.strip_prefix('/') {
            let name = |name: &str| name.replace("~1", "/").replace("~0", "~");
            self.fields.push(names.split('/').map(name).collect());
            return Ok(());
        }
        let named = NAMED.iter().find(|(name, _)| *name == rule).map(|(_, pattern)| *pattern);
        let Some(pattern) = named.or_else(|| rule.strip_prefix("re:")) else {
            return Err("its name is unknown".to_owned());
        };
        self.patterns.push(Regex::new(pattern).map_err(|error| error.to_string())?);
        Ok(())
    }

    /// True for a field that does not matter. `place` is the names on the way to it.
    fn leaves_out(&self, place: &[String]) -> bool {
        self.fields.iter().any(|field| is_at(field, place))
    }

    /// The text without what does not matter.
    pub(super) fn text(&self, text: &str) -> String {
        let replace =
            |text: String, pattern: &Regex| pattern.replace_all(&text, LEFT_OUT).into_owned();
        self.patterns.iter().fold(text.to_owned(), replace)
    }

    /// The number, or a text if a rule leaves a part of it out.
    fn number(&self, number: Number) -> Value {
        let written = number.to_string();
        match self.text(&written) {
            text if text == written => Value::Number(number),
            text => Value::String(text),
        }
    }

    /// The value without what does not matter in it.
    pub(super) fn normal(&self, value: Value) -> Value {
        self.normal_at(value, &mut Vec::new())
    }

    fn normal_at(&self, value: Value, place: &mut Vec<String>) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Number(number) if is_said(place) => self.number(number),
            Value::Array(list) => {
                let mut kept = Vec::with_capacity(list.len());
                for (at, element) in list.into_iter().enumerate() {
                    place.push(at.to_string());
                    // What is left out keeps its place: the others are counted by theirs.
                    kept.push(match self.leaves_out(place) {
                        true => Value::Null,
                        false => self.normal_at(element, place),
                    });
                    place.pop();
                }
                Value::Array(kept)
            }

            Value::Object(fields) => {
                let is_reference = fields.get("type").is_some_and(|kind| kind == REFERENCE);
                let is_label = |place: &[String]| {
                    !is_reference && ITEM_LABELS.iter().any(|label| is_at(label, place))
                };

                let mut kept = serde_json::Map::new();
                for (name, field) in fields {
                    place.push(name.clone());
                    if !self.leaves_out(place) && !is_label(place) {
                        kept.insert(name, self.normal_at(field, place));
                    }
                    place.pop();
                }
                Value::Object(kept)
            }
            other => other,
        }
    }
}

/// True for a place in the conversation. Numbers elsewhere are settings, such as a temperature.
pub(super) fn is_said(place: &[String]) -> bool {
    place.first().is_some_and(|name| CONVERSATIONS.contains(&name.as_str()))
}

/// True if a field is at a place; `*` is any name on the way there.
fn is_at(field: &[impl AsRef<str>], place: &[String]) -> bool {
    let is_name = |(rule, name): (&str, &String)| rule == "*" || rule == name;
    field.len() == place.len() && field.iter().map(AsRef::as_ref).zip(place).all(is_name)
}

/// The fewest rules by name under which two texts are the same; `None` if there are none.
pub(super) fn rules_between(one: &str, other: &str) -> Option<Vec<&'static str>> {
    let mut sets: Vec<u32> = (1..1 << NAMED.len()).collect();
    sets.sort_by_key(|set| set.count_ones());
    sets.into_iter().find_map(|set| {
        let names: Vec<&'static str> =
            (0..NAMED.len()).filter(|at| set & (1 << at) != 0).map(|at| NAMED[at].0).collect();
        let rules: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let rules = IgnoreRules::read(&rules).ok()?;
        (rules.text(one) == rules.text(other)).then_some(names)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_by_name_are_found_by_what_differs() {
        for (one, other, found) in [
            ("at 2026-11-30T01:02:03Z", "at 2026-12-01T09:00:00Z", Some(vec!["clocks"])),
            ("Today is Mon Nov 30 2026", "Today is Fri Dec 4 2026", Some(vec!["clocks"])),
            ("5 passed in 0.03s", "5 passed in 1.20s", Some(vec!["clocks"])),
            (
                "id 6ba7b810-9dad-11d1-80b4-00c04fd430c8",
                "id 00000000-9dad-11d1-80b4-00c04fd430c8",
                Some(vec!["ids"]),
            ),
            ("call_abcdef12 ok", "call_zz99zz88 ok", Some(vec!["ids"])),
            (
                "task ses_dd5b768e8ffe0dCULqw6PAwctN",
                "task ses_dd5b6e8eeffekjKyo6DHstpY3f",
                Some(vec!["ids"]),
            ),
            ("Chunk ID: aa6fe6\nok", "Chunk ID: 4e49b6\nok", Some(vec!["ids"])),
            ("in /tmp/a1/src/x.py", "in /home/me/src/x.py", Some(vec!["paths"])),
            ("pid 731", "pid 1042", Some(vec!["numbers"])),
            ("10:00 in /tmp/a/b", "11:30 in /tmp/c/d", Some(vec!["clocks", "paths"])),
            ("be brief", "be long", None),
        ] {
            assert_eq!(rules_between(one, other), found, "{one} | {other}");
        }
    }

    #[test]
    fn fields_are_left_out_by_their_place() {
        let rules = ["/tools/*/description".to_owned(), "/a~1b".to_owned()];
        let rules = IgnoreRules::read(&rules).unwrap();
        let value = json!({"user": "u", "a/b": 1, "tools": [{"name": "t", "description": "d"}]});
        assert_eq!(rules.normal(value), json!({"tools": [{"name": "t"}]}));
    }

    #[test]
    fn numbers_of_the_conversation_are_read_as_texts_are() {
        let body = |pid: i64, at: f64| {
            let input = json!({"pid": pid, "at": at});
            json!({"temperature": 0.5, "messages": [{"content": [{"input": input}]}]})
        };
        let normal =
            |rule: &str, body: Value| IgnoreRules::read(&[rule.to_owned()]).unwrap().normal(body);
        let (one, other) = (body(731, 2.5), body(1042, 3.5));
        assert_eq!(normal("numbers", one.clone()), normal("numbers", other.clone()));
        assert_eq!(normal("numbers", one.clone())["temperature"], 0.5, "a setting matters");
        assert_ne!(normal("clocks", one), normal("clocks", other));
        let (one, other) = (body(7, 1_764_460_800.25), body(7, 1_764_460_912.5));
        assert_eq!(normal("clocks", one), normal("clocks", other));
    }

    #[test]
    fn an_item_may_have_another_name_unless_it_refers_to_one() {
        let body = |id: &str| {
            let made_up = json!({"turn_id": id});
            let message = json!({
                "type": "message", "id": id, "role": "user", "content": "a",
                "internal_chat_message_metadata_passthrough": made_up,
            });
            json!({"input": [message, {"type": "item_reference", "id": "msg_1"}]})
        };
        let rules = IgnoreRules::default();
        assert_eq!(rules.normal(body("msg_a")), rules.normal(body("msg_b")));
        let mut other = body("msg_a");
        other["input"][1]["id"] = json!("msg_2");
        assert_ne!(rules.normal(body("msg_a")), rules.normal(other));
    }

    #[test]
    fn a_rule_that_cannot_be_read_is_named() {
        for rule in ["clock", "re:(", "", "re:a\nb"] {
            let error = IgnoreRules::read(&[rule.to_owned()]).unwrap_err();
            assert!(error.to_string().starts_with(&format!("`{rule}` is no rule")), "{error}");
        }
    }
}
