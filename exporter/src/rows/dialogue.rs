//! The messages of a path, put together turn by turn.
//!
//! A call's tokens begin with those of the call before, but an agent may write the same words in
//! other messages: it joins two, splits one, drops an empty one. So no message is found by counting
//! alone. The prompt is what the first call sent, then come in turn the answer that a call got and
//! what the next call sent behind it.

use episode::Route;
use serde_json::{Value, json};
use wire::{Conversation, canonical, content_text, is_answer};

use crate::graph::message_ids::MessageIds;
use crate::graph::node::Node;
use crate::rows::messages::{RowMessage, answer, message, sent_conversation};

/// The type under which an answer is counted that no message of the row holds.
const UNPLACED: &str = "unplaced_answer";

/// The messages of a path, and the tools of its first call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Dialogue {
    /// Messages of the first call.
    pub(crate) prompt: Vec<RowMessage>,
    /// Messages behind those, the last answer included.
    pub(crate) completion: Vec<RowMessage>,
    /// One JSON document each.
    pub(crate) tools: Vec<String>,
    /// Permission to make several calls in one answer, where the first call gives or denies it.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Number of parts of these messages that were left out, by type, as a JSON document.
    pub(crate) unread_parts: String,
}

impl Dialogue {
    /// Returns true where parts of the messages were left out.
    pub(crate) fn lacks_parts(&self) -> bool {
        self.unread_parts != "{}"
    }
}

/// The messages of a path, and where the answer of each of its turns is among them: the position of
/// the message that holds it and nothing else, if there is one.
pub(crate) struct PathMessages {
    pub(crate) dialogue: Dialogue,
    pub(crate) answers: Vec<Option<usize>>,
}

/// Puts the messages of a path together. `sent` has the messages of each of its calls as numbers.
pub(crate) fn path_messages(path: &[&Node<'_>], sent: &[&MessageIds]) -> PathMessages {
    let first = sent_conversation(path[0]);
    let plain = if is_plain(sent) { calls_of_last(path, sent, &first.messages) } else { None };
    let calls = plain.unwrap_or_else(|| calls_by_themselves(path, sent));

    let mut draft = DialogueDraft::default();
    for call in calls {
        draft.add_sent(&call);
        draft.add_answer(call);
    }
    draft.finish(&first)
}

/// One call of a path: the messages that it sent, and its answer.
struct TurnWords {
    /// All messages that it sent; of a plain path those behind the answer before.
    sent: Vec<Value>,
    /// True where all of `sent` stands behind the answer before.
    is_new: bool,
    /// True where the answer goes on with the last message.
    continues: bool,
    /// True where what was sent is one text, not messages.
    is_text: bool,
    answer: Option<Value>,
}

/// Returns true where every call sends what the call before sent, an answer, and more.
fn is_plain(sent: &[&MessageIds]) -> bool {
    let mut pairs = sent.windows(2);
    let begins_none = !sent.iter().any(|ids| ids.continues_last());
    begins_none && pairs.all(|pair| pair[0].is_answered_in(pair[1]))
}

/// Reads the calls of a plain path, whose last body holds what all others hold. Gives none where
/// the agent sent another answer back than it got.
fn calls_of_last(
    path: &[&Node<'_>],
    sent: &[&MessageIds],
    first: &[Value],
) -> Option<Vec<TurnWords>> {
    let last = match path {
        [] | [_] => Vec::new(),
        [.., leaf] => sent_conversation(leaf).messages,
    };
    let mut history = last.into_iter().skip(first.len());
    let mut new = first.to_vec();
    let mut calls = Vec::with_capacity(path.len());
    for (at, node) in path.iter().enumerate() {
        let answer = match (answer(node), history.next()) {
            (Some(own), Some(copy)) if words(&own) != words(&copy) => return None,
            (own, copy) => own.or(copy),
        };
        calls.push(TurnWords { sent: new, is_new: true, continues: false, is_text: false, answer });

        let end = sent.get(at + 1).map_or(0, |next| next.sent().len());
        let added = end.saturating_sub(sent[at].sent().len() + 1);
        new = history.by_ref().take(added).collect();
    }
    Some(calls)
}

fn calls_by_themselves(path: &[&Node<'_>], sent: &[&MessageIds]) -> Vec<TurnWords> {
    let calls = path.iter().zip(sent).map(|(node, ids)| TurnWords {
        sent: sent_conversation(node).messages,
        is_new: false,
        continues: ids.continues_last(),
        is_text: matches!(node.call.begun.route, Route::Completions | Route::Generate),
        answer: answer(node),
    });
    calls.collect()
}

/// The messages of a row, as far as they are put together.
#[derive(Default)]
struct DialogueDraft {
    messages: Vec<Value>,
    prompt_len: usize,
    /// The turns so far: their answers, and the positions of those that are messages.
    turns: Vec<(Option<Value>, Option<usize>)>,
    /// The messages that the last call sent.
    history: Vec<Value>,
    /// True where the last answer went on with the last message that was sent.
    continued: bool,
    /// True where the next answer goes on with the last message.
    continues: bool,
    /// Number of answers that were left out.
    unplaced: usize,
}

impl DialogueDraft {
    /// Adds what a call sent behind the answer before.
    fn add_sent(&mut self, call: &TurnWords) {
        self.continues = call.continues;
        if self.turns.is_empty() {
            self.messages.clone_from(&call.sent);
            self.prompt_len = self.messages.len();
        } else if call.is_new {
            self.messages.extend_from_slice(&call.sent);
        } else if call.is_text {
            self.add_text(&call.sent);
        } else {
            match self.end_of_history(&call.sent) {
                Some(end) => self.messages.extend_from_slice(&call.sent[end..]),
                None => self.begin_anew(&call.sent),
            }
        }
        self.history.clone_from(&call.sent);
    }

    /// Adds the answer that a call got.
    fn add_answer(&mut self, call: TurnWords) {
        let goes_on = self.continues && self.messages.last().is_some_and(is_answer);
        let place = match &call.answer {
            None => None,
            Some(answer) if goes_on => {
                self.join(answer);
                None
            }
            Some(answer) => {
                self.messages.push(answer.clone());
                Some(self.messages.len() - 1)
            }
        };
        self.continued = goes_on;
        self.turns.push((call.answer, place));
    }

    /// Joins an answer to the last message, of which it is the rest. Neither that message nor an
    /// answer in it stands for one turn then.
    fn join(&mut self, rest: &Value) {
        let last = self.messages.len() - 1;
        join(&mut self.messages[last], rest);
        self.prompt_len = self.prompt_len.min(last);
        let whole = self.turns.iter_mut().filter(|(_, place)| *place == Some(last));
        whole.for_each(|(_, place)| *place = None);
    }

    /// Adds what stands behind the words so far in a prompt that is one text.
    fn add_text(&mut self, sent: &[Value]) {
        let words = |messages: &[Value]| -> String {
            messages.iter().filter_map(|message| content_text(message.get("content"))).collect()
        };
        match words(sent).strip_prefix(&words(&self.messages)) {
            Some("") => self.continues = true,
            Some(rest) => self.messages.push(json!({ "role": "user", "content": rest })),
            None => self.begin_anew(sent),
        }
    }

    /// Returns the position behind the last answer in what the next call sent; none where no
    /// message there is that answer.
    fn end_of_history(&self, sent: &[Value]) -> Option<usize> {
        let (own, _) = self.turns.last()?;
        let told: String = self.history.iter().chain(own).map(words).collect();
        end_of_words(sent, &told).or_else(|| self.end_by_answer(sent, own.as_ref()?))
    }

    /// Returns the position behind the message that is the last answer, or takes its place, where
    /// the words of the agent are not those of the calls.
    fn end_by_answer(&self, sent: &[Value], own: &Value) -> Option<usize> {
        let places: Vec<usize> = (0..sent.len()).filter(|at| is_answer(&sent[*at])).collect();
        let text = canonical(own);
        let near = |at: &&usize| at.abs_diff(self.history.len());
        let same = places.iter().filter(|at| canonical(&sent[**at]) == text).min_by_key(near);

        // The answer is behind as many others as it was when it was sampled. One that was joined
        // takes the place of the message that it goes on with.
        let before = self.history.iter().filter(|message| is_answer(message)).count();
        let nth = before.checked_sub(usize::from(self.continued));
        same.or_else(|| places.get(nth?)).map(|at| at + 1)
    }

    /// Takes all messages of a call in place of those so far, which it does not repeat. Answers
    /// that are among them keep their turns, the others are left out.
    fn begin_anew(&mut self, sent: &[Value]) {
        let mut from = 0;
        let mut first = None;
        for (own, place) in &mut self.turns {
            let text = own.as_ref().map(canonical);
            let is_own = |at: &usize| is_answer(&sent[*at]) && Some(canonical(&sent[*at])) == text;
            let found = (from..sent.len()).find(is_own);
            from = found.map_or(from, |at| at + 1);
            first = first.or(found);
            // Where ids take the place of words, nothing is missed.
            let is_missed = own.is_some() && found.is_none() && !sent.is_empty();
            self.unplaced += usize::from(is_missed);
            *place = found.filter(|_| place.is_some());
        }
        self.messages = sent.to_vec();
        self.prompt_len = first.unwrap_or(self.prompt_len).min(sent.len());
    }

    fn finish(mut self, first: &Conversation) -> PathMessages {
        let mut unread = wire::unread_counts(&self.messages);
        if self.unplaced > 0 {
            unread.insert(UNPLACED.to_owned(), self.unplaced as u64);
        }
        let completion = self.messages.split_off(self.prompt_len);
        let dialogue = Dialogue {
            prompt: self.messages.iter().map(message).collect(),
            completion: completion.iter().map(message).collect(),
            tools: first.tools.iter().map(wire::json_text).collect(),
            parallel_tool_calls: first.parallel_tool_calls,
            unread_parts: json!(unread).to_string(),
        };
        PathMessages { dialogue, answers: self.turns.into_iter().map(|(_, place)| place).collect() }
    }
}

/// Returns the position behind the messages whose words are `told`, however these are split.
fn end_of_words(sent: &[Value], told: &str) -> Option<usize> {
    let mut rest = told;
    let mut end = 0;
    for message in sent {
        let is_silent_answer = |text: &str| text.is_empty() && is_answer(message);
        let text = words(message);
        if rest.is_empty() && end > 0 && !is_silent_answer(&text) {
            break;
        }
        rest = rest.strip_prefix(text.as_str())?;
        end += 1;
    }
    rest.is_empty().then_some(end)
}

/// Returns what a message says, without white space. Templates and agents trim some of it.
fn words(message: &Value) -> String {
    let text = content_text(message.get("content")).unwrap_or_default();
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let functions = calls.into_iter().flatten().filter_map(|call| call.get("function"));
    let called = functions.map(|function| {
        let text = |key: &str| function.get(key).map(wire::json_text).unwrap_or_default();
        format!("{}{}", text("name"), text("arguments"))
    });
    let mut said = std::iter::once(text).chain(called).collect::<String>();
    said.retain(|letter| !letter.is_whitespace());
    said
}

/// Adds the rest of an answer to the message that begins it.
fn join(message: &mut Value, rest: &Value) {
    let (Some(message), Some(rest)) = (message.as_object_mut(), rest.as_object()) else { return };
    wire::BEGUN_MARKS.iter().for_each(|key| drop(message.remove(*key)));
    for (key, value) in rest {
        let known = message.entry(key.as_str()).or_insert(Value::Null);
        match (key.as_str(), value) {
            ("role", _) | (_, Value::Null) => {}
            ("content", _) if !known.is_null() => *known = joined_content(known.take(), value),
            _ => *known = value.clone(),
        }
    }
}

/// Returns two contents as one: a text where both are, else a list of parts.
fn joined_content(first: Value, rest: &Value) -> Value {
    if let (Value::String(first), Value::String(rest)) = (&first, rest) {
        return json!(format!("{first}{rest}"));
    }
    let parts = |content: Value| match content {
        Value::Array(parts) => parts,
        text => vec![json!({ "type": "text", "text": text })],
    };
    Value::Array([parts(first), parts(rest.clone())].concat())
}

#[cfg(test)]
mod tests {
    use episode::Call;

    use super::*;
    use crate::rows::row::Row;
    use crate::tests::fixture::{call, episode, reply, rows_of, with_bodies};

    /// The messages of the only row of these calls, a letter for each role, and the place of each
    /// answer.
    fn told(calls: &[Call]) -> (Vec<String>, usize, Vec<Option<usize>>) {
        let rows: Vec<Row> = rows_of(&episode(calls.to_vec()));
        assert_eq!(rows.len(), 1);
        let said = |message: &RowMessage| {
            format!("{}:{}", &message.role[..1], message.content.as_deref().unwrap_or_default())
        };
        let answers = rows[0].turns.iter().map(|turn| turn.message).collect();
        (rows[0].messages().map(said).collect(), rows[0].dialogue.prompt.len(), answers)
    }

    /// Two calls, the second of which goes on from the first in tokens.
    fn two(bodies: [Value; 2]) -> [Call; 2] {
        let ids: [(&[u32], &[u32]); 2] = [(&[1], &[2]), (&[1, 2, 3], &[4])];
        let numbered = (1..).zip(ids).zip(bodies).zip(["A", "B"]);
        let made = numbered.map(|(((n, (prompt, sampled)), body), answer)| {
            let mut call = with_bodies(call(n, prompt, &[sampled]), &[], answer);
            call.begun.request = body.to_string().into();
            call
        });
        made.collect::<Vec<_>>().try_into().unwrap()
    }

    fn say(role: &str, text: &str) -> Value {
        json!({ "role": role, "content": text })
    }

    #[test]
    fn an_answer_that_the_agent_began_is_one_message() {
        let (user, begun) = (say("user", "q"), say("assistant", "be"));
        let whole = [user.clone(), say("assistant", "beA"), say("user", "r")];
        let marked = |key: &str| {
            let mut begun = begun.clone();
            begun[key] = json!(true);
            json!({ "messages": [user, begun] })
        };
        let flagged = json!({ "messages": [user, begun], "continue_final_message": true });
        for first in [flagged, marked("prefix"), marked("partial")] {
            let calls = two([first, json!({ "messages": whole })]);
            let expected = ["u:q", "a:beA", "u:r", "a:B"].map(str::to_owned).to_vec();
            // The model said only its end, so it stands for no turn.
            assert_eq!(told(&calls), (expected.clone(), 1, vec![None, Some(3)]));
            assert_eq!(told(&calls[..1]), (expected[..2].to_vec(), 1, vec![None]));
        }
        let closed = json!({ "messages": [user, begun] });
        let (messages, prompt, answers) = told(&two([closed, json!({})])[..1]);
        assert_eq!((messages.len(), prompt, answers), (3, 2, vec![Some(2)]));
    }

    #[test]
    fn anthropics_api_goes_on_with_the_last_message() {
        let body = json!({ "messages": [say("user", "q"), say("assistant", "be")] });
        let mut native = two([body, json!({})])[0].clone();
        native.begun.route = Route::Messages;
        reply(&mut native).reply =
            json!({ "content": [{ "type": "text", "text": "A" }] }).to_string().into();
        assert_eq!(told(std::slice::from_ref(&native)).0, ["u:q", "a:beA"]);
        reply(&mut native).translated = Some(Route::Chat);
        assert_eq!(told(&[native]).0, ["u:q", "a:be", "a:A"], "the server closed the first");
    }

    #[test]
    fn an_answer_that_was_cut_off_is_gone_on_with() {
        let (user, cut) = (say("user", "q"), say("assistant", "A"));
        let next = json!({ "messages": [user, cut], "continue_final_message": true });
        let calls = two([json!({ "messages": [user] }), next]);
        let expected = ["u:q", "a:AB"].map(str::to_owned).to_vec();
        assert_eq!(told(&calls), (expected, 1, vec![None, None]));
    }

    #[test]
    fn a_prompt_that_is_one_text_is_told_turn_by_turn() {
        let text = |prompt: &str| json!({ "prompt": prompt });
        let of_texts = |bodies: [Value; 2]| {
            two(bodies).map(|mut call| {
                call.begun.route = Route::Completions;
                let answer =
                    wire::answers(Route::Chat, &reply(&mut call).reply.read()).remove(0).message;
                let choice = json!({ "index": 0, "text": answer["content"] });
                reply(&mut call).reply = json!({ "choices": [choice] }).to_string().into();
                call
            })
        };
        let (messages, prompt, answers) = told(&of_texts([text("q"), text("qAmore")]));
        assert_eq!((messages.concat().as_str(), prompt), ("u:qa:Au:morea:B", 1));
        assert_eq!(answers, [Some(1), Some(3)]);
        let (messages, _, answers) = told(&of_texts([text("q"), text("qA")]));
        assert_eq!((messages.concat().as_str(), answers), ("u:qa:AB", vec![None, None]));
    }

    #[test]
    fn words_that_do_not_go_on_are_those_of_the_last_call() {
        let first = json!({ "messages": [say("user", "q")] });
        let other = json!({ "messages": [say("user", "all in one")] });
        let calls = two([first, other]);
        let (messages, _, answers) = told(&calls);
        assert_eq!((messages.concat().as_str(), answers), ("u:all in onea:B", vec![None, Some(1)]));
        let row = &rows_of(&episode(calls.to_vec()))[0];
        assert_eq!(row.dialogue.unread_parts, r#"{"unplaced_answer":1}"#);
    }

    #[test]
    fn calls_of_tools_and_parts_are_kept_where_an_answer_is_joined() {
        let mut begun = json!({ "role": "assistant", "content": "be", "prefix": true });
        let call = json!([{ "id": "c", "type": "function" }]);
        let part = json!([{ "type": "text", "text": "A" }]);
        join(&mut begun, &json!({ "role": "assistant", "content": part, "tool_calls": call }));
        let parts = json!([{ "type": "text", "text": "be" }, { "type": "text", "text": "A" }]);
        let whole = json!({ "role": "assistant", "content": parts, "tool_calls": call });
        assert_eq!(begun, whole);
    }
}
