//! The messages of a call as numbers, one for each distinct message of its episode.
//!
//! Spellings of one message share one number (`wire::canonical`): arguments of tools are parsed and
//! sorted by key, ids of tool calls and reasoning are left out, and `null` equals an empty text.

use std::rc::Rc;

use episode::{Body, Call};

use crate::graph::body_messages::BodyMessages;
use crate::graph::message_numbers::{MessageNumbers, is_instruction};
use crate::graph::node::{Node, NodeId, PerNode};
use crate::graph::prefix_index::SymbolPath;

/// The messages of one choice of a call: those sent, and the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MessageIds {
    /// Messages that were sent.
    sent: Vec<u32>,
    /// Number of leading messages that are the system's or the developer's.
    instruction_count: usize,
    /// Positions of the messages of the assistant among those that were sent.
    answered: Vec<u32>,
    /// True where the answer goes on with the last message that was sent.
    continues: bool,
    answer: Option<u32>,
    /// The offered tools as one number; none where none were offered.
    tools: Option<u32>,
    /// Number of the sealed texts that the call sends back. No message tells of them.
    sealed: Option<u32>,
}

impl MessageIds {
    /// Returns all messages that were sent, instructions first.
    pub(crate) fn sent(&self) -> &[u32] {
        &self.sent
    }

    /// Returns true where the answer goes on with the last message that was sent.
    pub(crate) fn continues_last(&self) -> bool {
        self.continues
    }

    /// Returns true where `next` sends these messages unchanged, and behind them a message of the
    /// assistant.
    pub(crate) fn is_answered_in(&self, next: &Self) -> bool {
        let at = self.sent.len();
        let is_answered = next.answered.binary_search(&(at as u32)).is_ok();
        is_answered && next.sent[..at] == self.sent
    }

    /// Returns what a server sealed and the call sends back, such as a compacted history.
    pub(crate) fn sealed(&self) -> Option<u32> {
        self.sealed
    }

    pub(crate) fn offers_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// Returns true where `other` has the same instructions and tools. A template puts both at the
    /// head of the prompt.
    pub(crate) fn has_head_of(&self, other: &Self) -> bool {
        (self.instructions(), self.tools) == (other.instructions(), other.tools)
    }

    /// Returns the leading messages of the system or the developer. Some agents put a clock or the
    /// working folder there, so these change from call to call.
    pub(crate) fn instructions(&self) -> &[u32] {
        &self.sent[..self.instruction_count]
    }

    /// Returns the messages that were sent behind the instructions.
    pub(crate) fn conversation(&self) -> &[u32] {
        &self.sent[self.instruction_count..]
    }

    /// Returns the conversation, split before the last message that was sent.
    pub(crate) fn prompt_path(&self) -> Option<SymbolPath<'_>> {
        let last = self.conversation().len().checked_sub(1)?;
        let (prompt, answer) = self.conversation().split_at(last);
        Some(SymbolPath { prompt, answer })
    }

    /// Returns the conversation and the answer; none where there is no answer to continue.
    pub(crate) fn path(&self) -> Option<SymbolPath<'_>> {
        let answer = std::slice::from_ref(self.answer.as_ref()?);
        Some(SymbolPath { prompt: self.conversation(), answer })
    }
}

/// Reads the bodies of all calls. Gives one entry a node.
pub(crate) fn message_ids(
    nodes: &PerNode<Node<'_>>,
    parent: impl Fn(NodeId) -> Option<NodeId>,
) -> PerNode<MessageIds> {
    let mut numbers = MessageNumbers::default();
    let mut found = read_requests(&mut numbers, nodes, parent);

    let mut next = 0;
    for choices in nodes.as_slice().chunk_by(|a, b| a.call_id() == b.call_id()) {
        let answers = wire::answers(choices[0].call.begun.route, &choices[0].ended.reply.read());
        for node in choices {
            let own = answers.iter().find(|answer| answer.index == node.index);
            found[NodeId(next)].answer = own.map(|answer| numbers.number(&answer.message));
            next += 1;
        }
    }
    found
}

/// Reads the request bodies of all calls, and no replies.
pub(crate) fn sent_message_ids(
    nodes: &PerNode<Node<'_>>,
    parent: impl Fn(NodeId) -> Option<NodeId>,
) -> PerNode<MessageIds> {
    read_requests(&mut MessageNumbers::default(), nodes, parent)
}

/// Reads the request bodies of all calls.
///
/// A message that is sent again byte for byte is read once. The part of a body that it shares with
/// the body of the call that it continues is not scanned again.
fn read_requests(
    numbers: &mut MessageNumbers,
    nodes: &PerNode<Node<'_>>,
    parent: impl Fn(NodeId) -> Option<NodeId>,
) -> PerNode<MessageIds> {
    let mut found: Vec<MessageIds> = Vec::with_capacity(nodes.len());
    let mut bodies: Vec<Option<Rc<BodyMessages>>> = Vec::with_capacity(nodes.len());

    for choices in nodes.as_slice().chunk_by(|a, b| a.call_id() == b.call_id()) {
        let Node { call, request, .. } = &choices[0];
        let first = found.len();
        // The body most likely shared is the parent's, else that of the call before.
        let parent = parent(NodeId(first)).map(|parent| parent.0).filter(|parent| *parent < first);
        let previous = parent.or(first.checked_sub(1)).and_then(|before| bodies[before].as_deref());
        let (sent, body) = read_request(numbers, call, request, previous);
        let body = body.map(Rc::new);

        for _ in choices {
            found.push(sent.clone());
            bodies.push(body.clone());
        }
    }
    found.into_iter().collect()
}

/// Reads the messages that a call sent, in one pass where its body allows that. `whole` is the
/// request with the conversation that it names.
fn read_request(
    numbers: &mut MessageNumbers,
    call: &Call,
    whole: &Body,
    previous: Option<&BodyMessages>,
) -> (MessageIds, Option<BodyMessages>) {
    let (route, request) = (call.begun.route, &call.begun.request);
    let bytes = request.read();
    let in_one_pass = previous
        .and_then(|previous| previous.continued(route, request, &bytes, numbers))
        .or_else(|| BodyMessages::read(route, request, &bytes, numbers));
    if let Some(body) = in_one_pass {
        let instructions = body.messages.iter().take_while(|message| message.is_instruction);
        let ids = MessageIds {
            sent: body.messages.iter().map(|message| message.number).collect(),
            instruction_count: instructions.count(),
            answered: positions(&body.messages, |message| message.is_answer),
            continues: body.continues,
            answer: None,
            tools: body.tools,
            sealed: None,
        };
        return (ids, Some(body));
    }

    // Other bodies are parsed whole, with the conversation that they name. A translated call does
    // not ask for the rest of a message, as Anthropic's API gives it.
    let is_closed_by_translation =
        call.ended.as_ref().is_some_and(|ended| ended.translated.is_some());
    let sent = wire::conversation(route, &whole.read()).unwrap_or_default();
    let ids = MessageIds {
        sent: sent.messages.iter().map(|message| numbers.number(message)).collect(),
        instruction_count: sent.messages.iter().take_while(|m| is_instruction(m)).count(),
        answered: positions(&sent.messages, wire::is_answer),
        continues: sent.is_begun && !is_closed_by_translation,
        answer: None,
        tools: numbers.of_tools(sent.tools),
        sealed: numbers.of_sealed(&sent.messages),
    };
    (ids, None)
}

fn positions<T>(messages: &[T], has: impl Fn(&T) -> bool) -> Vec<u32> {
    let found = (0..).zip(messages).filter(|(_, message)| has(message));
    found.map(|(at, _)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::scan::choice_nodes;
    use crate::tests::fixture::call;

    fn alone(call: &Call) -> MessageIds {
        read_request(&mut MessageNumbers::default(), call, &call.begun.request, None).0
    }

    #[test]
    fn one_pass_over_a_body_finds_what_a_whole_reading_finds() {
        let tools = r#""tools":[{"type":"function","function":{"name":"f"}}]"#;
        let bodies = [
            r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]}"#,
            r#"{ "messages": [ {"content":"s", "role":"system"}, {"role":"user"} ] }"#,
            r#"{"messages":[{"role":"assistant","content":null},3,{"role":"user"}],"tools":null}"#,
            r#"{"messages":null,"tools":[]}"#,
            r#"{"messages":"a","tools":7}"#,
            r#"{"n":1}"#,
            "no JSON",
        ];
        let with_tools = format!(r#"{{{tools},"messages":[{{"role":"user","content":"a"}}]}}"#);
        for body in bodies.into_iter().chain([with_tools.as_str()]) {
            // A name that is given twice is not read in one pass.
            let whole = body.replacen('{', r#"{"tools":0,"messages":0,"#, 1);
            let calls = [body, &whole].map(|body| {
                let mut call = call(1, &[1], &[&[2]]);
                call.begun.request = body.to_owned().into();
                call
            });
            let [quick, slow] = calls.each_ref().map(alone);
            assert_eq!(quick, slow, "{body}");
            let both = [calls[1].clone(), calls[0].clone()];
            let found = message_ids(&choice_nodes(&both).0, |_| None);
            assert_eq!(found[NodeId(0)].sent(), found[NodeId(1)].sent(), "{body}");
        }
    }

    #[test]
    fn a_body_that_goes_on_from_another_says_what_it_says_by_itself() {
        let a = r#"{"role":"user","content":"a"}"#;
        let b = r#"{"role":"assistant","content":"b, ] }"}"#;
        let bodies = [
            format!(r#"{{"messages":[{a}],"n":1}}"#),
            format!(r#"{{"messages":[{a},{b}],"n":1}}"#),
            format!(r#"{{"messages":[{a} , {b},{a}],"tools":[{{"n":1}}]}}"#),
            format!(r#"{{"messages":[{a},{b},{a}]}}"#),
            format!(r#"{{"messages":[{a},{b}]}}"#),
            format!(r#"{{"messages":[{b},{a}]}}"#),
            format!(r#"{{"messages":[{a},]}}"#),
            format!(r#"{{"messages":[{a},{b},]}}"#),
            format!(r#"{{"messages":[{a}"#),
            format!(r#"{{"messages":[{a} {b}]}}"#),
            format!("{{\"messages\":[{a}\u{c},{b}]}}"),
            format!(r#"{{"messages":[{a}]}} {b}"#),
            format!(r#"{{"messages":[{a}],"messages":[{b}]}}"#),
            r#"{"messages":[3]}"#.to_owned(),
            r#"{"messages":[35]}"#.to_owned(),
            r#"{"messages":[35,3]}"#.to_owned(),
            r#"{"messages":[3.5]}"#.to_owned(),
            r#"{"messages":[]}"#.to_owned(),
        ];
        let calls: Vec<Call> = bodies
            .iter()
            .map(|body| {
                let mut call = call(1, &[1], &[&[2]]);
                call.begun.request = body.clone().into();
                call
            })
            .collect();
        for before in &calls {
            for call in &calls {
                let mut numbers = MessageNumbers::default();
                let body = read_request(&mut numbers, before, &before.begun.request, None).1;
                let alone = read_request(&mut numbers, call, &call.begun.request, None).0;
                let (said, _) =
                    read_request(&mut numbers, call, &call.begun.request, body.as_ref());
                let request =
                    |c: &Call| String::from_utf8_lossy(&c.begun.request.read()).into_owned();
                assert_eq!(said, alone, "{} after {}", request(call), request(before));
            }
        }
    }
}
