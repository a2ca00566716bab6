//! Written: the messages of a body as they stand in it, read on from those of another body that
//! begins alike.

use episode::Route;

use crate::graph::message_numbers::{Known, Words};

/// Bytes that are compared at a time.
const BLOCK_BYTES: usize = 64;

/// The messages of a body, and where they stand.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    body: &'a [u8],
    /// Where the first message begins; none without one.
    start: Option<usize>,
    /// Where each message ends.
    ends: Vec<usize>,
    pub(crate) messages: Vec<Known>,
    /// The tools, as one number.
    pub(crate) tools: Option<u32>,
}

impl<'a> Written<'a> {
    /// Reads a body; none where it is not a chat whose messages and tools each stand in it once.
    pub(crate) fn whole(route: Route, body: &'a [u8], words: &mut Words<'a>) -> Option<Self> {
        Self { body, start: None, ends: Vec::new(), messages: Vec::new(), tools: None }.read(
            route,
            body,
            (0, 0),
            words,
        )
    }

    /// Reads `body`, which has some of the same messages at its beginning; none where that cannot
    /// be told without reading it whole.
    pub(crate) fn continued(
        &self,
        route: Route,
        body: &'a [u8],
        words: &mut Words<'a>,
    ) -> Option<Self> {
        let start = self.start?;
        let same = common(self.body, body);
        let count = self.ends.partition_point(|end| *end <= same);
        let rest = after(body, *self.ends[..count].last()?)?;
        // What a body without those messages would be.
        let short = [&body[..start], &body[rest..]].concat();
        let (ends, messages) = (self.ends[..count].to_vec(), self.messages[..count].to_vec());
        let held = Self { body, start: Some(start), ends, messages, tools: None };
        held.read(route, &short, (start, rest - start), words)
    }

    /// Adds the messages of `text`, which is the body without the `left_out` bytes at `from`.
    fn read(
        mut self,
        route: Route,
        text: &[u8],
        (from, left_out): (usize, usize),
        words: &mut Words<'a>,
    ) -> Option<Self> {
        let written = wire::written(route, text)?;
        let place = |part: &str| {
            let start = part.as_ptr() as usize - text.as_ptr() as usize;
            let start = if start < from { start } else { start + left_out };
            start..start + part.len()
        };
        for message in &written.messages {
            let place = place(message.get());
            let message = std::str::from_utf8(self.body.get(place.clone())?).ok()?;
            self.messages.push(words.of_written(message)?);
            self.start.get_or_insert(place.start);
            self.ends.push(place.end);
        }
        if let Some(tools) = written.tools {
            let tools = std::str::from_utf8(self.body.get(place(tools.get()))?).ok()?;
            self.tools = words.of_written_tools(tools);
        }
        Some(self)
    }
}

/// How many bytes two bodies have in common at their beginnings.
fn common(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.chunks(BLOCK_BYTES).zip(b.chunks(BLOCK_BYTES));
    let same = blocks.take_while(|(a, b)| a == b).count() * BLOCK_BYTES;
    let same = same.min(a.len()).min(b.len());
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

/// Where a list goes on behind an element that ends at `end`: with the next element or its own end.
/// None where neither follows.
fn after(body: &[u8], end: usize) -> Option<usize> {
    let next = |from: usize| {
        let is_blank = |byte: &&u8| b" \t\n\r".contains(*byte);
        let blank = body[from..].iter().take_while(is_blank).count();
        Some((from + blank, *body.get(from + blank)?))
    };
    match next(end)? {
        (at, b']') => Some(at),
        (at, b',') => match next(at + 1)? {
            (_, b']') => None,
            (at, _) => Some(at),
        },
        _ => None,
    }
}
