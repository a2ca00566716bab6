//! Conversations of requests that follow each other. A request repeats those before it, so each
//! message is read once, and not again with every later turn.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use episode::Route;
use serde_json::Value;

use super::{canonical, conversation};
use crate::json::{each_element, members, root, skip_space};

/// Requests that are remembered, the last ones: an agent may go on with several threads in turn.
const REMEMBERED: usize = 3;
/// Bytes that are compared at once.
const BLOCK: usize = 4096;

/// A message of a request in OpenAI's chat form.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadMessage {
    /// The message.
    pub value: Value,
    /// A number that all spellings of the message share: see [`canonical`].
    pub likeness: u64,
}

/// A reader of the conversations of requests, each of which may begin as an earlier one.
#[derive(Debug, Default)]
pub struct ConversationReader {
    known: VecDeque<ReadRequest>,
}

/// A request that was read. Its list of messages is cut into stretches that are read alone.
#[derive(Debug)]
struct ReadRequest {
    route: Route,
    bytes: Bytes,
    /// The place of the list's bracket.
    list: usize,
    /// The ends of stretches that later requests can share, each with the number of the messages
    /// up to it.
    ends: Vec<(usize, usize)>,
    messages: Vec<Arc<ReadMessage>>,
}

/// The stretches that a request shares with an earlier one.
#[derive(Debug, Clone, Copy)]
struct SharedStretches<'a> {
    with: &'a ReadRequest,
    stretches: usize,
}

impl ReadMessage {
    /// A message with its number.
    pub fn of(value: Value) -> Self {
        let mut hasher = DefaultHasher::new();
        canonical(&value).hash(&mut hasher);
        Self { likeness: hasher.finish(), value }
    }
}

impl ConversationReader {
    /// The messages of a request, as [`conversation`] reads them; none if it has none.
    pub fn messages(&mut self, route: Route, request: &Bytes) -> Vec<Arc<ReadMessage>> {
        let Some((head, read)) = self.parts(route, request) else {
            let whole = conversation(route, request).unwrap_or_default().messages;
            return whole.into_iter().map(|value| Arc::new(ReadMessage::of(value))).collect();
        };
        let messages = head.into_iter().chain(read.messages.iter().cloned()).collect();
        self.known.truncate(REMEMBERED - 1);
        self.known.push_front(read);
        messages
    }

    /// The messages in front of a request's list, and the list; `None` where it can only be read as
    /// a whole.
    fn parts(&self, route: Route, request: &Bytes) -> Option<(Vec<Arc<ReadMessage>>, ReadRequest)> {
        let key = list_key(route)?;
        let shared = self.shared(route, request);
        let (document, removed) = match shared {
            Some(shared) => shared.removed_from(request)?,
            None => (Cow::from(&request[..]), 0),
        };

        let fields = members(&*document, &root(&*document).ok()?).ok()?;
        let mut lists = fields.iter().filter(|field| field.key(&document) == key);
        let (list, other) = (lists.next()?.value.clone(), lists.next());
        if other.is_some() || shared.is_some_and(|shared| shared.with.list != list.start) {
            return None;
        }
        let mut elements = Vec::new();
        each_element(&*document, &list, |element| {
            elements.push(element);
            Ok(())
        })
        .ok()?;

        let head = match route {
            Route::Chat => Vec::new(),
            _ => read(route, &[&document[..=list.start], &document[list.end - 1..]])?,
        };
        let (mut ends, mut messages) = shared.map(SharedStretches::known).unwrap_or_default();
        let mut rest = elements.as_slice();
        while let Some(first) = rest.first() {
            let length = stretch(route, rest.iter().map(|place| &document[place.clone()]))?;
            let (stretch, later) = rest.split_at(length);
            let end = stretch.last()?.end;
            let found = read(route, &[&list_of(key, &document[first.start..end])])?;
            if found.is_empty() {
                return None;
            }
            messages.extend(found);
            // A number may go on in another request.
            if b"}]\"".contains(&document[end - 1]) {
                ends.push((end + removed, messages.len()));
            }
            rest = later;
        }
        // The next item may belong to the last message.
        if route == Route::Responses {
            ends.pop();
        }
        Some((
            head,
            ReadRequest { route, bytes: request.clone(), list: list.start, ends, messages },
        ))
    }

    /// The remembered request that shares most with another.
    fn shared(&self, route: Route, request: &[u8]) -> Option<SharedStretches<'_>> {
        let known = self.known.iter().filter(|known| known.route == route);
        let shared =
            known.map(|with| SharedStretches { with, stretches: with.shared_with(request) });
        shared.filter(|shared| shared.stretches > 0).max_by_key(|shared| shared.stretches)
    }
}

impl ReadRequest {
    /// The number of its stretches that another request has as well, to the byte.
    fn shared_with(&self, request: &[u8]) -> usize {
        let same = same_bytes(&self.bytes, request);
        self.ends.partition_point(|(end, _)| *end <= same)
    }
}

impl SharedStretches<'_> {
    /// The end of the part, and the number of its messages.
    fn end(&self) -> (usize, usize) {
        self.with.ends[self.stretches - 1]
    }

    fn known(self) -> (Vec<(usize, usize)>, Vec<Arc<ReadMessage>>) {
        let messages = &self.with.messages[..self.end().1];
        (self.with.ends[..self.stretches].to_vec(), messages.to_vec())
    }

    /// A request without the part, and the number of the bytes that are missing.
    fn removed_from(&self, request: &[u8]) -> Option<(Cow<'static, [u8]>, usize)> {
        let start = self.with.list + 1;
        let next = skip_space(request, self.end().0);
        let end = match request.get(next)? {
            b',' => next + 1,
            b']' => next,
            _ => return None,
        };
        Some(([&request[..start], &request[end..]].concat().into(), end - start))
    }
}

/// The name of the list of messages; `None` for routes that have none.
fn list_key(route: Route) -> Option<&'static str> {
    match route {
        Route::Chat | Route::Messages => Some("messages"),
        Route::Responses => Some("input"),
        _ => None,
    }
}

/// The number of the first elements that are read together. On OpenAI's newer wire an answer is
/// several items; what a user or a tool said begins another message. `None` if a list begins in the
/// middle of an answer.
fn stretch<'a>(route: Route, elements: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    if route != Route::Responses {
        return Some(1);
    }
    let mut begins = elements.map(begins_message);
    begins.next()?.then(|| 1 + begins.take_while(|begins| !begins).count())
}

fn begins_message(item: &[u8]) -> bool {
    let item: Value = serde_json::from_slice(item).unwrap_or_default();
    let text = |key: &str| item.get(key).and_then(Value::as_str);
    match (text("type"), text("role")) {
        (Some("message") | None, Some("user")) => true,
        (Some(kind), _) => kind.ends_with("_call_output"),
        _ => false,
    }
}

/// A request that has nothing but a list.
fn list_of(key: &str, elements: &[u8]) -> Vec<u8> {
    [b"{\"", key.as_bytes(), b"\":[", elements, b"]}"].concat()
}

/// The messages of a request in pieces.
fn read(route: Route, pieces: &[&[u8]]) -> Option<Vec<Arc<ReadMessage>>> {
    let messages = conversation(route, &pieces.concat())?.messages;
    Some(messages.into_iter().map(|value| Arc::new(ReadMessage::of(value))).collect())
}

/// The length of what two texts have in common at their beginning.
fn same_bytes(one: &[u8], other: &[u8]) -> usize {
    let blocks = one.chunks_exact(BLOCK).zip(other.chunks_exact(BLOCK));
    let same = BLOCK * blocks.take_while(|(one, other)| one == other).count();
    let rest = one[same..].iter().zip(&other[same..]);
    same + rest.take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Reads requests one after the other, and compares each with what is read of it alone.
    fn read_all(route: Route, requests: &[Value]) -> Vec<Vec<Arc<ReadMessage>>> {
        let mut reader = ConversationReader::default();
        let read = requests.iter().map(|request| {
            let body = Bytes::from(request.to_string());
            let messages = reader.messages(route, &body);
            let values: Vec<Value> = messages.iter().map(|one| one.value.clone()).collect();
            let whole = conversation(route, &body).unwrap_or_default().messages;
            assert_eq!(values, whole, "{request}");
            messages
        });
        read.collect()
    }

    fn shared(one: &[Arc<ReadMessage>], other: &[Arc<ReadMessage>]) -> usize {
        one.iter().zip(other).take_while(|(one, other)| Arc::ptr_eq(one, other)).count()
    }

    /// Requests that hold the first messages of a list, so many each.
    fn growing(key: &str, list: &[Value], counts: &[usize]) -> Vec<Value> {
        let request = |count: &usize| {
            let mut request =
                json!({ "model": "m", "system": "be brief", "instructions": "be so" });
            request[key] = list[..*count].into();
            request["tools"] = json!([{ "type": "function", "name": "f" }]);
            request
        };
        counts.iter().map(request).collect()
    }

    #[test]
    fn a_message_is_read_once() {
        let message = |at: usize| {
            let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
            json!({ "role": role, "content": format!("words {at} {}", "é\n\"".repeat(at * 300)) })
        };
        let list: Vec<Value> = (0..9).map(message).collect();
        for (route, head) in [(Route::Chat, 0), (Route::Messages, 1)] {
            // An agent goes back, and on from there.
            let read = read_all(route, &growing("messages", &list, &[1, 3, 5, 2, 7, 9, 0, 9]));
            let lists: Vec<_> = read.iter().map(|messages| &messages[head..]).collect();
            for (later, earlier, same) in [(1, 0, 1), (2, 1, 3), (3, 2, 2), (4, 2, 5), (5, 4, 7)] {
                assert_eq!(shared(lists[later], lists[earlier]), same, "{route:?} {later}");
            }
            assert_eq!(read[1][0].likeness, read[0][0].likeness);
            assert_ne!(read[1][head].likeness, read[1][head + 1].likeness);
        }
    }

    #[test]
    fn an_answer_of_several_items_is_one_message() {
        let list = [
            json!({ "role": "user", "content": "go" }),
            json!({ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "hm" }] }),
            json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" }),
            json!({ "type": "function_call", "call_id": "2", "name": "f", "arguments": "{}" }),
            json!({ "type": "function_call_output", "call_id": "1", "output": "one" }),
            json!({ "type": "function_call_output", "call_id": "2", "output": "two" }),
            json!({ "role": "assistant", "content": "done" }),
            json!({ "type": "web_search_call", "id": "w" }),
            json!({ "role": "user", "content": [{ "type": "input_text", "text": "more" }] }),
        ];
        let counts = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let read = read_all(Route::Responses, &growing("input", &list, &counts));
        let (last, before) = (&read[8][1..], &read[7][1..]);
        assert_eq!((last.len(), shared(last, before)), (6, 3));
        let no_list = json!({ "input": "go" });
        let middle = json!({ "input": list[1..5] });
        read_all(Route::Responses, &[no_list, middle.clone(), middle]);
    }

    #[test]
    fn what_is_no_list_of_messages_is_read_as_a_whole() {
        let odd = [
            r#"{"messages":[{"role":"user","content":"a"}],"messages":[]}"#,
            r#"{"messages":[{"role":"user","content":"a"},12]}"#,
            r#"{"messages":[{"role":"user","content":"a"},123,{"role":"user","content":"b"}]}"#,
            r#"{"messages":[{"role":"user","content":"a"}"#,
            r#"{"messages":{"role":"user"}}"#,
            "[]",
            "",
        ];
        for route in [Route::Chat, Route::Messages, Route::Responses, Route::Completions] {
            let mut reader = ConversationReader::default();
            for body in odd.iter().chain(odd.iter().rev()) {
                let read = reader.messages(route, &Bytes::from_static(body.as_bytes()));
                let read: Vec<Value> = read.iter().map(|one| one.value.clone()).collect();
                let whole = conversation(route, body.as_bytes()).unwrap_or_default().messages;
                assert_eq!(read, whole, "{route:?} {body}");
            }
        }
    }
}
