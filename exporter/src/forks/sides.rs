//! What stands on both sides of the place where a history was left.

use serde_json::Value;

use crate::forks::cause::{Cause, Found, History, Ids, shown};
use crate::forks::texts::Texts;

/// Characters before the place that are shown.
const BEFORE_CHARS: usize = 60;
/// Characters from the place on that are shown of each side.
const AFTER_CHARS: usize = 120;
/// Tokens that are shown of each side.
const SIDE_TOKENS: usize = 16;

/// The same text around a place, before and after.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sides {
    /// What both have just before the place.
    pub(crate) before: String,
    pub(crate) known: String,
    pub(crate) sent: String,
    /// Where the text comes from: `tokenizer`, `messages`, `logprobs`, `ids`; empty without any.
    pub(crate) source: &'static str,
}

/// Shows the place of a fork: by a tokenizer, else by the messages where they say what differs,
/// else by what replies told of their tokens, else as bare ids.
pub(crate) fn sides(
    found: &Found,
    (known, sent): (&History, &History),
    ids: Option<&Ids<'_>>,
    texts: &Texts,
) -> Sides {
    let decoded = || ids.and_then(|ids| of_tokens(ids, texts));
    let by_tokenizer = if matches!(texts, Texts::All(_)) { decoded() } else { None };
    by_tokenizer
        .or_else(|| of_messages(found, known, sent))
        .or_else(decoded)
        .or_else(|| ids.map(of_ids))
        .unwrap_or_default()
}

/// The ids around a place: the known ones and those that were sent.
pub(crate) fn windows<'a>(ids: &Ids<'a>) -> (&'a [u32], &'a [u32]) {
    let window = |ids: &'a [u32], at: usize| &ids[at..ids.len().min(at + SIDE_TOKENS)];
    (window(ids.known, ids.at), window(ids.sent, ids.at))
}

fn of_tokens(ids: &Ids<'_>, texts: &Texts) -> Option<Sides> {
    let before = &ids.known[ids.at.saturating_sub(SIDE_TOKENS)..ids.at];
    let (known, sent) = windows(ids);
    Some(Sides {
        // Of a prompt a reply tells no texts; the place is shown all the same.
        before: texts.of(before).map(|text| tail(&text)).unwrap_or_default(),
        known: texts.head(known)?,
        sent: texts.head(sent)?,
        source: texts.source(),
    })
}

fn of_ids(ids: &Ids<'_>) -> Sides {
    let listed = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let (known, sent) = windows(ids);
    let before = &ids.known[ids.at.saturating_sub(SIDE_TOKENS)..ids.at];
    Sides { before: listed(before), known: listed(known), sent: listed(sent), source: "ids" }
}

fn of_messages(found: &Found, known: &History, sent: &History) -> Option<Sides> {
    let (known, sent) = match (found.message, found.cause) {
        (Some(at), _) => {
            let [old, new] = [known, sent].map(|history| history.messages.get(at));
            let texts = [old, new].map(|m| m.map(shown).unwrap_or_default());
            match texts[0] == texts[1] {
                true => [old, new].map(|m| m.map(Value::to_string).unwrap_or_default()),
                false => texts,
            }
        }
        (None, Cause::ModelChanged) => [known, sent].map(|history| {
            history.models.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
        }),
        (None, Cause::ToolsChanged) => [known, sent].map(|history| {
            history.tools.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
        }),
        (None, Cause::TemplateChanged) => {
            [known, sent].map(|history| Value::Object(history.rendering.clone()).to_string())
        }
        _ => return None,
    }
    .into();
    parted(&known, &sent)
}

/// The texts cut at the first character that differs; none where they are the same.
fn parted(known: &str, sent: &str) -> Option<Sides> {
    let pairs = known.char_indices().zip(sent.chars());
    let shared = pairs.take_while(|((_, a), b)| a == b).last();
    let at = shared.map_or(0, |((at, c), _)| at + c.len_utf8());
    let head = |text: &str| text[at..].chars().take(AFTER_CHARS).collect::<String>();
    let differ = known != sent;
    differ.then(|| Sides {
        before: tail(&known[..at]),
        known: head(known),
        sent: head(sent),
        source: "messages",
    })
}

fn tail(text: &str) -> String {
    let start = text.char_indices().rev().nth(BEFORE_CHARS - 1).map_or(0, |(at, _)| at);
    text[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_part_at_the_first_character_that_differs() {
        let found = parted("it is \u{e9}9:15", "it is \u{e9}9:20").unwrap();
        assert_eq!((found.before.as_str(), found.known.as_str()), ("it is \u{e9}9:", "15"));
        assert_eq!(found.sent, "20");
        assert_eq!(parted("a", "ab").map(|s| (s.known, s.sent)), Some((String::new(), "b".into())));
        assert_eq!(parted("a", "a"), None);
        let long = parted(&"x".repeat(500), &("x".repeat(400) + "y")).unwrap();
        assert_eq!((long.before.len(), long.known.len(), long.sent.len()), (60, 100, 1));
    }
}
