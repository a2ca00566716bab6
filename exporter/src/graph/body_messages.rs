//! The messages of a request body with their byte positions. A body that begins like another one is
//! read on from where the two part.

use std::ops::Range;

use episode::{Body, Route};

use crate::graph::message_numbers::{MessageNumbers, NumberedMessage};

/// Bytes that are compared at a time.
const BLOCK_BYTES: usize = 64;

/// The messages of a body and their positions in it.
#[derive(Debug)]
pub(crate) struct BodyMessages {
    body: Body,
    /// Position of the first message; none without messages.
    start: Option<usize>,
    /// End position of each message.
    ends: Vec<usize>,
    pub(crate) messages: Vec<NumberedMessage>,
    /// The tools, as one number.
    pub(crate) tools: Option<u32>,
    /// True where the request asks to go on with the last message.
    pub(crate) continues: bool,
}

/// A body without the bytes of messages that are known already.
struct ShortBody<'t> {
    text: &'t [u8],
    /// Position of the bytes that are left out.
    cut_at: usize,
    cut_bytes: usize,
}

impl ShortBody<'_> {
    /// Returns the position in the whole body of a part of the short one.
    fn whole_position(&self, part: &str) -> Range<usize> {
        let at = part.as_ptr() as usize - self.text.as_ptr() as usize;
        let start = if at < self.cut_at { at } else { at + self.cut_bytes };
        start..start + part.len()
    }
}

impl BodyMessages {
    /// Reads a body. Gives none unless it is a chat that holds its messages and its tools once
    /// each.
    pub(crate) fn read(
        route: Route,
        body: &Body,
        bytes: &[u8],
        numbers: &mut MessageNumbers,
    ) -> Option<Self> {
        let empty = Self {
            body: body.clone(),
            start: None,
            ends: Vec::new(),
            messages: Vec::new(),
            tools: None,
            continues: false,
        };
        let whole = ShortBody { text: bytes, cut_at: 0, cut_bytes: 0 };
        empty.read_rest(route, bytes, &whole, numbers)
    }

    /// Reads `body`, whose first messages are those of this body. Gives none where that cannot be
    /// decided without reading it whole.
    pub(crate) fn continued(
        &self,
        route: Route,
        body: &Body,
        bytes: &[u8],
        numbers: &mut MessageNumbers,
    ) -> Option<Self> {
        let start = self.start?;
        let common = common_prefix_len(&self.body.read(), bytes);
        let count = self.ends.partition_point(|end| *end <= common);
        let rest = next_element(bytes, *self.ends[..count].last()?)?;

        // What remains is a body without the messages that are known.
        let text = [&bytes[..start], &bytes[rest..]].concat();
        let known = Self {
            body: body.clone(),
            start: Some(start),
            ends: self.ends[..count].to_vec(),
            messages: self.messages[..count].to_vec(),
            tools: None,
            continues: false,
        };
        let short = ShortBody { text: &text, cut_at: start, cut_bytes: rest - start };
        known.read_rest(route, bytes, &short, numbers)
    }

    /// Adds the messages and tools of the rest of the body.
    fn read_rest(
        mut self,
        route: Route,
        bytes: &[u8],
        rest: &ShortBody<'_>,
        numbers: &mut MessageNumbers,
    ) -> Option<Self> {
        let written = wire::raw_conversation(route, rest.text)?;
        for message in &written.messages {
            let position = rest.whole_position(message.get());
            self.messages.push(numbers.of_json(text(bytes, &position)?)?);
            self.start.get_or_insert(position.start);
            self.ends.push(position.end);
        }
        let last_is_begun = self.messages.last().is_some_and(|message| message.is_begun);
        let asks = written.continue_final_message.is_some_and(|value| value.get() == "true");
        self.continues = asks || last_is_begun;
        if let Some(tools) = written.tools {
            let tools = text(bytes, &rest.whole_position(tools.get()))?;
            self.tools = numbers.of_json_tools(tools);
        }
        Some(self)
    }
}

fn text<'b>(body: &'b [u8], position: &Range<usize>) -> Option<&'b str> {
    std::str::from_utf8(body.get(position.clone())?).ok()
}

/// Returns the number of bytes that two bodies have in common at their beginnings.
fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.chunks(BLOCK_BYTES).zip(b.chunks(BLOCK_BYTES));
    let equal_blocks = blocks.take_while(|(a, b)| a == b).count();
    let start = (equal_blocks * BLOCK_BYTES).min(a.len()).min(b.len());
    start + a[start..].iter().zip(&b[start..]).take_while(|(a, b)| a == b).count()
}

/// Returns the position behind a list element that ends at `end`: that of the next element, or of
/// the list's end. Gives none where neither follows.
fn next_element(body: &[u8], end: usize) -> Option<usize> {
    match next_symbol(body, end)? {
        (at, b']') => Some(at),
        (comma, b',') => match next_symbol(body, comma + 1)? {
            (_, b']') => None,
            (at, _) => Some(at),
        },
        _ => None,
    }
}

/// Returns the first byte from `from` on that is not blank, with its position.
fn next_symbol(body: &[u8], from: usize) -> Option<(usize, u8)> {
    let blank = body[from..].iter().take_while(|byte| b" \t\n\r".contains(byte)).count();
    Some((from + blank, *body.get(from + blank)?))
}
