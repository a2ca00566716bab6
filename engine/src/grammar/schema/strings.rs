//! Patterns of strings.

use std::collections::BTreeMap;

use serde_json::Value;

/// Letters of the texts that one pattern excludes.
const LETTERS_MAX: usize = 2_000;

/// Returns a pattern of every string but these. `None` without one, and if they are too long.
pub(super) fn other_than(texts: &[&str]) -> Option<String> {
    let letters: usize = texts.iter().map(|text| text.len()).sum();
    if texts.is_empty() || letters > LETTERS_MAX {
        return None;
    }
    let mut root = PrefixNode::default();
    for text in texts {
        let node =
            text.chars().fold(&mut root, |node, letter| node.next.entry(letter).or_default());
        node.is_end = true;
    }
    Some(format!("^{}$", root.others()))
}

/// The texts that begin alike.
#[derive(Default)]
struct PrefixNode {
    is_end: bool,
    next: BTreeMap<char, PrefixNode>,
}

impl PrefixNode {
    /// The pattern of what may follow without making one of the texts.
    fn others(&self) -> String {
        let letters: String = self.next.keys().map(|letter| escaped(*letter)).collect();
        let other = if letters.is_empty() {
            r"[\s\S]+".to_owned()
        } else {
            format!(r"[^{letters}][\s\S]*")
        };
        let mut ways = vec![other];
        for (letter, node) in &self.next {
            ways.push(format!("{}{}", escaped(*letter), node.others()));
        }
        // The text may end here.
        let end = if self.is_end { "" } else { "?" };
        format!("(?:{}){end}", ways.join("|"))
    }
}

fn escaped(letter: char) -> String {
    if letter.is_ascii_alphanumeric() || !letter.is_ascii() {
        return letter.to_string();
    }
    format!(r"\x{:02x}", u32::from(letter))
}

/// Returns the pattern of the names that a schema allows, if it has no other keywords.
pub(super) fn name_pattern(schema: &Value) -> Option<String> {
    let parts = schema.as_object()?;
    let known = ["type", "pattern", "minLength", "maxLength", "description", "title"];
    if parts.keys().any(|key| !known.contains(&key.as_str())) {
        return None;
    }
    let length = |key: &str| parts.get(key).and_then(Value::as_u64);
    match (parts.get("pattern"), length("minLength"), length("maxLength")) {
        (Some(pattern), None, None) => pattern.as_str().map(str::to_owned),
        (Some(_), _, _) => None,
        (None, least, most) => {
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            Some(format!(r"^[\s\S]{{{},{most}}}$", least.unwrap_or(0)))
        }
    }
}
