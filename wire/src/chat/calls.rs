//! Tool calls in pieces, told apart whatever their indices say.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{text, whole_number};
use crate::json::Nesting;
use crate::json::json_text;

/// A tool call, or a piece of one, as a message or a delta has it.
#[derive(Debug)]
pub(crate) struct CallPiece<'a> {
    /// The server's index, if it is a number.
    index: Option<u64>,
    pub(crate) id: &'a str,
    /// A custom (freeform) call, whose input is no JSON.
    is_custom: bool,
    pub(crate) name: &'a str,
    /// The arguments or the input; an object as JSON text.
    pub(crate) arguments: Cow<'a, str>,
}

/// The calls of a message or a delta: those of `tool_calls`, else the older `function_call`.
pub(crate) fn pieces(message: &Value) -> Vec<CallPiece<'_>> {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let mut pieces: Vec<CallPiece<'_>> =
        calls.into_iter().flatten().filter(|call| call.is_object()).map(CallPiece::of).collect();
    let function = message.get("function_call").filter(|call| call.is_object());
    let older = function.map(|function| CallPiece::of_function("", function));
    // Some servers have an empty one beside the text.
    if let Some(older) = older.filter(|call| !call.name.is_empty() || !call.arguments.is_empty())
        && pieces.is_empty()
    {
        pieces.push(CallPiece { index: Some(0), ..older });
    }
    pieces
}

impl<'a> CallPiece<'a> {
    fn of(call: &'a Value) -> Self {
        let id = text(call, "id").unwrap_or_default();
        let index = whole_number(call.get("index"));
        match (call.get("custom"), call.get("function")) {
            (Some(custom), None) if custom.is_object() => Self {
                index,
                id,
                is_custom: true,
                name: text(custom, "name").unwrap_or_default(),
                arguments: arguments_text(custom.get("input")),
            },
            (_, Some(function)) => Self { index, ..Self::of_function(id, function) },
            // Some servers leave the function's fields in the call itself.
            _ => Self { index, ..Self::of_function(id, call) },
        }
    }

    fn of_function(id: &'a str, function: &'a Value) -> Self {
        let name = text(function, "name").unwrap_or_default();
        let arguments = arguments_text(function.get("arguments"));
        Self { index: None, id, is_custom: false, name, arguments }
    }

    /// The piece as an entry of `tool_calls`, under the number and the id of its call.
    pub(super) fn numbered(self, number: usize, id: &str) -> Value {
        let mut call = Map::from_iter([("index".to_owned(), json!(number))]);
        if !id.is_empty() {
            call.insert("id".to_owned(), json!(id));
        }
        let (kind, held) = match self.is_custom {
            true => ("custom", json!({ "name": self.name, "input": self.arguments })),
            false => ("function", json!({ "name": self.name, "arguments": self.arguments })),
        };
        call.insert("type".to_owned(), json!(kind));
        call.insert(kind.to_owned(), held);
        Value::Object(call)
    }
}

/// Arguments as text; some servers and agents send them as an object.
pub(crate) fn arguments_text(arguments: Option<&Value>) -> Cow<'_, str> {
    match arguments {
        None | Some(Value::Null) => Cow::Borrowed(""),
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(other) => Cow::Owned(json_text(other)),
    }
}

/// Most calls of one message that are told apart.
const CALLS_MAX: usize = 1024;

/// The calls of one message as its pieces come.
#[derive(Debug, Default)]
pub(crate) struct NumberedCalls(Vec<KnownCall>);

#[derive(Debug, Default)]
struct KnownCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: Nesting,
}

impl NumberedCalls {
    /// The number of the call that a piece belongs to, which stands at `position` among the `count`
    /// pieces of its delta; `None` if there is no room for further calls. A piece of a whole
    /// message is a call of its own. A piece that only repeats a call loses its arguments.
    ///
    /// Servers number the calls, or leave the index out, or give all the same. A new id together
    /// with a name begins a new call, even under a known index, and so does a name with whole
    /// arguments behind a call that is complete: some servers send every call whole and under index
    /// 0. Others repeat the name, or make up a new id for every delta, so neither alone begins one.
    pub(super) fn of(
        &mut self,
        piece: &mut CallPiece<'_>,
        (position, count): (usize, usize),
        is_whole: bool,
    ) -> Option<usize> {
        let by_place = (count > 1).then_some(position as u64);
        let index = piece.index.or(by_place);
        let known = match index {
            _ if is_whole => None,
            Some(index) => self.0.iter().rposition(|call| call.index == Some(index)),
            None => self.without_index(piece),
        };
        let number = match known.filter(|number| self.0[*number].continues_with(piece)) {
            Some(number) => number,
            None if self.0.len() == CALLS_MAX => return None,
            None => {
                self.0.push(KnownCall { index, ..KnownCall::default() });
                self.0.len() - 1
            }
        };

        // An id or a name may come later than the first piece.
        let call = &mut self.0[number];
        if call.repeats(piece) {
            piece.arguments = Cow::Borrowed("");
        }
        if call.id.is_empty() {
            piece.id.clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            piece.name.clone_into(&mut call.name);
        }
        call.arguments.push(&piece.arguments);
        Some(number)
    }

    /// The id of a call, as far as it is known.
    pub(super) fn id(&self, number: usize) -> &str {
        &self.0[number].id
    }

    /// The call that a piece without an index goes on with: that of its id, else the last one,
    /// unless the piece names a call while the last one is complete or has another name.
    fn without_index(&self, piece: &CallPiece<'_>) -> Option<usize> {
        let by_id = self.0.iter().rposition(|call| !piece.id.is_empty() && call.id == piece.id);
        let last = self.0.len().checked_sub(1)?;
        let call = &self.0[last];
        let is_other = !call.name.is_empty() && call.name != piece.name;
        let begins = !piece.name.is_empty() && (call.arguments.is_closed() || is_other);
        let has_new_id = !piece.id.is_empty() && call.arguments.is_closed();
        by_id.or((!begins && !has_new_id).then_some(last))
    }
}

impl KnownCall {
    /// Returns true if a piece under the same index belongs to this call.
    fn continues_with(&self, piece: &CallPiece<'_>) -> bool {
        let has_other_id = !self.id.is_empty() && !piece.id.is_empty() && self.id != piece.id;
        let is_named = !self.name.is_empty() && !piece.name.is_empty();
        let begins = self.is_followed_by_whole(piece) && !self.repeats(piece);
        !(is_named && (has_other_id || begins))
    }

    /// Returns true if this call is complete and a piece has arguments of its own.
    fn is_followed_by_whole(&self, piece: &CallPiece<'_>) -> bool {
        self.arguments.is_closed() && piece.arguments.trim_start().starts_with('{')
    }

    /// Returns true if a piece has this complete call once more.
    fn repeats(&self, piece: &CallPiece<'_>) -> bool {
        let is_same = !self.id.is_empty() && self.id == piece.id && self.name == piece.name;
        is_same && self.is_followed_by_whole(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ChatReader;
    use super::*;

    /// The calls that deltas add up to: id, name and arguments of each.
    fn calls(deltas: &[Value]) -> Vec<[String; 3]> {
        let mut found: Vec<[String; 3]> = Vec::new();
        let mut reader = ChatReader::default();
        for delta in deltas {
            let mut chunk = json!({ "choices": [{ "delta": delta }] });
            reader.take(&mut chunk, true);
            for call in chunk["choices"][0]["delta"]["tool_calls"].as_array().unwrap() {
                let number = call["index"].as_u64().unwrap() as usize;
                found.resize(found.len().max(number + 1), <[String; 3]>::default());
                let [id, name, arguments] = &mut found[number];
                if id.is_empty() {
                    text(call, "id").unwrap_or_default().clone_into(id);
                }
                let held = &call[call["type"].as_str().unwrap()];
                if name.is_empty() {
                    text(held, "name").unwrap_or_default().clone_into(name);
                }
                let piece = text(held, "arguments").or(text(held, "input"));
                arguments.push_str(piece.unwrap_or_default());
            }
        }
        found
    }

    fn piece(index: Value, id: &str, name: &str, arguments: Value) -> Value {
        let mut call = json!({ "function": { "name": name, "arguments": arguments } });
        if index != json!("absent") {
            call["index"] = index;
        }
        if !id.is_empty() {
            call["id"] = json!(id);
        }
        call
    }

    #[test]
    fn two_calls_are_two_whatever_their_indices() {
        let wanted = [["a", "f", r#"{"x":1}"#], ["b", "g", r#"{"y":2}"#]];
        let indices = [
            [json!(0), json!(1)],
            [json!(0), json!(0)],
            [json!("absent"), json!("absent")],
            [json!(null), json!(null)],
            [json!("0"), json!("1")],
            [json!(0.0), json!(1.0)],
            [json!(-1), json!({})],
            [json!(5), json!(3)],
        ];
        for [one, two] in indices {
            let whole = [
                piece(one.clone(), "a", "f", json!(r#"{"x":1}"#)),
                piece(two.clone(), "b", "g", json!(r#"{"y":2}"#)),
            ];
            let in_pieces = [
                piece(one.clone(), "a", "f", json!("")),
                piece(one.clone(), "", "", json!(r#"{"x":"#)),
                piece(one.clone(), "", "", json!("1}")),
                piece(two.clone(), "b", "g", json!(null)),
                piece(two.clone(), "", "", json!(r#"{"y":2}"#)),
            ];
            let repeated = [
                piece(one.clone(), "a", "f", json!(r#"{"x":"#)),
                piece(one.clone(), "a", "f", json!("1}")),
                piece(two.clone(), "b", "g", json!(r#"{"y":2}"#)),
            ];
            let objects =
                [piece(one, "a", "f", json!({ "x": 1 })), piece(two, "b", "g", json!({ "y": 2 }))];
            for pieces in [&whole[..], &in_pieces, &repeated, &objects] {
                let deltas: Vec<Value> =
                    pieces.iter().map(|call| json!({ "tool_calls": [call] })).collect();
                assert_eq!(calls(&deltas), wanted, "{deltas:?}");
            }
            let at_once = [json!({ "tool_calls": whole })];
            assert_eq!(calls(&at_once), wanted, "{at_once:?}");
        }
    }

    #[test]
    fn whole_calls_under_one_index_are_told_apart() {
        let whole = |id: &str, name: &str, arguments: &str| {
            let call = piece(json!(0), id, name, json!(arguments));
            json!({ "tool_calls": [call] })
        };
        let one = r#"{"x":1}"#;
        let two = [["", "f", one], ["", "g", one], ["", "g", one]];
        assert_eq!(calls(&[whole("", "f", one), whole("", "g", one), whole("", "g", one)]), two);
        let same_id = [["a", "f", one], ["a", "g", one]];
        assert_eq!(calls(&[whole("a", "f", one), whole("a", "g", one)]), same_id);
        assert_eq!(calls(&[whole("a", "f", one), whole("a", "f", one)]), [["a", "f", one]]);
        let empty = json!({ "tool_calls": [], "function_call": { "name": "", "arguments": "" } });
        let mut chunk = json!({ "choices": [{ "delta": empty }] });
        ChatReader::default().take(&mut chunk, true);
        assert_eq!(chunk["choices"][0]["delta"].get("tool_calls"), None);
    }

    #[test]
    fn calls_without_ids_part_at_their_names() {
        let absent = || json!("absent");
        let deltas: Vec<Value> = [
            piece(absent(), "", "f", json!("{}")),
            piece(absent(), "", "f", json!("{")),
            piece(absent(), "", "f", json!("}")),
            piece(absent(), "", "g", json!("{}")),
        ]
        .iter()
        .map(|call| json!({ "tool_calls": [call] }))
        .collect();
        assert_eq!(calls(&deltas), [["", "f", "{}"], ["", "f", "{}"], ["", "g", "{}"]]);
    }

    #[test]
    fn a_new_id_for_each_delta_begins_no_call() {
        let deltas: Vec<Value> = [
            piece(json!(0), "a", "f", json!("{")),
            piece(json!(0), "x", "", json!("}")),
            piece(json!(0), "a", "f", json!("")),
        ]
        .iter()
        .map(|call| json!({ "tool_calls": [call] }))
        .collect();
        assert_eq!(calls(&deltas), [["a", "f", "{}"]]);
    }

    #[test]
    fn older_and_custom_calls_are_calls() {
        let older = [
            json!({ "function_call": { "name": "f", "arguments": "" } }),
            json!({ "function_call": { "arguments": "{}" } }),
        ];
        assert_eq!(calls(&older), [["", "f", "{}"]]);
        let custom = [
            json!({ "tool_calls": [{ "index": 0, "id": "c", "type": "custom",
                "custom": { "name": "f", "input": "a" } }] }),
            json!({ "tool_calls": [{ "index": 0, "custom": { "input": "b" } }] }),
        ];
        assert_eq!(calls(&custom), [["c", "f", "ab"]]);
    }
}
