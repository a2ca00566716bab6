//! Removal of the data that only rolltape asked for from a reply, by splicing bytes.
//!
//! - `rules`: a place, and the value that stands there without our fields: null, an empty list, or
//!   nothing.
//! - `frames`: events that exist only because of our fields and are dropped as a whole.
//! - `deltas`: events that hold several deltas only because of our fields and are split again.

mod deltas;
mod frames;
mod rules;

use bytes::Bytes;

use crate::document::ReplyDocument;
use crate::json::{Edits, Malformed};
use crate::sse::{Event, ReadEvent, in_event};
pub(crate) use frames::FrameKind;
pub(crate) use rules::{Replacement, Rule, rule};

/// Takes the answers to added fields out of a reply. Every other byte stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyFilter {
    rules: Vec<Rule>,
    frames: Vec<FrameKind>,
    splits_frames: bool,
}

impl ReplyFilter {
    pub(crate) fn add_rules(&mut self, rules: &[Rule]) {
        self.rules.extend_from_slice(rules);
    }

    pub(crate) fn add_frames(&mut self, frames: FrameKind) {
        self.frames.push(frames);
    }

    /// Splits frames that hold several deltas only because of our fields.
    pub(crate) fn split_frames(&mut self) {
        self.splits_frames = true;
    }

    /// Returns true if the reply goes to the agent unchanged.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.frames.is_empty()
    }

    /// A whole reply without the hidden data. A reply that is not JSON stays as it is.
    pub fn document(&self, document: &ReplyDocument) -> Bytes {
        match self.edits(document) {
            Ok(edits) if !edits.is_empty() => Bytes::from(edits.apply(document.bytes())),
            _ => document.bytes().clone(),
        }
    }

    /// An event of a stream without the hidden data; `None` if nothing is left of it.
    pub fn event(&self, read: &ReadEvent<'_>) -> Option<Bytes> {
        if self.is_empty() {
            return Some(read.event.0.clone());
        }

        let parts = if self.splits_frames { deltas::split(read) } else { Vec::new() };
        if parts.is_empty() {
            return self.filtered(read);
        }
        let shown: Vec<Bytes> =
            parts.iter().filter_map(|part| self.filtered(&part.read())).collect();
        Some(Bytes::from(shown.concat()))
    }

    fn filtered(&self, read: &ReadEvent<'_>) -> Option<Bytes> {
        let (event, data) = (read.event, read.data());
        let is_hidden = |data| frames::is_one_of(data, &self.frames).unwrap_or(false);
        if self.hides_by_name(event) || data.is_some_and(is_hidden) {
            return None;
        }

        match data.map_or_else(|| Ok(Edits::default()), |data| self.edits(data)) {
            Ok(edits) if !edits.is_empty() => {
                // Edits are places in the joined payload, which may stand on several lines.
                Some(Bytes::from(in_event(edits, &read.places).apply(&event.0)))
            }
            _ => Some(event.0.clone()),
        }
    }

    fn hides_by_name(&self, event: &Event) -> bool {
        let is_hidden =
            |kind: &FrameKind| matches!(kind, FrameKind::Named(name) if event.is_named(name));
        self.frames.iter().any(is_hidden)
    }

    fn edits(&self, document: &ReplyDocument) -> Result<Edits, Malformed> {
        match self.rules.is_empty() {
            true => Ok(Edits::default()),
            false => rules::edits(&document.outline()?, &self.rules),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hide(rules: &[Rule], frames: &[FrameKind]) -> ReplyFilter {
        ReplyFilter { rules: rules.to_vec(), frames: frames.to_vec(), splits_frames: false }
    }

    const LOGPROBS: Rule = rule(&["choices", "*", "logprobs"], Replacement::Null);

    fn event(text: &str) -> Event {
        Event(Bytes::from(text.to_owned()))
    }

    #[test]
    fn each_place_gets_what_stands_there_unasked() {
        let hide = hide(
            &[
                LOGPROBS,
                rule(&["choices", "*", "ids"], Replacement::Absent),
                rule(&["output", "*", "content", "*", "logprobs"], Replacement::NullIfFilled),
                rule(&["tops"], Replacement::EmptyList),
                rule(&["__verbose"], Replacement::Absent),
            ],
            &[],
        );
        let reply = r#"{"choices":[{"ids":[1], "logprobs":{"a":[1]},"x":1e5},{"ids":[2]}],"output":[{"content":[{"logprobs":[1]},{"logprobs":[]}]},7],"tops":[[1]],"__verbose":{}}"#;
        let hidden = r#"{"choices":[{"logprobs":null,"x":1e5},{}],"output":[{"content":[{"logprobs":null},{"logprobs":[]}]},7],"tops":[]}"#;
        let shown = |text: &'static str| {
            hide.document(&ReplyDocument::new(Bytes::from_static(text.as_bytes())))
        };
        assert_eq!(shown(reply), hidden);
        assert_eq!(shown("<html>"), "<html>");
    }

    #[test]
    fn frames_that_exist_only_because_of_the_ask_leave() {
        let empty = event("data: {\"choices\":[{\"delta\":{},\"finish_reason\":null}]}\n\n");
        let last = event("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
        let vllm = hide(&[LOGPROBS], &[FrameKind::EmptyDelta]);
        assert_eq!(vllm.event(&empty.read()), None);
        assert_eq!(vllm.event(&last.read()).unwrap(), last.0);
        assert_eq!(hide(&[LOGPROBS], &[]).event(&empty.read()).unwrap(), empty.0);
        let only = event(
            "data: {\"choices\":[{\"delta\":{\"reasoning_content\":null},\"logprobs\":{},\
             \"finish_reason\":null}]}\n\n",
        );
        let named = event("event: sglext_ids\ndata: {\"choices\":[]}\n\n");
        let sglang = hide(&[LOGPROBS], &[FrameKind::OnlyLogprobs, FrameKind::Named("sglext_ids")]);
        assert_eq!((sglang.event(&only.read()), sglang.event(&named.read())), (None, None));
        assert!(sglang.event(&event(": sglext_ids\n\n").read()).is_some());
    }

    #[test]
    fn a_payload_over_several_lines_is_hidden_in_too() {
        let hide = hide(&[LOGPROBS], &[]);
        let long = event("data: {\"choices\":\r\ndata: [{\"logprobs\":[1,\r\ndata:2]}]}\r\n\r\n");
        let shown = hide.event(&long.read()).unwrap();
        let hidden = b"data: {\"choices\":\r\ndata: [{\"logprobs\":null\r\ndata:}]}\r\n\r\n";
        assert_eq!(shown, &hidden[..]);
    }

    #[test]
    fn a_line_that_stands_between_lines_of_data_stays() {
        let hide = hide(&[LOGPROBS], &[]);
        let event = event("data: {\"choices\":[{\"logprobs\":[1,\nid: 7\ndata: 2]}]}\n\n");
        let shown = hide.event(&event.read()).unwrap();
        assert_eq!(shown, "data: {\"choices\":[{\"logprobs\":null\nid: 7\ndata: }]}\n\n");
    }
}
