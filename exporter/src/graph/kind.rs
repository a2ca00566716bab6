//! Kind: what a path is for, and what says so.
//!
//! What the agent said of a call when it was made decides (`Begun::lineage`); where it said
//! nothing, the place in the forest and the words do. The cue is kept beside the kind.

use episode::{CallKind, Kind, Outcome};
use serde_json::Value;

use crate::graph::family::{Family, same_agent};
use crate::graph::forest::Forest;
use crate::graph::node::Node;

/// What says that a path is of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cue {
    /// An earlier try at the same prompt did not end well.
    AfterFailure,
    /// It begins with the summary of an earlier conversation.
    AfterSummary,
    /// Nothing tells which of several equal paths it continues.
    AmbiguousParent,
    /// It is the first conversation of the episode that nothing else is said of.
    FirstConversation,
    /// It continues a path in words; the server reported no ids of one of the two.
    IdsMissing,
    /// It starts with tokens of another path and then goes on by itself.
    LeftHistory,
    /// The agent said so: by a header, in the metadata, or by the words of its request.
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
    /// It continues a path in words, but the tokens are others.
    RewrittenHistory,
    /// It answers a prompt that has another answer.
    SamePrompt,
}

impl Cue {
    /// All of them, in the order of their words.
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

    /// The word exported.
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

/// Tells the kinds of the paths of one forest.
pub(crate) struct Kinds<'f, 'a> {
    forest: &'f Forest<'a>,
    family: &'f Family,
    /// The root of the main conversation.
    main: Option<usize>,
}

impl<'f, 'a> Kinds<'f, 'a> {
    pub(crate) fn new(forest: &'f Forest<'a>, family: &'f Family) -> Self {
        let mut kinds = Self { forest, family, main: None };
        let is_main = |i: &usize| {
            forest.nodes[*i].strand().0 == CallKind::Main && family.elders[*i].is_none()
        };
        let roots: Vec<usize> = family.roots.iter().copied().filter(is_main).collect();
        let stands_out = |i: &&usize| forest.unclear[**i].is_empty() && kinds.aside(**i).is_none();
        kinds.main = roots.iter().find(stands_out).or(roots.first()).copied();
        kinds
    }

    /// The kind of the path that begins to differ from others at `start`. `of` is the kind of the
    /// path that a node belongs to, where that is known.
    pub(crate) fn of(&self, start: usize, of: impl Fn(usize) -> Option<Kind>) -> (Kind, Cue) {
        let node = &self.forest.nodes[start];
        let said = match node.strand().0 {
            CallKind::Compaction => Some(Kind::Compaction),
            CallKind::Auxiliary => Some(Kind::Auxiliary),
            CallKind::Subagent => Some(Kind::Subagent),
            CallKind::Main => None,
        };
        if let Some(kind) = said.filter(|kind| *kind != Kind::Subagent) {
            return (kind, Cue::Lineage);
        }
        if let Some(found) = self.of_try(start) {
            return found;
        }
        if said.is_some() {
            return (Kind::Subagent, Cue::Lineage);
        }
        if self.family.elders[start].is_some() {
            return (Kind::Fork, Cue::LeftHistory);
        }
        match (self.forest.parents[start], self.forest.leads[start]) {
            (Some(from), _) | (_, Some(from)) if self.is_summary(from) => {
                (Kind::Main, Cue::AfterSummary)
            }
            (_, Some(from)) => self.of_lead(start, from, of(from)),
            (Some(from), None) => self.of_child(start, from, of(from)),
            (None, None) => self.of_root(start),
        }
    }

    /// The kind of what answers a prompt that another node leads the answers to.
    fn of_try(&self, start: usize) -> Option<(Kind, Cue)> {
        let leads = self.family.elders[start].is_none() && !self.has_twin_with_ids(start);
        if leads || self.family.continued[start] == Some(true) {
            return None;
        }
        let failed = self.forest.nodes[start].ended.outcome != Outcome::Complete;
        Some(match (self.family.superseded[start], failed) {
            (true, true) => (Kind::Retry, Cue::AfterFailure),
            (true, false) => (Kind::Retry, Cue::RetryCount),
            (false, _) => (Kind::Sibling, Cue::SamePrompt),
        })
    }

    /// Whether another choice of the call has ids where this one has none.
    fn has_twin_with_ids(&self, start: usize) -> bool {
        let node = &self.forest.nodes[start];
        let before = self.forest.nodes[..start].iter().rev();
        let mut twins = before.take_while(|n| n.call.begun.call_id == node.call.begun.call_id);
        !node.has_ids && twins.any(|n| n.has_ids)
    }

    fn is_summary(&self, node: usize) -> bool {
        self.forest.nodes[node].strand().0 == CallKind::Compaction
    }

    /// The kind of what goes on in words from `lead`: that of the path it left, if one agent does
    /// one thing in both.
    fn of_lead(&self, start: usize, lead: usize, of: Option<Kind>) -> (Kind, Cue) {
        let ids = |i: usize| self.forest.nodes[i].has_ids;
        let cue = if ids(start) != ids(lead) { Cue::IdsMissing } else { Cue::RewrittenHistory };
        match of {
            Some(kind) if same_agent(self.forest, start, lead) => (kind, cue),
            _ => (Kind::Fork, Cue::RewrittenHistory),
        }
    }

    /// The kind of what goes on token for token from `parent`, on a path of its own. Where only the
    /// model is another and nothing else went on, the conversation did.
    fn of_child(&self, start: usize, parent: usize, of: Option<Kind>) -> (Kind, Cue) {
        let goes_on = same_agent(self.forest, start, parent)
            && self.forest.nodes[start].model() != self.forest.nodes[parent].model()
            && self.family.heir(self.forest, parent).is_none();
        match of {
            Some(kind) if goes_on => (kind, Cue::OtherModel),
            _ => (Kind::Fork, Cue::LeftHistory),
        }
    }

    fn of_root(&self, start: usize) -> (Kind, Cue) {
        if !self.forest.unclear[start].is_empty() {
            return (Kind::Fork, Cue::AmbiguousParent);
        }
        if self.main == Some(start) {
            return (Kind::Main, Cue::FirstConversation);
        }
        if let Some(cue) = self.aside(start) {
            return (Kind::Auxiliary, cue);
        }
        let instructions = |i: usize| self.forest.said.get(i).map(|said| said.instructions());
        let [this, main] = [Some(start), self.main].map(|i| instructions(i?));
        match this.zip(main) {
            Some((this, main)) if !this.is_empty() && !main.is_empty() && this != main => {
                (Kind::Subagent, Cue::OtherInstructions)
            }
            _ => (Kind::Fork, Cue::NewConversation),
        }
    }

    /// Why the call at `root` is beside the conversation, where it is.
    fn aside(&self, root: usize) -> Option<Cue> {
        if !self.family.children[root].is_empty() {
            return None;
        }
        if asks_for_one_token(&self.forest.nodes[root]) {
            return Some(Cue::OneToken);
        }
        let offers = |i: usize| self.forest.said.get(i).is_some_and(|said| said.offers_tools());
        let model = |i: usize| self.forest.nodes[i].call.begun.model.as_deref();
        let at_work = |i: &usize| offers(*i) && model(*i) != model(root);
        let found = !offers(root) && self.family.roots.iter().any(at_work);
        found.then_some(Cue::OtherModelWithoutTools)
    }
}

/// Probes ask for one token: whether the key is good, whether there is quota left.
fn asks_for_one_token(node: &Node<'_>) -> bool {
    let sampling = node.call.begun.sampling.as_deref().unwrap_or("{}");
    let sampling: Value = serde_json::from_str(sampling).unwrap_or_default();
    let limits = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
    limits.iter().any(|key| sampling.get(key).and_then(Value::as_u64).is_some_and(|n| n <= 1))
}

#[cfg(test)]
mod tests {
    use episode::Call;
    use serde_json::json;

    use super::*;
    use crate::fixture::{call, choice, episode, reply, rows_of, with_bodies};

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
    fn the_choices_of_a_call_that_failed_at_once_are_no_retries_of_each_other() {
        let mut failed = call(1, &[1], &[&[2], &[3]]);
        reply(&mut failed).outcome = Outcome::UpstreamFailed;
        reply(&mut failed).ended_at = failed.begun.started_at;
        assert_eq!(kinds(vec![failed]), [MAIN, ("sibling", "same_prompt")]);
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
            call.begun.request = bytes::Bytes::from_static(b"{\"prompt\":[1,2]}");
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
        let words = Kind::ALL.map(Kind::as_str).into_iter().chain(Cue::ALL.map(Cue::as_str));
        for word in words {
            assert!(page.contains(&format!("\n| {word} | ")), "docs/export.md lacks {word}");
        }
        assert!(Cue::ALL.map(Cue::as_str).is_sorted());
    }
}
