//! Said: the messages of a call as numbers, one for each distinct message of its episode.
//!
//! Spellings of one message are one number: arguments of tools are parsed and sorted by key, ids
//! of tool calls and reasoning are left out, `null` and an empty text are the same
//! (`wire::canonical`).

use std::rc::Rc;

use episode::Call;

use crate::graph::message_numbers::{Words, is_instruction};
use crate::graph::node::Node;
use crate::graph::written::Written;

/// What one choice of a call heard and said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// The messages that were sent.
    history: Vec<u32>,
    /// How many of the first ones are instructions: the system's or the developer's.
    instructions: usize,
    /// The message that was answered.
    answer: Option<u32>,
    /// The tools that were offered, as one number; none without any.
    tools: Option<u32>,
}

impl Said {
    /// The whole history, instructions first.
    pub(crate) fn history(&self) -> &[u32] {
        &self.history
    }

    /// Whether tools were offered.
    pub(crate) fn offers_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// Whether `other` has the same instructions and tools: they stand at the head of a prompt.
    pub(crate) fn has_head_of(&self, other: &Self) -> bool {
        (self.instructions(), self.tools) == (other.instructions(), other.tools)
    }

    /// The messages before the conversation. Clocks and folders in them change from call to call.
    pub(crate) fn instructions(&self) -> &[u32] {
        &self.history[..self.instructions]
    }

    /// The messages of the conversation itself.
    pub(crate) fn spoken(&self) -> &[u32] {
        &self.history[self.instructions..]
    }

    /// What was said before the last message that was sent, and that message.
    pub(crate) fn heard(&self) -> Option<(&[u32], &[u32])> {
        let before = self.spoken().len().checked_sub(1)?;
        Some(self.spoken().split_at(before))
    }

    /// What was said up to the answer, and the answer; none where there is none to continue.
    pub(crate) fn path(&self) -> Option<(&[u32], &[u32])> {
        Some((self.spoken(), std::slice::from_ref(self.answer.as_ref()?)))
    }
}

/// Reads the bodies of all calls. One entry a node. A message that is sent again in the same
/// letters is read once, and what a body has in common with that of the call it goes on from is
/// not looked through again.
pub(crate) fn said(nodes: &[Node<'_>], parents: &[Option<usize>]) -> Vec<Said> {
    let mut words = Words::default();
    let mut found = Vec::with_capacity(nodes.len());
    let mut read: Vec<Option<Rc<Written<'_>>>> = Vec::with_capacity(nodes.len());
    for choices in nodes.chunk_by(|a, b| a.call.begun.call_id == b.call.begun.call_id) {
        let first = found.len();
        let parent = parents[first].filter(|parent| *parent < first);
        let before = parent.or(first.checked_sub(1)).and_then(|before| read[before].clone());
        let Node { call, request, .. } = &choices[0];
        let (heard, written) = heard(&mut words, call, request, before.as_deref());
        let written = written.map(Rc::new);
        let answers = wire::answers(call.begun.route, &choices[0].ended.reply);
        for node in choices {
            let answer = answers.iter().find(|a| a.index == node.index);
            let answer = answer.map(|a| words.number(&a.message));
            found.push(Said { answer, ..heard.clone() });
            read.push(written.clone());
        }
    }
    found
}

fn heard<'a>(
    words: &mut Words<'a>,
    call: &'a Call,
    whole: &[u8],
    before: Option<&Written<'a>>,
) -> (Said, Option<Written<'a>>) {
    let (route, request) = (call.begun.route, &call.begun.request);
    if let Some(written) = before
        .and_then(|before| before.continued(route, request, words))
        .or_else(|| Written::whole(route, request, words))
    {
        let said = Said {
            history: written.messages.iter().map(|known| known.number).collect(),
            instructions: written.messages.iter().take_while(|known| known.is_instruction).count(),
            answer: None,
            tools: written.tools,
        };
        return (said, Some(written));
    }
    let asked = wire::conversation(route, whole).unwrap_or_default();
    let said = Said {
        history: asked.messages.iter().map(|m| words.number(m)).collect(),
        instructions: asked.messages.iter().take_while(|m| is_instruction(m)).count(),
        answer: None,
        tools: words.of_tools(asked.tools),
    };
    (said, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::call;
    use crate::graph::scan::nodes;

    fn alone(call: &Call) -> Said {
        heard(&mut Words::default(), call, &call.begun.request, None).0
    }

    #[test]
    fn a_body_that_is_read_in_one_pass_says_what_it_says_when_it_is_read_whole() {
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
            let said = said(&nodes(&both).0, &[None, None]);
            assert_eq!(said[0].history(), said[1].history(), "{body}");
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
                let mut words = Words::default();
                let written = heard(&mut words, before, &before.begun.request, None).1;
                let alone = heard(&mut words, call, &call.begun.request, None).0;
                let (said, _) = heard(&mut words, call, &call.begun.request, written.as_ref());
                let request = |c: &Call| String::from_utf8_lossy(&c.begun.request).into_owned();
                assert_eq!(said, alone, "{} after {}", request(call), request(before));
            }
        }
    }
}
