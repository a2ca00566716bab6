//! Chooses the parent of a call among paths with the same content.
//!
//! Evidence is asked in this order: the agent's own statement, the model, the quoted messages, the
//! number of the choice within its call, and time. Where several candidates remain, none is taken:
//! a guess would be a false lineage.

use episode::Lineage;
use serde_json::Value;

use crate::graph::node::{Node, NodeId, PerNode};
use crate::notes::ParentEvidence;

/// Result of the choice between candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// There is no candidate.
    Nothing,
    /// One candidate remains.
    One {
        parent: NodeId,
        /// The last evidence that was needed; none for a single candidate.
        evidence: Option<ParentEvidence>,
    },
    /// Nothing tells these candidates apart.
    Ambiguous(Vec<NodeId>),
}

/// Keeps the candidates that one kind of evidence supports, where it supports any.
type EvidenceRule = fn(&PerNode<Node<'_>>, &mut Vec<NodeId>, &Node<'_>);

/// Evidence in the order in which it is asked.
const RULES: [(ParentEvidence, EvidenceRule); 5] = [
    (ParentEvidence::Agent, by_agent),
    (ParentEvidence::Model, by_model),
    (ParentEvidence::Messages, by_messages),
    (ParentEvidence::Choice, by_choice),
    (ParentEvidence::Time, by_time),
];

/// Chooses the candidate that `child` continues. The paths of all candidates are equal.
pub(crate) fn resolve(
    nodes: &PerNode<Node<'_>>,
    mut candidates: Vec<NodeId>,
    child: &Node<'_>,
) -> Resolution {
    let mut evidence = None;
    for (by, keep_supported) in RULES {
        if candidates.len() > 1 {
            keep_supported(nodes, &mut candidates, child);
            evidence = Some(by);
        }
    }
    match candidates.as_slice() {
        [] => Resolution::Nothing,
        [only] => Resolution::One { parent: *only, evidence },
        _ => Resolution::Ambiguous(candidates),
    }
}

/// Keeps the candidates that `holds` is true of, where it is true of any.
pub(crate) fn keep_if_any(candidates: &mut Vec<NodeId>, holds: impl Fn(NodeId) -> bool) {
    let kept: Vec<NodeId> = candidates.iter().copied().filter(|node| holds(*node)).collect();
    if !kept.is_empty() {
        *candidates = kept;
    }
}

fn by_agent(nodes: &PerNode<Node<'_>>, candidates: &mut Vec<NodeId>, child: &Node<'_>) {
    let lineage = &child.call.begun.lineage;
    let is_same_agent = |candidate: NodeId| is_same_agent(lineage_of(nodes, candidate), lineage);
    if candidates.iter().any(|candidate| is_same_agent(*candidate)) {
        return keep_if_any(candidates, is_same_agent);
    }

    // A new agent inherits the history of the one that started it.
    if let Some(starter) = lineage.parent.as_deref() {
        keep_if_any(candidates, |candidate| {
            lineage_of(nodes, candidate).agent.as_deref() == Some(starter)
        });
    }
}

fn lineage_of<'a>(nodes: &PerNode<Node<'a>>, node: NodeId) -> &'a Lineage {
    &nodes[node].call.begun.lineage
}

fn is_same_agent(one: &Lineage, other: &Lineage) -> bool {
    (&one.session, &one.agent) == (&other.session, &other.agent)
}

/// Keeps the candidates that the same policy answered.
fn by_model(nodes: &PerNode<Node<'_>>, candidates: &mut Vec<NodeId>, child: &Node<'_>) {
    keep_if_any(candidates, |candidate| nodes[candidate].policy == child.policy);
}

fn by_messages(nodes: &PerNode<Node<'_>>, candidates: &mut Vec<NodeId>, child: &Node<'_>) {
    let route = child.call.begun.route;
    let Some(sent) = wire::conversation(route, &child.request.read()) else { return };
    keep_if_any(candidates, |candidate| is_quoted(&nodes[candidate], &sent.messages));
}

/// Returns true where `sent` starts with the prompt and the answer of `node`, its tool calls under
/// the ids that this choice gave them.
fn is_quoted(node: &Node<'_>, sent: &[Value]) -> bool {
    let route = node.call.begun.route;
    let Some(prompt) = wire::conversation(route, &node.request.read()) else { return false };
    let Some((quoted, rest)) = sent.split_at_checked(prompt.messages.len()) else { return false };
    let answers = wire::answers(route, &node.ended.reply.read());
    let answer = answers.into_iter().find(|answer| answer.index == node.index);

    quoted.iter().zip(&prompt.messages).all(|(a, b)| is_same_message(a, b))
        && rest.first().zip(answer).is_some_and(|(quoted, answer)| {
            is_same_message(quoted, &answer.message)
                && tool_call_ids(quoted) == tool_call_ids(&answer.message)
        })
}

fn is_same_message(one: &Value, other: &Value) -> bool {
    wire::canonical(one) == wire::canonical(other)
}

fn tool_call_ids(message: &Value) -> Vec<Option<&str>> {
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    calls.map(|call| call.get("id").and_then(Value::as_str)).collect()
}

/// Keeps the first choice of each call. Choices that are still candidates are alike in all that is
/// recorded, so the path has the same tokens whichever is taken.
fn by_choice(nodes: &PerNode<Node<'_>>, candidates: &mut Vec<NodeId>, _: &Node<'_>) {
    candidates.dedup_by_key(|candidate| nodes[*candidate].call_id());
}

/// Keeps the candidate that ended last before the call began.
fn by_time(nodes: &PerNode<Node<'_>>, candidates: &mut Vec<NodeId>, child: &Node<'_>) {
    let begun = child.call.begun.started_at;
    let ends = candidates.iter().map(|candidate| nodes[*candidate].ended.ended_at);
    let last = ends.filter(|ended| *ended <= begun).max();
    keep_if_any(candidates, |candidate| Some(nodes[candidate].ended.ended_at) == last);
}

#[cfg(test)]
mod tests {
    use episode::Call;
    use serde_json::{Value, json};

    use super::*;
    use crate::choice_links;
    use crate::tests::fixture::{call, reply, with_bodies};

    fn by(agent: &str, mut call: Call) -> Call {
        call.begun.lineage.agent = Some(agent.to_owned());
        call
    }

    /// The number of the call that the last one continues, and what told it from its equals.
    fn parent(calls: &[Call]) -> (Option<u128>, Vec<ParentEvidence>) {
        let (links, notes) = choice_links(calls);
        let parent = links.last().unwrap().parent;
        (parent.map(|(call, _)| call.0.as_u128()), notes.told.into_keys().collect())
    }

    #[test]
    fn a_new_agent_inherits_from_the_one_that_started_it() {
        let mut child = by("c", call(3, &[1, 2, 3], &[&[4]]));
        child.begun.lineage.parent = Some("a".to_owned());
        let calls = [by("a", call(1, &[1], &[&[2]])), by("b", call(2, &[1], &[&[2]])), child];
        assert_eq!(parent(&calls), (Some(1), vec![ParentEvidence::Agent]));
    }

    fn asked(picture: &str) -> Value {
        json!({ "role": "user", "content": [{ "type": "image", "url": picture }] })
    }

    #[test]
    fn messages_tell_equal_tokens_of_other_pictures_apart() {
        let answer = json!({ "role": "assistant", "content": "x" });
        let next = json!({ "role": "user", "content": "more" });
        let calls = [
            with_bodies(call(1, &[1], &[&[2]]), &[asked("cat")], "x"),
            with_bodies(call(2, &[1], &[&[2]]), &[asked("dog")], "x"),
            with_bodies(call(3, &[1, 2, 3], &[&[4]]), &[asked("cat"), answer, next], "y"),
        ];
        assert_eq!(parent(&calls), (Some(1), vec![ParentEvidence::Messages]));
    }

    #[test]
    fn time_is_asked_last_and_only_of_what_ended_before() {
        let mut calls =
            [call(1, &[1], &[&[2]]), call(2, &[1], &[&[2]]), call(3, &[1, 2, 3], &[&[4]])];
        assert_eq!(parent(&calls), (Some(2), vec![ParentEvidence::Time]));
        reply(&mut calls[1]).ended_at = 31;
        assert_eq!(parent(&calls), (Some(1), vec![ParentEvidence::Time]));
        reply(&mut calls[0]).ended_at = 31;
        assert_eq!(parent(&calls), (None, vec![]));
    }

    #[test]
    fn of_equal_choices_of_one_call_the_lowest_is_continued() {
        let calls = [call(1, &[1], &[&[2], &[3], &[3]]), call(2, &[1, 3, 4], &[&[5]])];
        let (found, notes) = choice_links(&calls);
        assert_eq!(found[3].parent, Some((calls[0].begun.call_id, 1)));
        assert_eq!(
            (notes.told.into_keys().collect::<Vec<_>>(), notes.ambiguous),
            (vec![ParentEvidence::Choice], 0)
        );
    }

    #[test]
    fn of_equals_the_one_of_the_same_model_is_continued() {
        let mut other = call(2, &[1], &[&[2]]);
        reply(&mut other).model = Some("judge".to_owned());
        let calls = [call(1, &[1], &[&[2]]), other, call(3, &[1, 2, 3], &[&[4]])];
        assert_eq!(parent(&calls), (Some(1), vec![ParentEvidence::Model]));
    }
}
