//! Resolve: of paths with the same content, the one that a call continues.
//!
//! What the agent says of itself decides first, then the model, then what the call quotes, then,
//! among choices of one call, their numbers, then time. Where all leave more than one, none is
//! taken: a guess would be a false lineage.

use episode::Lineage;
use serde_json::Value;

use crate::graph::node::Node;
use crate::notes::Told;

/// Which candidate a call continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// There is none.
    Nothing,
    /// This one, and what told it from its equals, where it had any.
    One(usize, Option<Told>),
    /// Nothing tells these apart.
    Unclear(Vec<usize>),
}

/// Keeps the candidates that one kind of evidence speaks for, where it speaks for any.
type Step = fn(&[Node<'_>], &mut Vec<usize>, &Node<'_>);

/// Of `candidates`, whose paths are equal, the one that `child` continues.
pub(crate) fn resolve(
    nodes: &[Node<'_>],
    mut candidates: Vec<usize>,
    child: &Node<'_>,
) -> Resolved {
    let steps: [(Told, Step); 5] = [
        (Told::Agent, by_agent),
        (Told::Model, by_model),
        (Told::Messages, by_messages),
        (Told::Choice, by_choice),
        (Told::Time, by_time),
    ];
    let mut told = None;
    for (by, step) in steps {
        if candidates.len() > 1 {
            step(nodes, &mut candidates, child);
            told = Some(by);
        }
    }
    match candidates.as_slice() {
        [] => Resolved::Nothing,
        [only] => Resolved::One(*only, told),
        _ => Resolved::Unclear(candidates),
    }
}

/// Keeps those that `holds` is true of, where it is true of any.
pub(crate) fn narrow(candidates: &mut Vec<usize>, holds: impl Fn(usize) -> bool) {
    let kept: Vec<usize> = candidates.iter().copied().filter(|i| holds(*i)).collect();
    if !kept.is_empty() {
        *candidates = kept;
    }
}

fn by_agent(nodes: &[Node<'_>], candidates: &mut Vec<usize>, child: &Node<'_>) {
    let of = |node: usize| &nodes[node].call.begun.lineage;
    let this = &child.call.begun.lineage;
    let name = |l: &Lineage| (l.session.clone(), l.agent.clone());
    if candidates.iter().any(|i| name(of(*i)) == name(this)) {
        return narrow(candidates, |i| name(of(i)) == name(this));
    }
    // An agent that was just started inherits the history of the one that started it.
    let parent = this.parent.as_deref();
    narrow(candidates, |i| parent.is_some() && of(i).agent.as_deref() == parent);
}

fn by_messages(nodes: &[Node<'_>], candidates: &mut Vec<usize>, child: &Node<'_>) {
    let begun = &child.call.begun;
    let Some(sent) = wire::conversation(begun.route, &child.request) else { return };
    narrow(candidates, |i| is_quoted(&nodes[i], &sent.messages));
}

/// Whether `sent` starts with what `node` heard and answered, its tool calls under the ids that
/// this choice gave them.
fn is_quoted(node: &Node<'_>, sent: &[Value]) -> bool {
    let begun = &node.call.begun;
    let Some(heard) = wire::conversation(begun.route, &node.request) else { return false };
    let Some((quoted, rest)) = sent.split_at_checked(heard.messages.len()) else { return false };
    let answers = wire::answers(begun.route, &node.ended.reply);
    let answer = answers.into_iter().find(|a| a.index == node.index).map(|a| a.message);
    let is_same = |a: &Value, b: &Value| wire::canonical(a) == wire::canonical(b);
    let is_answer = |quoted: &Value, answer: &Value| {
        is_same(quoted, answer) && tool_ids(quoted) == tool_ids(answer)
    };
    quoted.iter().zip(&heard.messages).all(|(a, b)| is_same(a, b))
        && rest.first().zip(answer.as_ref()).is_some_and(|(a, b)| is_answer(a, b))
}

fn tool_ids(message: &Value) -> Vec<Option<&str>> {
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    calls.map(|call| call.get("id").and_then(Value::as_str)).collect()
}

/// Those that the same model answered: the tokens of two models are never one policy's.
fn by_model(nodes: &[Node<'_>], candidates: &mut Vec<usize>, child: &Node<'_>) {
    narrow(candidates, |i| nodes[i].model() == child.model());
}

/// Of each call the choice with the lowest number, which stands first. They are alike in all that
/// is recorded, so that the path has the same tokens whichever is taken.
fn by_choice(nodes: &[Node<'_>], candidates: &mut Vec<usize>, _: &Node<'_>) {
    candidates.dedup_by_key(|i| nodes[*i].call.begun.call_id);
}

/// The one that ended last before the call began.
fn by_time(nodes: &[Node<'_>], candidates: &mut Vec<usize>, child: &Node<'_>) {
    let ended = |i: usize| nodes[i].ended.ended_at;
    let begun = child.call.begun.started_at;
    let last = candidates.iter().map(|i| ended(*i)).filter(|at| *at <= begun).max();
    narrow(candidates, |i| Some(ended(i)) == last);
}

#[cfg(test)]
mod tests {
    use episode::Call;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::{call, reply, with_bodies};
    use crate::links;

    fn by(agent: &str, mut call: Call) -> Call {
        call.begun.lineage.agent = Some(agent.to_owned());
        call
    }

    /// The number of the call that the last one continues, and what told it from its equals.
    fn parent(calls: &[Call]) -> (Option<u128>, Vec<Told>) {
        let (links, notes) = links(calls);
        let parent = links.last().unwrap().parent;
        (parent.map(|(call, _)| call.0.as_u128()), notes.told.into_keys().collect())
    }

    #[test]
    fn an_agent_that_was_just_started_inherits_from_the_one_that_started_it() {
        let mut child = by("c", call(3, &[1, 2, 3], &[&[4]]));
        child.begun.lineage.parent = Some("a".to_owned());
        let calls = [by("a", call(1, &[1], &[&[2]])), by("b", call(2, &[1], &[&[2]])), child];
        assert_eq!(parent(&calls), (Some(1), vec![Told::Agent]));
    }

    fn asked(picture: &str) -> Value {
        json!({ "role": "user", "content": [{ "type": "image", "url": picture }] })
    }

    #[test]
    fn the_same_tokens_for_other_pictures_are_told_apart_by_the_messages() {
        let answer = json!({ "role": "assistant", "content": "x" });
        let next = json!({ "role": "user", "content": "more" });
        let calls = [
            with_bodies(call(1, &[1], &[&[2]]), &[asked("cat")], "x"),
            with_bodies(call(2, &[1], &[&[2]]), &[asked("dog")], "x"),
            with_bodies(call(3, &[1, 2, 3], &[&[4]]), &[asked("cat"), answer, next], "y"),
        ];
        assert_eq!(parent(&calls), (Some(1), vec![Told::Messages]));
    }

    #[test]
    fn time_is_asked_last_and_only_of_what_ended_before() {
        let mut calls =
            [call(1, &[1], &[&[2]]), call(2, &[1], &[&[2]]), call(3, &[1, 2, 3], &[&[4]])];
        assert_eq!(parent(&calls), (Some(2), vec![Told::Time]));
        reply(&mut calls[1]).ended_at = 31;
        assert_eq!(parent(&calls), (Some(1), vec![Told::Time]));
        reply(&mut calls[0]).ended_at = 31;
        assert_eq!(parent(&calls), (None, vec![]));
    }

    #[test]
    fn of_choices_of_one_call_that_are_alike_the_lowest_is_continued() {
        let calls = [call(1, &[1], &[&[2], &[3], &[3]]), call(2, &[1, 3, 4], &[&[5]])];
        let (found, notes) = links(&calls);
        assert_eq!(found[3].parent, Some((calls[0].begun.call_id, 1)));
        assert_eq!(
            (notes.told.into_keys().collect::<Vec<_>>(), notes.ambiguous),
            (vec![Told::Choice], 0)
        );
    }

    #[test]
    fn of_equals_the_one_of_the_same_model_is_continued() {
        let mut other = call(2, &[1], &[&[2]]);
        reply(&mut other).model = Some("judge".to_owned());
        let calls = [call(1, &[1], &[&[2]]), other, call(3, &[1, 2, 3], &[&[4]])];
        assert_eq!(parent(&calls), (Some(1), vec![Told::Model]));
    }
}
