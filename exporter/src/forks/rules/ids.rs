//! Rules over the ids of two prompts, for cases where the messages are the same.

use super::evidence::{AGREE_TOKENS, ForkIds, SEAM_TOKENS, SampledSpan};
use super::volatile;
use crate::forks::token_texts::ForkTexts;

/// Most tokens of the last word of a history.
const END_TOKENS: usize = 2;
/// Number of tokens within which the same text may be split in another way.
const RESPLIT_TOKENS: usize = 24;

/// Returns true where the prompt leaves out the reasoning of a turn and the rest of that turn
/// follows.
pub(super) fn thinking_is_cut(ids: &ForkIds<'_>) -> bool {
    let Some(span) = ids.near_span().filter(|span| span.thinks) else { return false };
    let rest_of_turn = &ids.known_rest()[..span.tokens.end - ids.at];
    // A template may leave an empty pair of think tags behind.
    (0..=SEAM_TOKENS).any(|added| {
        let sent = ids.sent_rest().get(added..).unwrap_or_default();
        (added + 1..rest_of_turn.len())
            .any(|dropped| starts_with_head(sent, &rest_of_turn[dropped..]))
    })
}

/// Returns true where `sent` starts with the first [`AGREE_TOKENS`] of `known`, or all of them. One
/// token, such as the end of a turn, stands everywhere and is not enough.
fn starts_with_head(sent: &[u32], known: &[u32]) -> bool {
    let head = &known[..known.len().min(AGREE_TOKENS)];
    head.len() > 1 && sent.starts_with(head)
}

/// Returns true where only tokens around the end of a turn, or around the header of the next one,
/// differ.
pub(super) fn is_seam(ids: &ForkIds<'_>) -> bool {
    let ends = || ids.spans.iter().any(|span| is_at_end(span, ids.at));
    let starts = || ids.spans.iter().any(|span| is_at_start(span, ids.at));
    // Sampled words in place of others are no header.
    let replaces_words = ids.spans.iter().any(|span| span.tokens.start == ids.at);
    (ends() && rejoins(ids, |_, _| true))
        || (starts()
            && rejoins(ids, |dropped, added| {
                let replaces = dropped > 0 && added > 0;
                !(ids.is_end(dropped) || (replaces_words && replaces))
            }))
}

/// Returns true at the token that ends a turn, or behind it. Those before it are words, and so is
/// the last one of a turn that was cut off.
fn is_at_end(span: &SampledSpan, at: usize) -> bool {
    let ends_turn = usize::from(!span.is_cut);
    at > span.tokens.start
        && at + ends_turn >= span.tokens.end
        && at <= span.tokens.end + SEAM_TOKENS
}

fn is_at_start(span: &SampledSpan, at: usize) -> bool {
    at <= span.tokens.start && at + SEAM_TOKENS >= span.tokens.start
}

/// Returns true where both sides agree again within the tokens of a seam, with as many dropped and
/// added as are allowed.
fn rejoins(ids: &ForkIds<'_>, allows: impl Fn(usize, usize) -> bool) -> bool {
    let counts =
        (0..=SEAM_TOKENS).flat_map(|dropped| (0..=SEAM_TOKENS).map(move |added| (dropped, added)));
    let mut allowed = counts.filter(|(dropped, added)| allows(*dropped, *added));
    allowed.any(|(dropped, added)| ids.agree(dropped, added))
}

/// Returns true where sampled text was split into other tokens; none where the texts of these
/// tokens are not known, or the position is not in sampled tokens.
pub(super) fn is_same_text(ids: &ForkIds<'_>, texts: &ForkTexts) -> Option<bool> {
    ids.near_span().filter(|span| span.tokens.contains(&ids.at))?;
    let [known, sent] = [ids.known_rest(), ids.sent_rest()].map(resplit_window);
    texts.of(known.get(..1)?)?;
    texts.of(sent.get(..1)?)?;

    let sent_heads: Vec<String> = heads(sent, texts).collect();
    let is_same = heads(known, texts).any(|head| sent_heads.contains(&head));
    Some(is_same)
}

/// Returns the texts of the first token, the first two tokens, and so on.
fn heads<'a>(ids: &'a [u32], texts: &'a ForkTexts) -> impl Iterator<Item = String> + 'a {
    (1..=ids.len()).filter_map(|count| texts.of(&ids[..count]))
}

/// Returns true where the ids of sampled tokens differ for a while and then agree again, or end.
///
/// Where no text is known, that is taken for the same text in other tokens. The arguments of a tool
/// call are excepted, since a template may write them in its own way.
pub(super) fn looks_retokenized(ids: &ForkIds<'_>) -> bool {
    let near = ids.near_span().filter(|span| span.tokens.contains(&ids.at) && !span.calls);
    let Some(span) = near else { return false };
    let [known, sent] = [ids.known_rest(), ids.sent_rest()].map(resplit_window);
    let is_last_word = span.tokens.end == ids.known.len() && known.len() <= END_TOKENS;
    is_last_word
        || (1..known.len()).any(|dropped| (1..=sent.len()).any(|added| ids.agree(dropped, added)))
}

fn resplit_window(rest: &[u32]) -> &[u32] {
    &rest[..rest.len().min(RESPLIT_TOKENS)]
}

/// Returns true where the prompts, as text, differ only in volatile words from the position on.
pub(super) fn differs_only_in_volatile_words(ids: &ForkIds<'_>, texts: &ForkTexts) -> bool {
    let known = texts.of(resplit_window(ids.known_rest()));
    let sent = texts.of(resplit_window(ids.sent_rest()));
    let Some((known, sent)) = known.zip(sent) else { return false };
    let [known, sent] = [&known, &sent].map(|text| text.split_whitespace().collect::<Vec<_>>());
    // Both windows hold as many tokens, not as much text. The shorter one counts, without its last
    // word, which may be cut.
    let count = known.len().min(sent.len()).saturating_sub(1).max(1);
    let [known, sent] = [known, sent].map(|words| words[..count.min(words.len())].join(" "));
    volatile::differ_only_in_volatile_words(&known, &sent)
}
