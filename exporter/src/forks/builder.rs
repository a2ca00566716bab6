//! Describes forks: position, cost, cause and texts.

use episode::{CallKind, ContinueReason};
use serde_json::Value;

use crate::forks::Fork;
use crate::forks::excerpts::{excerpt, id_windows};
use crate::forks::finder::{Departure, departures, shared_tokens};
use crate::forks::rules::classify;
use crate::forks::rules::evidence::{
    CallRelation, ForkCase, ForkIds, HistorySide, SampledSpan, is_near,
};
use crate::forks::rules::messages::thinks;
use crate::forks::token_texts::ForkTexts;
use crate::graph::derive::Derived;
use crate::graph::descendants::is_same_task;
use crate::graph::node::{Node, NodeId};
use crate::graph::scan::RecordedAttempt;
use crate::rows::messages::{answer, sent_conversation};
use crate::rows::row::is_limit;

/// Returns all forks of an attempt, in the order in which their calls began. Without `texts`, text
/// is shown as far as the replies recorded it.
pub(crate) fn forks(
    attempt: &RecordedAttempt,
    derived: &Derived<'_>,
    texts: Option<&ForkTexts>,
) -> Vec<Fork> {
    let found = departures(derived);
    // Replies are read for their texts only where there is something to show.
    if found.is_empty() {
        return Vec::new();
    }
    let recorded;
    let texts = match texts {
        Some(texts) => texts,
        None => {
            recorded = ForkTexts::recorded(&derived.forest.nodes);
            &recorded
        }
    };
    let builder = ForkBuilder { attempt, derived, texts };
    found.into_iter().map(|departure| builder.fork(departure)).collect()
}

/// All that forks are described from.
struct ForkBuilder<'f, 'a> {
    attempt: &'f RecordedAttempt,
    derived: &'f Derived<'a>,
    texts: &'f ForkTexts,
}

impl ForkBuilder<'_, '_> {
    fn fork(&self, departure: Departure) -> Fork {
        let Departure { call, known } = departure;
        let nodes = &self.derived.forest.nodes;
        let (new, old) = (&nodes[call], &nodes[known]);

        // Positions exist only where the ids of both sides are known.
        let mut turns = self.derived.forest.ancestors(known);
        turns.push(known);
        let tokens: Vec<u32> = old.prompt.iter().chain(old.sampled).copied().collect();
        let at = shared_tokens(old, new.prompt);
        let have_ids = old.has_ids && new.has_ids;
        let spans = if have_ids { self.sampled_spans(&turns, at) } else { Vec::new() };
        let ids =
            have_ids.then_some(ForkIds { known: &tokens, sent: new.prompt, at, spans: &spans });

        let mut known_side = history_side(old);
        known_side.messages.extend(answer(old));
        let sent_side = history_side(new);
        let case = ForkCase {
            known: &known_side,
            sent: &sent_side,
            ids,
            relation: self.relation(departure),
            texts: self.texts,
        };
        let causes = classify(&case);
        let excerpt = excerpt(&causes[0], &case);

        let cost = ids.as_ref().map(ForkCost::of);
        let windows = ids.as_ref().map(id_windows).unwrap_or_default();
        let parent = ids.and_then(|ids| turns.iter().find(|n| nodes[**n].path_len() > ids.at));
        let record = &self.attempt.record;
        let cause = causes[0].cause;
        Fork {
            episode_id: record.id.to_string(),
            attempt: record.attempt,
            call_id: new.call_id().to_string(),
            trajectory_id: self.trajectory_id(call),
            parent_call_id: nodes[*parent.unwrap_or(&known)].call_id().to_string(),
            parent_trajectory_id: self.trajectory_id(known),
            kind: self.derived.paths[self.derived.paths.first_of(call)].kind.as_str(),

            position: cost.map(|cost| cost.position),
            in_sampled: cost.map(|cost| cost.in_sampled),
            prefill_tokens: cost.map(|cost| cost.prefill),
            lost_tokens: cost.map(|cost| cost.lost),
            lost_sampled_tokens: cost.map(|cost| cost.lost_sampled),

            cause,
            also: causes[1..].iter().map(|difference| difference.cause).collect(),
            advice: cause.advice(),

            text_before: excerpt.before,
            text_known: excerpt.known,
            text_sent: excerpt.sent,
            text_source: excerpt.source,
            ids_known: windows.known.to_vec(),
            ids_sent: windows.sent.to_vec(),
            continued: new
                .ended
                .continued
                .and_then(|continued| continued.reason)
                .map(ContinueReason::as_str),
        }
    }

    fn trajectory_id(&self, node: NodeId) -> String {
        let record = &self.attempt.record;
        format!("{}/{}/{}", record.id, record.attempt, self.derived.paths.first_of(node).0)
    }

    fn sampled_spans(&self, turns: &[NodeId], at: usize) -> Vec<SampledSpan> {
        let spans = turns.iter().map(|id| {
            let node = &self.derived.forest.nodes[*id];
            let tokens = node.prompt.len()..node.path_len();
            // Rules look only at the replies near the position; the others need not be parsed.
            let answer = is_near(&tokens, at).then(|| answer(node)).flatten();
            SampledSpan {
                tokens,
                message: self.sent_count(*id),
                thinks: answer.as_ref().is_some_and(thinks),
                calls: answer.as_ref().is_some_and(calls_tools),
                is_cut: is_limit(node.choice.and_then(|choice| choice.finish_reason.as_deref())),
            }
        });
        spans.collect()
    }

    /// Counts the messages that a call sent.
    fn sent_count(&self, node: NodeId) -> usize {
        self.derived.forest.message_ids.get(node).map_or(0, |ids| ids.sent().len())
    }

    fn relation(&self, departure: Departure) -> CallRelation {
        let Departure { call, known } = departure;
        let (parent, text_parent) =
            (self.derived.forest.parent(call), self.derived.forest.text_parent(call));
        let is_summary = |node: NodeId| {
            self.derived.forest.nodes[node].agent_task().kind == CallKind::Compaction
        };
        CallRelation {
            continues: parent.or(text_parent).is_some(),
            summary: [Some(call), parent, text_parent].into_iter().flatten().any(is_summary),
            other_agent: !is_same_task(&self.derived.forest, call, known),
            inherited_messages: parent.map(|parent| self.sent_count(parent) + 1),
        }
    }
}

fn calls_tools(message: &Value) -> bool {
    message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
}

/// Cost of a fork, in tokens.
#[derive(Clone, Copy)]
struct ForkCost {
    position: u32,
    in_sampled: bool,
    prefill: u32,
    lost: u32,
    lost_sampled: u32,
}

impl ForkCost {
    fn of(ids: &ForkIds<'_>) -> Self {
        let sampled_behind = |span: &SampledSpan| {
            span.tokens.end - span.tokens.start.max(ids.at).min(span.tokens.end)
        };
        Self {
            position: int(ids.at),
            in_sampled: ids.spans.iter().any(|span| span.tokens.contains(&ids.at)),
            prefill: int(ids.sent.len() - ids.at),
            lost: int(ids.known.len() - ids.at),
            lost_sampled: int(ids.spans.iter().map(sampled_behind).sum()),
        }
    }
}

/// Converts a count of tokens. Prompts of more tokens than u32 can count do not fit into memory.
fn int(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Reads what one side of a fork sent.
fn history_side(node: &Node<'_>) -> HistorySide {
    let wire::Conversation { messages, tools, .. } = sent_conversation(node);
    HistorySide {
        messages,
        tools,
        models: [node.call.begun.model.clone(), node.ended.model.clone()],
        rendering: wire::template_fields(&node.request.read()),
    }
}
