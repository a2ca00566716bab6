//! The kinds of paths, and the reasons for them.
//!
//! The agent's own statement about a call decides (`Begun::lineage`). Where it made none, the place
//! in the forest and the messages do.

use episode::{CallKind, Outcome, TrajectoryKind};
use serde_json::Value;

use crate::graph::descendants::{Descendants, is_same_task};
use crate::graph::forest::Forest;
use crate::graph::message_ids::MessageIds;
use crate::graph::node::{Node, NodeId};

/// Reason why a path is of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KindReason {
    /// An earlier try at the same prompt did not end well.
    AfterFailure,
    /// It begins with the summary of an earlier conversation.
    AfterSummary,
    /// Nothing tells which of several equal paths it continues.
    AmbiguousParent,
    /// It is the first conversation of the episode that nothing else applies to.
    FirstConversation,
    /// It continues a path in text; the server reported no ids of one of the two.
    IdsMissing,
    /// It starts with tokens of another path and then leaves it.
    LeftHistory,
    /// The agent stated it: by a header, in the metadata, or by the words of its request.
    Lineage,
    /// It shares no turn with another conversation.
    NewConversation,
    /// It asks for one token.
    OneToken,
    /// It goes on with the history of another model.
    OtherModel,
    /// It offers no tools and asks another model than a conversation that does.
    OtherModelWithoutTools,
    /// It has other instructions than the main conversation.
    OtherInstructions,
    /// The client counted the tries.
    RetryCount,
    /// It continues a path in text, but the tokens differ.
    RewrittenHistory,
    /// It answers a prompt that has another answer.
    SamePrompt,
}

impl KindReason {
    /// All reasons, sorted by word.
    pub const ALL: [Self; 15] = [
        Self::AfterFailure,
        Self::AfterSummary,
        Self::AmbiguousParent,
        Self::FirstConversation,
        Self::IdsMissing,
        Self::LeftHistory,
        Self::Lineage,
        Self::NewConversation,
        Self::OneToken,
        Self::OtherInstructions,
        Self::OtherModel,
        Self::OtherModelWithoutTools,
        Self::RetryCount,
        Self::RewrittenHistory,
        Self::SamePrompt,
    ];

    /// Returns the word of the column `kind_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AfterFailure => "after_failure",
            Self::AfterSummary => "after_summary",
            Self::AmbiguousParent => "ambiguous_parent",
            Self::FirstConversation => "first_conversation",
            Self::IdsMissing => "ids_missing",
            Self::LeftHistory => "left_history",
            Self::Lineage => "lineage",
            Self::NewConversation => "new_conversation",
            Self::OneToken => "one_token",
            Self::OtherInstructions => "other_instructions",
            Self::OtherModel => "other_model",
            Self::OtherModelWithoutTools => "other_model_without_tools",
            Self::RetryCount => "retry_count",
            Self::RewrittenHistory => "rewritten_history",
            Self::SamePrompt => "same_prompt",
        }
    }
}

/// Decides the kinds of the paths of one forest.
pub(crate) struct Kinds<'f, 'a> {
    forest: &'f Forest<'a>,
    descendants: &'f Descendants,
    /// Root of the main conversation.
    main: Option<NodeId>,
}

impl<'f, 'a> Kinds<'f, 'a> {
    pub(crate) fn new(forest: &'f Forest<'a>, descendants: &'f Descendants) -> Self {
        let mut kinds = Self { forest, descendants, main: None };
        let roots = descendants.roots.iter().copied();
        let main_roots: Vec<NodeId> = roots.filter(|root| kinds.may_be_main(*root)).collect();
        let first_clear = main_roots
            .iter()
            .find(|root| !forest.is_ambiguous(**root) && kinds.auxiliary_reason(**root).is_none());
        kinds.main = first_clear.or(main_roots.first()).copied();
        kinds
    }

    fn may_be_main(&self, root: NodeId) -> bool {
        let is_leading = self.descendants[root].leading_try.is_none();
        let is_of_main = self.forest.nodes[root].agent_task().kind == CallKind::Main;
        is_of_main && is_leading && !self.failed_alone(root)
    }

    /// Returns true for a call that the server failed, and that nothing goes on from.
    fn failed_alone(&self, node: NodeId) -> bool {
        let outcome = self.forest.nodes[node].ended.outcome;
        let has_failed = matches!(outcome, Outcome::UpstreamFailed | Outcome::Refused);
        has_failed && !self.descendants.is_continued(node)
    }

    /// Returns the kind of the path that begins to differ from others at `start`. `kind_of_node`
    /// gives the kind of the path that a node belongs to, where that is known.
    pub(crate) fn of(
        &self,
        start: NodeId,
        kind_of_node: impl Fn(NodeId) -> Option<TrajectoryKind>,
    ) -> (TrajectoryKind, KindReason) {
        // A retry or a sibling is that first, whichever agent made it and for whatever purpose.
        if let Some(found) = self.of_try(start) {
            return found;
        }
        match self.forest.nodes[start].agent_task().kind {
            CallKind::Compaction => return (TrajectoryKind::Compaction, KindReason::Lineage),
            CallKind::Auxiliary => return (TrajectoryKind::Auxiliary, KindReason::Lineage),
            CallKind::Subagent => return (TrajectoryKind::Subagent, KindReason::Lineage),
            CallKind::Main => {}
        }
        if self.descendants[start].leading_try.is_some() {
            return (TrajectoryKind::Fork, KindReason::LeftHistory);
        }

        match (self.forest.parent(start), self.forest.text_parent(start)) {
            (Some(from), _) | (_, Some(from)) if self.is_summary(from) => {
                (TrajectoryKind::Main, KindReason::AfterSummary)
            }
            (_, Some(from)) => self.of_text_child(start, from, kind_of_node(from)),
            (Some(from), None) => self.of_child(start, from, kind_of_node(from)),
            (None, None) => self.of_root(start),
        }
    }

    /// Returns the kind of a try that does not lead the answers to its prompt.
    fn of_try(&self, start: NodeId) -> Option<(TrajectoryKind, KindReason)> {
        let leads = self.descendants[start].leading_try.is_none() && !self.has_twin_with_ids(start);
        if leads || self.descendants.is_continued(start) {
            return None;
        }
        let failed = self.forest.nodes[start].ended.outcome != Outcome::Complete;
        Some(match (self.descendants[start].superseded, failed) {
            (true, true) => (TrajectoryKind::Retry, KindReason::AfterFailure),
            (true, false) => (TrajectoryKind::Retry, KindReason::RetryCount),
            (false, _) => (TrajectoryKind::Sibling, KindReason::SamePrompt),
        })
    }

    /// Returns true where another choice of the call has ids and this one has none.
    fn has_twin_with_ids(&self, start: NodeId) -> bool {
        let nodes = self.forest.nodes.as_slice();
        let node = &nodes[start.0];
        let before = nodes[..start.0].iter().rev();
        let mut twins = before.take_while(|other| other.call_id() == node.call_id());
        !node.has_ids && twins.any(|twin| twin.has_ids)
    }

    fn is_summary(&self, node: NodeId) -> bool {
        self.forest.nodes[node].agent_task().kind == CallKind::Compaction
    }

    /// Returns the kind of what continues `text_parent` in text: that of the path it left, if one
    /// agent does one thing in both.
    fn of_text_child(
        &self,
        start: NodeId,
        text_parent: NodeId,
        parent_kind: Option<TrajectoryKind>,
    ) -> (TrajectoryKind, KindReason) {
        let nodes = &self.forest.nodes;
        let reason = if nodes[start].has_ids == nodes[text_parent].has_ids {
            KindReason::RewrittenHistory
        } else {
            KindReason::IdsMissing
        };
        match parent_kind {
            Some(kind) if is_same_task(self.forest, start, text_parent) => (kind, reason),
            _ => (TrajectoryKind::Fork, KindReason::RewrittenHistory),
        }
    }

    /// Returns the kind of a path of its own that extends `parent` token for token. Where only the
    /// model differs and nothing else extends the parent, it is the same conversation.
    fn of_child(
        &self,
        start: NodeId,
        parent: NodeId,
        parent_kind: Option<TrajectoryKind>,
    ) -> (TrajectoryKind, KindReason) {
        let nodes = &self.forest.nodes;
        let only_model_differs = is_same_task(self.forest, start, parent)
            && nodes[start].policy != nodes[parent].policy
            && self.descendants.heir(self.forest, parent).is_none();
        match parent_kind {
            Some(kind) if only_model_differs => (kind, KindReason::OtherModel),
            _ => (TrajectoryKind::Fork, KindReason::LeftHistory),
        }
    }

    fn of_root(&self, start: NodeId) -> (TrajectoryKind, KindReason) {
        if self.forest.is_ambiguous(start) {
            return (TrajectoryKind::Fork, KindReason::AmbiguousParent);
        }
        if self.failed_alone(start) {
            return (TrajectoryKind::Retry, KindReason::AfterFailure);
        }
        if self.main == Some(start) {
            return (TrajectoryKind::Main, KindReason::FirstConversation);
        }
        if let Some(reason) = self.auxiliary_reason(start) {
            return (TrajectoryKind::Auxiliary, reason);
        }
        let main = self.main.map_or(&[][..], |main| self.instructions(main));
        let these = self.instructions(start);
        if !these.is_empty() && !main.is_empty() && these != main {
            return (TrajectoryKind::Subagent, KindReason::OtherInstructions);
        }
        (TrajectoryKind::Fork, KindReason::NewConversation)
    }

    /// Returns the reason why a root is beside the conversation, where it is.
    fn auxiliary_reason(&self, root: NodeId) -> Option<KindReason> {
        if !self.descendants[root].children.is_empty() {
            return None;
        }
        if asks_for_one_token(&self.forest.nodes[root]) {
            return Some(KindReason::OneToken);
        }
        // A conversation with tools and another model is the work; this call is not part of it.
        let mut roots = self.descendants.roots.iter();
        let is_beside = !self.offers_tools(root)
            && roots.any(|other| {
                self.offers_tools(*other)
                    && self.requested_model(*other) != self.requested_model(root)
            });
        is_beside.then_some(KindReason::OtherModelWithoutTools)
    }

    fn instructions(&self, node: NodeId) -> &[u32] {
        self.forest.message_ids.get(node).map_or(&[], MessageIds::instructions)
    }

    fn offers_tools(&self, node: NodeId) -> bool {
        self.forest.message_ids.get(node).is_some_and(MessageIds::offers_tools)
    }

    /// Returns the model that a call asked for, without the number of its version.
    fn requested_model(&self, node: NodeId) -> Option<&str> {
        let node = &self.forest.nodes[node];
        let requested = node.call.begun.model.as_deref()?;
        Some(if requested == node.model() { node.policy } else { requested })
    }
}

/// Returns true for a probe. Agents ask for one token to see whether a key works or quota is left.
fn asks_for_one_token(node: &Node<'_>) -> bool {
    let text = node.call.begun.sampling.as_deref().unwrap_or("{}");
    let sampling: Value = serde_json::from_str(text).unwrap_or_default();
    let limits = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
    limits.iter().any(|key| sampling.get(key).and_then(Value::as_u64).is_some_and(|n| n <= 1))
}

#[cfg(test)]
mod tests {
    use episode::Call;
    use serde_json::json;

    use super::*;
    use crate::tests::fixture::{call, choice, episode, reply, rows_of, with_bodies};

    fn kinds(calls: Vec<Call>) -> Vec<(&'static str, &'static str)> {
        rows_of(&episode(calls)).iter().map(|row| (row.kind, row.kind_reason)).collect()
    }

    fn of(kind: CallKind, mut call: Call) -> Call {
        call.begun.lineage.kind = kind;
        call
    }

    fn worded(n: u32, ids: (&[u32], &[u32]), words: &[&str], answer: &str) -> Call {
        let message = |(n, text)| {
            json!({ "role": (if n % 2 == 0 { "user" } else { "assistant" }),
            "content": text })
        };
        let messages: Vec<_> = words.iter().enumerate().map(message).collect();
        with_bodies(call(n, ids.0, &[ids.1]), &messages, answer)
    }

    const MAIN: (&str, &str) = ("main", "first_conversation");

    #[test]
    fn the_main_path_is_the_one_that_went_on() {
        let calls = vec![
            call(1, &[1], &[&[2]]),
            call(2, &[1, 2, 3], &[&[4]]),
            call(3, &[1, 2, 8], &[&[5]]),
            call(4, &[1, 2, 8, 5, 6], &[&[7]]),
        ];
        let rows = rows_of(&episode(calls));
        assert_eq!(rows[0].tokens.input_ids, [1, 2, 8, 5, 6, 7]);
        assert_eq!((rows[1].kind, rows[1].kind_reason), ("fork", "left_history"));
        assert_eq!(rows[1].fork_position, Some(2));
    }

    #[test]
    fn two_choices_that_were_both_continued_are_main_and_fork() {
        let calls = vec![
            call(1, &[1], &[&[2], &[3]]),
            call(2, &[1, 3, 9], &[&[5]]),
            call(3, &[1, 2, 9], &[&[5]]),
        ];
        assert_eq!(kinds(calls), [MAIN, ("fork", "left_history")]);
    }

    #[test]
    fn choices_of_a_failed_call_are_no_retries_of_each_other() {
        let mut failed = call(1, &[1], &[&[2], &[3]]);
        reply(&mut failed).outcome = Outcome::UpstreamFailed;
        reply(&mut failed).ended_at = failed.begun.started_at;
        assert_eq!(kinds(vec![failed]), [("retry", "after_failure"), ("sibling", "same_prompt")]);
    }

    #[test]
    fn a_failed_call_is_main_only_where_another_goes_on() {
        for outcome in [Outcome::UpstreamFailed, Outcome::Refused] {
            let mut failed = call(1, &[1], &[&[2]]);
            reply(&mut failed).outcome = outcome;
            let lost = ("retry", "after_failure");
            assert_eq!(kinds(vec![failed.clone()]), [lost]);
            assert_eq!(kinds(vec![failed.clone(), call(2, &[7], &[&[8]])]), [lost, MAIN]);
            assert_eq!(kinds(vec![failed.clone(), call(2, &[1, 2, 3], &[&[4]])]), [MAIN]);
            let mut beside = call(2, &[1, 2, 3], &[&[4]]);
            reply(&mut beside).outcome = outcome;
            let rows = rows_of(&episode(vec![
                call(1, &[1], &[&[2]]),
                beside,
                call(3, &[1, 2, 9], &[&[5]]),
            ]));
            assert_eq!((rows[0].kind, &rows[0].tokens.input_ids[..]), ("main", &[1, 2, 9, 5][..]));
        }
    }

    #[test]
    fn a_summary_or_a_title_that_was_tried_again_is_a_sibling() {
        let ask = ["task", "work", "summarize"];
        let first = || worded(1, (&[1], &[2]), &ask[..1], "work");
        let tried = |n, token, text| {
            of(CallKind::Compaction, worded(n, (&[1, 2, 3], &[token]), &ask, text))
        };
        let next = worded(4, (&[7, 5], &[8]), &["Summary: second"], "done");
        let calls = vec![first(), tried(2, 4, "first"), tried(3, 5, "second"), next];
        let accepted = ("compaction", "lineage");
        let rejected = ("sibling", "same_prompt");
        assert_eq!(kinds(calls), [MAIN, accepted, rejected, ("main", "after_summary")]);

        let title = |n, token| of(CallKind::Auxiliary, call(n, &[9], &[&[token]]));
        let found = kinds(vec![first(), title(2, 4), title(3, 5)]);
        assert_eq!(found, [MAIN, ("auxiliary", "lineage"), rejected]);
    }

    #[test]
    fn a_call_that_stands_alone_is_not_the_main_conversation() {
        let mut calls =
            vec![call(2, &[1], &[&[2]]), call(3, &[1], &[&[2]]), call(1, &[1, 2, 3], &[&[4]])];
        calls[0].begun.started_at = 12;
        assert_eq!(kinds(calls), [("fork", "ambiguous_parent"), MAIN, ("sibling", "same_prompt")]);
    }

    #[test]
    fn an_agent_may_leave_its_name_out_of_a_call() {
        let mut named = call(2, &[1, 2, 3], &[&[4]]);
        named.begun.lineage.agent = Some("a".to_owned());
        assert_eq!(kinds(vec![call(1, &[1], &[&[2]]), named.clone()]), [MAIN]);
        let mut other = call(3, &[1, 2, 3, 4, 5], &[&[6]]);
        other.begun.lineage.agent = Some("b".to_owned());
        let calls = vec![call(1, &[1], &[&[2]]), named, other];
        assert_eq!(kinds(calls), [MAIN, ("fork", "left_history")]);
    }

    #[test]
    fn what_goes_on_from_a_summary_is_main() {
        let calls = vec![
            call(1, &[1], &[&[2]]),
            of(CallKind::Compaction, call(2, &[1, 2, 3], &[&[4]])),
            call(3, &[1, 2, 3, 4, 5], &[&[6]]),
        ];
        let summary = ("compaction", "lineage");
        assert_eq!(kinds(calls), [MAIN, summary, ("main", "after_summary")]);
    }

    #[test]
    fn a_conversation_follows_the_newest_summary_before_it() {
        let summed =
            |n, answer| of(CallKind::Compaction, worded(n, (&[n + 90], &[1]), &["sum up"], answer));
        let calls = vec![
            worded(1, (&[1], &[2]), &["a"], "b"),
            summed(2, "so far"),
            summed(3, "so far and on"),
            worded(4, (&[5], &[6]), &["so far and on"], "c"),
            summed(5, "so far and on"),
        ];
        let rows = rows_of(&episode(calls));
        let row = rows.iter().find(|row| row.kind_reason == "after_summary").unwrap();
        assert_eq!(row.parent_trajectory_id.as_deref(), Some("e/0/2"));
    }

    #[test]
    fn a_summary_behind_the_kept_first_messages_is_followed() {
        let summary = |answer| of(CallKind::Compaction, worded(2, (&[90], &[1]), &["x"], answer));
        let quoted = "<analysis>x</analysis><state_snapshot>so far</state_snapshot>";
        for answer in ["so far", quoted] {
            let calls = vec![
                worded(1, (&[1], &[2]), &["a"], "b"),
                summary(answer),
                worded(3, (&[5], &[6]), &["a", "so far: go on"], "c"),
            ];
            let rows = rows_of(&episode(calls));
            let row = rows.iter().find(|row| row.kind_reason == "after_summary").unwrap();
            assert_eq!(row.parent_trajectory_id.as_deref(), Some("e/0/1"), "{answer}");
        }
    }

    #[test]
    fn a_choice_whose_ids_alone_are_missing_is_a_sibling() {
        let mut both = worded(1, (&[1], &[2]), &["a"], "b");
        reply(&mut both).choices.push(episode::Choice { token_ids: None, ..choice(1, &[]) });
        let said = |index: u32| json!({ "index": index, "message": { "content": "b" } });
        reply(&mut both).reply = json!({ "choices": [said(0), said(1)] }).to_string().into();
        assert_eq!(kinds(vec![both]), [MAIN, ("sibling", "same_prompt")]);
    }

    #[test]
    fn missing_ids_do_not_make_the_main_agent_a_subagent() {
        let sub = of(CallKind::Subagent, worded(1, (&[1], &[2]), &["a"], "b"));
        let mut next = worded(2, (&[], &[]), &["a", "b", "c"], "d");
        reply(&mut next).prompts.clear();
        let rewritten = ("fork", "rewritten_history");
        let first = worded(3, (&[5], &[6]), &["z"], "y");
        let mut calls = vec![first, sub, next];
        calls[0].begun.started_at = 1;
        assert_eq!(kinds(calls), [MAIN, ("subagent", "lineage"), rewritten]);
    }

    #[test]
    fn calls_of_which_nothing_is_known_are_not_tries_at_one_prompt() {
        let bare = |n: u32| {
            let mut call = worded(n, (&[], &[]), &[], "b");
            call.begun.request = "{\"prompt\":[1,2]}".into();
            reply(&mut call).prompts.clear();
            call.begun.route = episode::Route::Completions;
            call
        };
        assert_eq!(kinds(vec![bare(1), bare(2)]), [MAIN, ("fork", "new_conversation")]);
    }

    #[test]
    fn a_conversation_of_many_calls_is_not_beside_another() {
        let one_token = |mut call: Call| {
            call.begun.sampling = Some(r#"{"max_tokens":1}"#.to_owned());
            call
        };
        let calls = vec![
            call(1, &[1], &[&[2]]),
            one_token(call(2, &[5], &[&[6]])),
            one_token(call(3, &[5, 6, 7], &[&[8]])),
        ];
        assert_eq!(kinds(calls), [MAIN, ("fork", "new_conversation")]);
    }

    #[test]
    fn the_same_model_without_tools_is_not_beside_the_conversation() {
        let mut plain = worded(2, (&[5], &[6]), &["c"], "d");
        plain.begun.request =
            json!({ "messages": [{ "role": "user", "content": "c" }] }).to_string().into();
        let calls = vec![worded(1, (&[1], &[2]), &["a"], "b"), plain];
        assert_eq!(kinds(calls), [MAIN, ("fork", "new_conversation")]);
    }

    #[test]
    fn the_user_page_explains_every_kind_and_every_cue() {
        let page = include_str!("../../../docs/export.md");
        let words = TrajectoryKind::ALL
            .map(TrajectoryKind::as_str)
            .into_iter()
            .chain(KindReason::ALL.map(KindReason::as_str));
        for word in words {
            assert!(page.contains(&format!("\n| {word} | ")), "docs/export.md lacks {word}");
        }
        assert!(KindReason::ALL.map(KindReason::as_str).is_sorted());
    }
}
