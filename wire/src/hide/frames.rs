//! Frames that are sent only because of our fields.

use std::ops::Range;

use crate::document::ReplyDocument;
use crate::json::{Ends, Malformed, Outline, first_elements, members, root};

/// A kind of frame that is sent only because of our fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// vLLM: one choice with an empty delta that does not finish.
    EmptyDelta,
    /// vLLM's Rust frontend: one choice of a text completion with the prompt's ids and no text.
    OnlyPrompt,
    /// SGLang: one choice with an empty delta and the logprobs that no other frame carried.
    OnlyLogprobs,
    /// An event of this name.
    Named(&'static str),
    /// SGLang: a frame without choices that carries side values.
    Sglext,
}

/// Returns true if a frame is of one of these kinds. `Named` is not looked at: the name is
/// not part of the document.
pub(super) fn is_one_of(document: &ReplyDocument, kinds: &[FrameKind]) -> Result<bool, Malformed> {
    if kinds.is_empty() {
        return Ok(false);
    }

    let (document, doc) = (&document.outline()?, document.bytes());
    let (mut choices, mut has_sglext) = (Vec::new(), false);
    for member in members(document, &root(document)?)? {
        match member.name(doc).as_ref() {
            // Only a lone choice is looked at.
            b"choices" => choices = first_elements(document, &member.value, 2)?,
            b"sglext" => has_sglext = &doc[member.value.clone()] != b"null",
            _ => {}
        }
    }
    let choice = match choices.as_slice() {
        [only] => ChoiceShape::read(document, only)?,
        _ => ChoiceShape::default(),
    };

    Ok(kinds.iter().any(|kind| match kind {
        FrameKind::Sglext => has_sglext && choices.is_empty(),
        kind => choice.is(*kind),
    }))
}

/// The parts of a streamed choice that tell its kind.
#[derive(Debug, Default)]
struct ChoiceShape {
    delta: DeltaShape,
    has_finished: bool,
    has_logprobs: bool,
    /// The text of a text completion is empty.
    has_empty_text: bool,
    has_prompt_ids: bool,
    /// The key `finish_reason` is there, even if it is null.
    has_finish_key: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum DeltaShape {
    /// No delta, or one with a value.
    #[default]
    Filled,
    /// No key at all.
    Empty,
    /// Keys, all of them null.
    Nulls,
}

impl ChoiceShape {
    fn read(document: &Outline<'_>, choice: &Range<usize>) -> Result<Self, Malformed> {
        let doc = document.bytes();
        let mut shape = Self::default();
        for field in members(document, choice)? {
            let value = &doc[field.value.clone()];
            let is_null = value == b"null";
            match field.name(doc).as_ref() {
                b"delta" => shape.delta = DeltaShape::read(document, &field.value)?,
                b"finish_reason" => (shape.has_finished, shape.has_finish_key) = (!is_null, true),
                b"text" => shape.has_empty_text = value == b"\"\"",
                b"prompt_token_ids" => shape.has_prompt_ids = !is_null,
                b"logprobs" => shape.has_logprobs = !is_null,
                _ => {}
            }
        }
        Ok(shape)
    }

    fn is(&self, kind: FrameKind) -> bool {
        match kind {
            FrameKind::EmptyDelta => self.delta == DeltaShape::Empty && !self.has_finished,
            FrameKind::OnlyPrompt => {
                self.has_prompt_ids && self.has_empty_text && !self.has_finish_key
            }
            FrameKind::OnlyLogprobs => {
                self.delta == DeltaShape::Nulls && !self.has_finished && self.has_logprobs
            }
            FrameKind::Named(_) | FrameKind::Sglext => false,
        }
    }
}

impl DeltaShape {
    fn read(document: &Outline<'_>, delta: &Range<usize>) -> Result<Self, Malformed> {
        let doc = document.bytes();
        let fields = members(document, delta)?;
        if fields.is_empty() {
            return Ok(Self::Empty);
        }
        let all_null = fields.iter().all(|field| &doc[field.value.clone()] == b"null");
        Ok(if all_null { Self::Nulls } else { Self::Filled })
    }
}
