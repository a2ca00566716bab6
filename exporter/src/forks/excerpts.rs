//! Excerpts of both sides around the position where a history was left.

use serde_json::Value;

use crate::forks::rules::evidence::{ForkCase, ForkIds, HistorySide};
use crate::forks::rules::messages::{ForkDifference, shown};
use crate::forks::token_texts::ForkTexts;
use crate::notes::cause::Cause;

/// Characters that are shown before the position.
const BEFORE_CHARS: usize = 60;
/// Characters that are shown of each side from the position on.
const AFTER_CHARS: usize = 120;
/// Tokens that are shown of each side.
const SIDE_TOKENS: usize = 16;

/// Texts around a position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ForkExcerpt {
    /// Text that both sides have just before the position.
    pub(crate) before: String,
    pub(crate) known: String,
    pub(crate) sent: String,
    /// Source of the texts: `tokenizer`, `messages`, `logprobs`, `ids`; empty without any.
    pub(crate) source: &'static str,
}

/// Ids of both sides from the position on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IdWindows<'a> {
    pub(crate) known: &'a [u32],
    pub(crate) sent: &'a [u32],
}

/// Shows the position of a fork: by a tokenizer, else by the messages where they differ, else by
/// the texts that replies recorded of their tokens, else as bare ids.
pub(crate) fn excerpt(difference: &ForkDifference, case: &ForkCase<'_>) -> ForkExcerpt {
    let ForkCase { known, sent, ids, texts, .. } = *case;
    let decoded = || ids.and_then(|ids| of_tokens(&ids, texts));
    let has_tokenizer = matches!(texts, ForkTexts::All(_));
    has_tokenizer
        .then(decoded)
        .flatten()
        .or_else(|| of_messages(difference, known, sent))
        .or_else(decoded)
        .or_else(|| ids.as_ref().map(of_ids))
        .unwrap_or_default()
}

/// Returns the ids of both sides from the position on.
pub(crate) fn id_windows<'a>(ids: &ForkIds<'a>) -> IdWindows<'a> {
    IdWindows { known: window(ids.known, ids.at), sent: window(ids.sent, ids.at) }
}

fn window(ids: &[u32], at: usize) -> &[u32] {
    &ids[at..ids.len().min(at + SIDE_TOKENS)]
}

fn ids_before<'a>(ids: &ForkIds<'a>) -> &'a [u32] {
    &ids.known[ids.at.saturating_sub(SIDE_TOKENS)..ids.at]
}

fn of_tokens(ids: &ForkIds<'_>, texts: &ForkTexts) -> Option<ForkExcerpt> {
    let windows = id_windows(ids);
    Some(ForkExcerpt {
        // Replies record no texts of prompts. The excerpt is shown without this part then.
        before: texts.of(ids_before(ids)).map(|text| tail(&text)).unwrap_or_default(),
        known: texts.head(windows.known)?,
        sent: texts.head(windows.sent)?,
        source: texts.source(),
    })
}

fn of_ids(ids: &ForkIds<'_>) -> ForkExcerpt {
    let windows = id_windows(ids);
    ForkExcerpt {
        before: listed(ids_before(ids)),
        known: listed(windows.known),
        sent: listed(windows.sent),
        source: "ids",
    }
}

fn listed(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

fn of_messages(
    difference: &ForkDifference,
    known: &HistorySide,
    sent: &HistorySide,
) -> Option<ForkExcerpt> {
    let text: fn(&HistorySide) -> String = match (difference.message, difference.cause) {
        (Some(at), _) => return of_message(known.messages.get(at), sent.messages.get(at)),
        (None, Cause::ModelChanged) => models_text,
        (None, Cause::ToolsChanged) => tools_text,
        (None, Cause::TemplateChanged) => |side| Value::Object(side.rendering.clone()).to_string(),
        _ => return None,
    };
    cut_at_difference(&text(known), &text(sent))
}

fn of_message(known: Option<&Value>, sent: Option<&Value>) -> Option<ForkExcerpt> {
    let [known_text, sent_text] = [known, sent].map(|m| m.map(shown).unwrap_or_default());
    // Messages that read the same differ in their JSON.
    if known_text == sent_text {
        let [known, sent] = [known, sent].map(|m| m.map(Value::to_string).unwrap_or_default());
        return cut_at_difference(&known, &sent);
    }
    cut_at_difference(&known_text, &sent_text)
}

fn models_text(side: &HistorySide) -> String {
    side.models.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn tools_text(side: &HistorySide) -> String {
    side.tools.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
}

/// Cuts two texts at the first character that differs; none where they are the same.
fn cut_at_difference(known: &str, sent: &str) -> Option<ForkExcerpt> {
    if known == sent {
        return None;
    }
    let pairs = known.char_indices().zip(sent.chars());
    let shared = pairs.take_while(|((_, a), b)| a == b).last();
    let at = shared.map_or(0, |((at, c), _)| at + c.len_utf8());
    Some(ForkExcerpt {
        before: tail(&known[..at]),
        known: known[at..].chars().take(AFTER_CHARS).collect(),
        sent: sent[at..].chars().take(AFTER_CHARS).collect(),
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
        let found = cut_at_difference("it is \u{e9}9:15", "it is \u{e9}9:20").unwrap();
        assert_eq!((found.before.as_str(), found.known.as_str()), ("it is \u{e9}9:", "15"));
        assert_eq!(found.sent, "20");
        assert_eq!(
            cut_at_difference("a", "ab").map(|s| (s.known, s.sent)),
            Some((String::new(), "b".into()))
        );
        assert_eq!(cut_at_difference("a", "a"), None);
        let long = cut_at_difference(&"x".repeat(500), &("x".repeat(400) + "y")).unwrap();
        assert_eq!((long.before.len(), long.known.len(), long.sent.len()), (60, 100, 1));
    }
}
