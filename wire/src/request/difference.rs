//! A request held against a recorded one: whether it is the same in what matters, and where not.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::ignore::{CONVERSATIONS, IgnoreRules, is_said, rules_between};

/// Differences that are told of one request.
const DIFFERENCES_MAX: usize = 8;
/// Characters that are shown of a value, and of what is before a difference within it.
const SHOWN: usize = 120;
const SHOWN_BEFORE: usize = 30;

/// Hashes of what matters in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPrint {
    whole: u64,
    messages: Vec<u64>,
}

impl RequestPrint {
    /// The print of a request body without what the rules leave out.
    pub fn of(body: &[u8], rules: &IgnoreRules) -> Self {
        let value = normal(body, rules);
        let messages = conversation(&value).map(|(_, list)| list.iter().map(hash_of).collect());
        Self { whole: hash_of(&value), messages: messages.unwrap_or_default() }
    }

    /// The number of messages that both begin with.
    pub fn shared(&self, other: &Self) -> usize {
        self.messages.iter().zip(&other.messages).take_while(|(one, other)| one == other).count()
    }

    /// The number of messages.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }
}

/// A place at which a request differs from the recorded one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestDifference {
    /// The field, as a JSON pointer.
    pub pointer: String,
    /// The place in words, such as `the tool result in message 4`.
    pub place: String,
    /// An excerpt of what was recorded there; `None` if nothing was.
    pub recorded: Option<String>,
    /// An excerpt of what was sent there; `None` if nothing was.
    pub sent: Option<String>,
    /// The rules under which both would be the same.
    pub rules: Vec<String>,
}

/// The places at which a request body differs from a recorded one, in the order in which a reader
/// meets them. Empty if it is the same in what matters.
pub fn request_differences(
    recorded: &[u8],
    sent: &[u8],
    rules: &IgnoreRules,
) -> Vec<RequestDifference> {
    let (recorded, sent) = (normal(recorded, rules), normal(sent, rules));
    let mut found = Search { recorded: &recorded, found: Vec::new() };
    found.compare(&mut Vec::new(), Some(&recorded), Some(&sent));
    let mut differences = found.found;
    // The conversation is what changes; a setting that differs explains it.
    differences.sort_by_key(|difference| is_in_conversation(&difference.pointer));
    differences.truncate(DIFFERENCES_MAX);
    differences
}

/// The body as a value without what does not matter; text, if it is no JSON.
fn normal(body: &[u8], rules: &IgnoreRules) -> Value {
    let value = serde_json::from_slice(body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()));
    rules.normal(value)
}

fn conversation(body: &Value) -> Option<(&'static str, &Vec<Value>)> {
    CONVERSATIONS.iter().find_map(|name| Some((*name, body.get(name)?.as_array()?)))
}

fn is_in_conversation(pointer: &str) -> bool {
    CONVERSATIONS.iter().any(|name| pointer.split('/').nth(1) == Some(name))
}

/// The hash of a value. The order of fields does not matter.
fn hash_of(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    add(value, &mut hasher);
    hasher.finish()
}

fn add(value: &Value, hasher: &mut DefaultHasher) {
    std::mem::discriminant(value).hash(hasher);
    match value {
        Value::Array(list) => {
            list.len().hash(hasher);
            list.iter().for_each(|element| add(element, hasher));
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            fields.len().hash(hasher);
            for (name, field) in fields {
                name.hash(hasher);
                add(field, hasher);
            }
        }
        Value::String(text) => text.hash(hasher),
        other => other.to_string().hash(hasher),
    }
}

struct Search<'a> {
    recorded: &'a Value,
    found: Vec<RequestDifference>,
}

impl Search<'_> {
    fn compare(&mut self, place: &mut Vec<String>, one: Option<&Value>, other: Option<&Value>) {
        match (one, other) {
            (Some(Value::Object(one)), Some(Value::Object(other))) => {
                let new = other.keys().filter(|name| !one.contains_key(*name));
                let names: Vec<String> = one.keys().chain(new).cloned().collect();
                for name in names {
                    let (one, other) = (one.get(&name), other.get(&name));
                    place.push(name);
                    self.compare(place, one, other);
                    place.pop();
                }
            }

            (Some(Value::Array(one)), Some(Value::Array(other))) => {
                for at in 0..one.len().max(other.len()) {
                    place.push(at.to_string());
                    self.compare(place, one.get(at), other.get(at));
                    place.pop();
                }
            }
            (one, other) if one == other => {}
            (one, other) => self.add(place, one, other),
        }
    }

    fn add(&mut self, place: &[String], one: Option<&Value>, other: Option<&Value>) {
        let texts = one.and_then(Value::as_str).zip(other.and_then(Value::as_str));
        let named = match (texts, one, other) {
            (Some((one, other)), ..) => rules_between(one, other),
            (None, Some(Value::Number(one)), Some(Value::Number(other))) if is_said(place) => {
                rules_between(&one.to_string(), &other.to_string())
            }
            _ => None,
        };
        let pointer: String = place
            .iter()
            .map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1")))
            .collect();
        let rules = match named {
            Some(names) => names.into_iter().map(str::to_owned).collect(),
            None => vec![pointer.clone()],
        };
        // Both are shown from a little before where they part.
        let parts_at = texts.map_or(0, |(one, other)| {
            one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count()
        });
        let shown = |value: &Value| excerpt(value, parts_at.saturating_sub(SHOWN_BEFORE));

        self.found.push(RequestDifference {
            place: self.words(place),
            recorded: one.map(shown),
            sent: other.map(shown),
            rules,
            pointer,
        });
    }

    /// The place in words.
    fn words(&self, place: &[String]) -> String {
        let field = place.join(".");
        let Some((name, at)) = place.first().zip(place.get(1)) else { return format!("`{field}`") };
        let Some((_, list)) = conversation(self.recorded).filter(|(of, _)| of == name) else {
            return format!("`{field}`");
        };
        let Some(message) = at.parse().ok().and_then(|at: usize| list.get(at)) else {
            return format!("a message that was not recorded, `{field}`");
        };
        format!("{} `{field}`", speaker(message))
    }
}

/// The speaker of a message, in words.
fn speaker(message: &Value) -> &'static str {
    let is_result = |part: &Value| {
        matches!(part["type"].as_str(), Some("tool_result" | "function_call_output"))
    };
    let parts = message["content"].as_array().map_or(&[][..], Vec::as_slice);
    if message["role"] == "tool" || is_result(message) || parts.iter().any(is_result) {
        return "the tool result";
    }
    match message["role"].as_str() {
        Some("system" | "developer") => "the instructions",
        Some("assistant") => "the answer",
        Some("user") => "the user's message",
        _ => "the message",
    }
}

/// The text of a value from a character on, in one line.
fn excerpt(value: &Value, from: usize) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let count = text.chars().count();
    let from = if value.is_string() { from.min(count) } else { 0 };
    let shown: String = text.chars().skip(from).take(SHOWN).collect();
    let (before, after) =
        (if from > 0 { "..." } else { "" }, if from + SHOWN < count { "..." } else { "" });
    format!("{before}{}{after}", shown.escape_debug())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differences(recorded: &Value, sent: &Value, rules: &[&str]) -> Vec<RequestDifference> {
        let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        let rules = IgnoreRules::read(&rules).unwrap();
        let [recorded, sent] = [recorded, sent].map(|body| body.to_string().into_bytes());
        let found = request_differences(&recorded, &sent, &rules);
        let same = RequestPrint::of(&recorded, &rules) == RequestPrint::of(&sent, &rules);
        assert_eq!(found.is_empty(), same, "the prints say the same");
        found
    }

    fn chat(messages: &[(&str, &str)]) -> Value {
        let message = |(role, content): &(&str, &str)| json!({"role": role, "content": content});
        json!({"model": "m", "messages": messages.iter().map(message).collect::<Vec<_>>()})
    }

    #[test]
    fn order_spacing_and_labels_do_not_matter() {
        let recorded = br#"{"model":"m","messages":[{"role":"user","content":"a"}],"user":"x"}"#;
        let sent = br#"{ "messages": [{"content":"a","role":"user"}], "model": "m" }"#;
        let rules = IgnoreRules::default();
        assert!(request_differences(recorded, sent, &rules).is_empty());
        assert_eq!(RequestPrint::of(recorded, &rules), RequestPrint::of(sent, &rules));
    }

    #[test]
    fn a_difference_says_where_it_is_and_which_rule_would_pass_it() {
        let recorded = chat(&[("user", "go"), ("tool", "done at 10:15 in 3 files")]);
        let sent = chat(&[("user", "go"), ("tool", "done at 11:20 in 3 files")]);
        let found = differences(&recorded, &sent, &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "the tool result `messages.1.content`");
        assert_eq!(found[0].rules, ["clocks"]);
        assert!(found[0].recorded.as_ref().unwrap().contains("10:15"), "{found:?}");
        assert!(differences(&recorded, &sent, &["clocks"]).is_empty());

        let sent = chat(&[("user", "go"), ("tool", "failed")]);
        let found = differences(&recorded, &sent, &["clocks"]);
        assert_eq!(found[0].rules, ["/messages/1/content"]);
        assert!(differences(&recorded, &sent, &["/messages/1/content"]).is_empty());
        assert!(differences(&recorded, &sent, &["/messages/*/content"]).is_empty());
    }

    #[test]
    fn what_is_missing_and_what_is_new_are_told() {
        let recorded = chat(&[("user", "a"), ("assistant", "b")]);
        let mut sent = chat(&[("user", "a")]);
        sent["temperature"] = json!(1);
        let found = differences(&recorded, &sent, &[]);
        let told: Vec<_> = found
            .iter()
            .map(|it| (&*it.pointer, it.recorded.is_some(), it.sent.is_some()))
            .collect();
        assert_eq!(told, [("/temperature", false, true), ("/messages/1", true, false)]);
    }

    #[test]
    fn the_messages_that_both_begin_with_are_counted() {
        let rules = IgnoreRules::default();
        let print = |body: &Value| RequestPrint::of(body.to_string().as_bytes(), &rules);
        let one = print(&chat(&[("user", "a"), ("assistant", "b"), ("user", "c")]));
        let other = print(&chat(&[("user", "a"), ("assistant", "b"), ("user", "d")]));
        assert_eq!((one.shared(&other), one.messages()), (2, 3));
        let text = RequestPrint::of(b"not json", &rules);
        assert_eq!((text.messages(), text == RequestPrint::of(b"not json", &rules)), (0, true));
    }
}
