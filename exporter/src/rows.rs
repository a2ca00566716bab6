//! Rows: one row a path.

use std::collections::BTreeSet;

use episode::{Fidelity, Outcome, RewardScope, Trajectory, Turn};
use serde_json::json;
use store::EpisodeRecord;

use crate::credit::{Ledger, Place, history};
use crate::groups::GroupSummary;
use crate::merge::{Merged, Path};
use crate::messages::{Dialogue, Message, dialogue};
use crate::notes::Reason;
use crate::returns::returns;
use crate::scan::{Node, Scanned};
use crate::sides::{Sides, sides};
use crate::thread::Forest;
use crate::weigh::Shares;

/// Bytes of one token over all token columns.
const TOKEN_BYTES: usize = 4 + 1 + 4 + 4;
/// Bytes of the reward of one token.
const REWARD_BYTES: usize = 16;
/// Bytes of one message or turn beside its texts, roughly.
const MESSAGE_BYTES: usize = 128;
/// Bytes of one row beside its lists, roughly.
const ROW_BYTES: usize = 512;

/// One row of the `trajectories` file, a field a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) episode_id: String,
    pub(crate) attempt: i32,
    pub(crate) trajectory_id: String,
    pub(crate) trajectory_index: i32,
    pub(crate) num_trajectories: i32,
    pub(crate) parent_trajectory_id: Option<String>,
    pub(crate) fork_position: Option<i32>,
    pub(crate) kind: &'static str,
    pub(crate) kind_reason: &'static str,
    pub(crate) group_id: Option<String>,
    pub(crate) task_id: Option<String>,
    pub(crate) model: String,
    pub(crate) tokenizer_fingerprint: String,
    pub(crate) tokens: Tokens,
    pub(crate) logprob_kind: String,
    pub(crate) prompt_len: i32,
    pub(crate) turns: Vec<TurnRow>,
    pub(crate) mixed_versions: Option<bool>,
    pub(crate) staleness: Option<i64>,
    pub(crate) reward: Option<f64>,
    pub(crate) trajectory_reward: Option<f64>,
    pub(crate) token_rewards: Option<Vec<Option<f64>>>,
    pub(crate) advantage: Option<f64>,
    pub(crate) group: Option<GroupSummary>,
    pub(crate) rewards: String,
    pub(crate) row_weight: f64,
    pub(crate) fidelity: Option<&'static str>,
    pub(crate) verdict: &'static str,
    pub(crate) reasons: BTreeSet<Reason>,
    pub(crate) status: String,
    pub(crate) dialogue: Dialogue,
    pub(crate) metadata: String,
    pub(crate) sides: Sides,
}

/// The token columns of a row; all of one length.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tokens {
    pub(crate) input_ids: Vec<i32>,
    pub(crate) loss_mask: Vec<i8>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) versions: Vec<i32>,
}

impl Tokens {
    /// Known policy versions of trained tokens.
    pub(crate) fn trained_versions(&self) -> impl Iterator<Item = i64> + '_ {
        let both = self.loss_mask.iter().zip(&self.versions);
        both.filter(|(mask, version)| **mask == 1 && **version >= 0).map(|(_, v)| i64::from(*v))
    }

    /// Number of trained tokens.
    pub(crate) fn trained(&self) -> usize {
        self.loss_mask.iter().filter(|m| **m == 1).count()
    }
}

/// One element of the column `turns`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TurnRow {
    pub(crate) call_id: String,
    pub(crate) choice: i32,
    pub(crate) start: i32,
    pub(crate) end: i32,
    pub(crate) finish_reason: Option<String>,
    pub(crate) version_start: Option<i64>,
    pub(crate) version_end: Option<i64>,
    pub(crate) temperature: Option<f64>,
    pub(crate) reward: Option<f64>,
    pub(crate) continued: Option<bool>,
    pub(crate) mc_return: Option<f64>,
}

/// What rows say when they are asked to, beyond what is recorded of their episode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Beside<'a> {
    /// The numbers of the episode's group.
    pub(crate) group: Option<&'a GroupSummary>,
    pub(crate) advantage: Option<f64>,
    /// How much less a reward counts one turn earlier.
    pub(crate) gamma: Option<f64>,
    /// The trainer's policy version.
    pub(crate) at_version: Option<i64>,
}

/// The rows of one episode, made one at a time: branches of a long history share its tokens in the
/// forest but not in the rows.
pub(crate) fn rows<'a>(
    episode: &'a Scanned,
    forest: &'a Forest<'a>,
    merged: &'a Merged,
    shares: &'a Shares,
    beside: Beside<'a>,
) -> impl Iterator<Item = Row> + 'a {
    let maker = Maker::new(episode, forest, merged, shares, beside);
    shares.paths.iter().map(move |index| maker.row(*index))
}

/// All that rows are made of, and what those of one episode say alike.
struct Maker<'a> {
    episode: &'a Scanned,
    forest: &'a Forest<'a>,
    merged: &'a Merged,
    shares: &'a Shares,
    beside: Beside<'a>,
    ledger: Ledger,
    rewards: String,
    metadata: String,
    lost_call: bool,
    call_without_ids: bool,
}

impl<'a> Maker<'a> {
    fn new(
        episode: &'a Scanned,
        forest: &'a Forest<'a>,
        merged: &'a Merged,
        shares: &'a Shares,
        beside: Beside<'a>,
    ) -> Self {
        let lost = |c: &episode::Call| c.ended.is_none() && c.begun.route.generates();
        Self {
            episode,
            forest,
            merged,
            shares,
            beside,
            ledger: Ledger::new(&episode.rewards),
            rewards: history(&episode.rewards),
            metadata: metadata(&episode.record),
            lost_call: episode.record.may_lack_calls || episode.calls.iter().any(lost),
            call_without_ids: forest.nodes.iter().any(|n| !n.has_ids),
        }
    }

    fn row(&self, index: usize) -> Row {
        let (record, forest) = (&self.episode.record, self.forest);
        let path = &self.merged.paths[index];
        let trajectory = self.merged.trajectory(forest, self.shares, index);
        let (root, leaf) = (&forest.nodes[path.nodes[0]], &forest.nodes[path.leaf()]);
        let tokens = tokens(&trajectory);
        let trained = tokens.trained();
        let versions = self.shares.versions(index, &path.nodes);
        let places = places(&trajectory);
        let judged = self.trajectory_reward(index);
        let nodes: Vec<&Node<'_>> = path.nodes.iter().map(|n| &forest.nodes[*n]).collect();
        let reasons = self.reasons(path);
        let id = |index: usize| format!("{}/{}/{index}", record.id, record.attempt);
        Row {
            episode_id: record.id.to_string(),
            attempt: int(record.attempt as usize),
            trajectory_id: id(index),
            trajectory_index: int(index),
            num_trajectories: int(self.merged.paths.len()),
            parent_trajectory_id: trajectory.branch.map(|b| id(b.parent)),
            fork_position: trajectory.branch.map(|b| int(b.position)),
            kind: path.kind.as_str(),
            kind_reason: path.cue.as_str(),
            group_id: record.group.as_ref().map(ToString::to_string),
            task_id: record.task.as_ref().map(ToString::to_string),
            model: model(leaf).to_owned(),
            tokenizer_fingerprint: String::new(),
            logprob_kind: logprob_kind(forest, path),
            prompt_len: int(trajectory.turns[0].new_prompt.len()),
            turns: self.turns(path, &trajectory, &places, judged),
            mixed_versions: versions.mixed(),
            staleness: self
                .beside
                .at_version
                .zip(tokens.trained_versions().min())
                .map(|(a, v)| a - v),
            reward: self.ledger.value(RewardScope::Episode),
            trajectory_reward: judged.flatten(),
            token_rewards: self.ledger.tokens(&places, tokens.input_ids.len()),
            advantage: self.beside.advantage,
            group: self.beside.group.cloned(),
            rewards: self.rewards.clone(),
            row_weight: self.shares.row_weight(trained),
            fidelity: leaf.has_ids.then(|| fidelity(forest, path)),
            verdict: verdict(trained, &reasons),
            reasons,
            status: record.status.clone().unwrap_or_else(|| status(leaf).to_owned()),
            dialogue: dialogue(root, leaf),
            metadata: self.metadata.clone(),
            sides: sides(&nodes, tokens.input_ids.len()),
            tokens,
        }
    }

    /// What was said of a trajectory by any of the choices that it is the first to hold, the last
    /// one before the others.
    fn trajectory_reward(&self, index: usize) -> Option<Option<f64>> {
        let nodes = &self.merged.paths[index].nodes;
        let own = nodes.iter().rev().take_while(|n| self.merged.owners[**n] == index);
        let own = own.map(|n| &self.forest.nodes[*n]);
        self.ledger.of_trajectory(own.map(|node| (node.call.begun.call_id, node.index)))
    }

    fn turns(
        &self,
        path: &Path,
        trajectory: &Trajectory,
        places: &[Place],
        judged: Option<Option<f64>>,
    ) -> Vec<TurnRow> {
        let gamma = self.beside.gamma;
        let steps = self.ledger.steps(places, judged);
        let returns = gamma.map_or(vec![None; steps.len()], |gamma| returns(&steps, gamma));
        let turns = trajectory.turns.iter().zip(&path.nodes).zip(places).zip(returns);
        let row = |(((turn, node), place), mc_return): (((&Turn, &usize), &Place), _)| TurnRow {
            reward: self.ledger.value(RewardScope::Call(turn.call_id)),
            continued: self.merged.continued[*node],
            mc_return,
            ..turn_row(turn, place)
        };
        turns.map(row).collect()
    }

    fn reasons(&self, path: &Path) -> BTreeSet<Reason> {
        let forest = self.forest;
        let judged = path.nodes.iter().flat_map(|n| self.merged.judged[*n].reasons.iter().copied());
        let mut reasons: BTreeSet<Reason> = judged.collect();
        if path.nodes.iter().any(|n| !forest.unclear[*n].is_empty()) {
            reasons.insert(Reason::AmbiguousParent);
        }
        let leaf = &forest.nodes[path.leaf()];
        if path.nodes.iter().any(|n| model(&forest.nodes[*n]) != model(leaf)) {
            reasons.insert(Reason::ModelsDiffer);
        }
        if self.lost_call {
            reasons.insert(Reason::LostCall);
        }
        if self.call_without_ids && leaf.has_ids {
            reasons.insert(Reason::CallWithoutTokenIds);
        }
        reasons
    }
}

/// Lengths and counts are those of arrays in memory whose elements the file numbers with 32 bits;
/// nothing recorded comes near that.
fn int(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The token columns. A token without a logprob is not trained, whatever its turn says.
fn tokens(trajectory: &Trajectory) -> Tokens {
    let mut loss_mask = trajectory.loss_mask();
    let mut logprobs = trajectory.logprobs();
    for (mask, logprob) in loss_mask.iter_mut().zip(&mut logprobs) {
        if logprob.is_nan() {
            (*mask, *logprob) = (0, 0.0);
        }
    }
    // The scan took only ids that fit.
    let input_ids = trajectory.input_ids().into_iter().map(|id| id as i32).collect();
    Tokens { input_ids, loss_mask, logprobs, versions: trajectory.versions() }
}

/// Where the sampled tokens of each turn stand.
fn places(trajectory: &Trajectory) -> Vec<Place> {
    let mut end = 0;
    let place = |turn: &Turn| {
        let start = end + turn.new_prompt.len();
        end = start + turn.sampled.ids().len();
        Place { call: turn.call_id, choice: turn.choice, start, end }
    };
    trajectory.turns.iter().map(place).collect()
}

fn turn_row(turn: &Turn, place: &Place) -> TurnRow {
    let known = |version: Option<&i32>| version.filter(|v| **v >= 0).map(|v| i64::from(*v));
    TurnRow {
        call_id: turn.call_id.to_string(),
        choice: int(turn.choice as usize),
        start: int(place.start),
        end: int(place.end),
        finish_reason: turn.finish_reason.clone(),
        version_start: known(turn.sampled.versions().first()),
        version_end: known(turn.sampled.versions().last()),
        temperature: turn.temperature,
        reward: None,
        continued: None,
        mc_return: None,
    }
}

impl Row {
    /// About how many bytes the row takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let message = |m: &Message| {
            let texts = [&m.content, &m.name, &m.tool_call_id, &m.reasoning];
            let texts =
                texts.into_iter().flatten().chain(m.tool_calls.iter().flatten()).map(String::len);
            MESSAGE_BYTES + texts.sum::<usize>()
        };
        let dialogue = self.dialogue.prompt.iter().chain(&self.dialogue.completion);
        let texts = self.dialogue.tools.iter().chain([&self.rewards, &self.metadata]);
        ROW_BYTES
            + self.tokens.input_ids.len() * TOKEN_BYTES
            + self.turns.len() * MESSAGE_BYTES
            + dialogue.map(message).sum::<usize>()
            + texts.map(String::len).sum::<usize>()
            + self.token_rewards.as_ref().map_or(0, |rewards| rewards.len() * REWARD_BYTES)
            + self.sides.bytes()
    }
}

fn metadata(record: &EpisodeRecord) -> String {
    let labels: serde_json::Map<_, _> =
        record.labels.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    json!({ "labels": labels, "source": record.source.as_str() }).to_string()
}

fn model<'a>(node: &Node<'a>) -> &'a str {
    node.ended.model.as_deref().or(node.call.begun.model.as_deref()).unwrap_or_default()
}

/// How the ids of a path are known: as the least well known of them.
fn fidelity(forest: &Forest<'_>, path: &Path) -> &'static str {
    let choices = path.nodes.iter().filter_map(|n| forest.nodes[*n].choice);
    let mapped = choices.into_iter().any(|choice| choice.fidelity == Fidelity::Mapped);
    if mapped { Fidelity::Mapped.as_str() } else { Fidelity::Exact.as_str() }
}

fn logprob_kind(forest: &Forest<'_>, path: &Path) -> String {
    let kinds: BTreeSet<&str> = path
        .nodes
        .iter()
        .filter(|n| forest.nodes[**n].has_ids)
        .map(|n| forest.nodes[*n].ended.logprob_kind.as_str())
        .collect();
    match Vec::from_iter(kinds).as_slice() {
        [only] if !only.is_empty() => (*only).to_owned(),
        _ => "unknown".to_owned(),
    }
}

fn verdict(trained: usize, reasons: &BTreeSet<Reason>) -> &'static str {
    match (trained, reasons.is_empty()) {
        (0, _) => "unusable",
        (_, true) => "exact",
        (_, false) => "usable",
    }
}

/// How a path ended, where nobody said how the episode did.
fn status(leaf: &Node<'_>) -> &'static str {
    if leaf.choice.and_then(|c| c.finish_reason.as_deref()) == Some("length") {
        return "truncated";
    }
    match leaf.ended.outcome {
        Outcome::Complete => "completed",
        Outcome::ClientGone => "aborted",
        Outcome::UpstreamFailed | Outcome::Capped | Outcome::Refused => "failed",
    }
}

#[cfg(test)]
mod tests {
    use episode::{Call, Reward};

    use super::*;
    use crate::fixture::{call, episode, reply, rows_of, text_call, with_bodies};

    fn one(calls: Vec<Call>) -> Row {
        let mut rows = rows_of(&episode(calls));
        assert_eq!(rows.len(), 1);
        rows.remove(0)
    }

    fn reasons(row: &Row) -> Vec<&'static str> {
        row.reasons.iter().map(|r| r.as_str()).collect()
    }

    #[test]
    fn a_whole_episode_is_exact() {
        let row = one(vec![call(1, &[1, 2], &[&[3]]), call(2, &[1, 2, 3, 4], &[&[5]])]);
        assert_eq!(
            (row.verdict, row.fidelity, row.status.as_str()),
            ("exact", Some("exact"), "completed")
        );
        assert_eq!((row.prompt_len, row.row_weight), (2, 1.0));
        assert_eq!((row.trajectory_id.as_str(), row.num_trajectories), ("e/0/0", 1));
        assert_eq!(row.tokens.versions, [-1, -1, 7, -1, 7]);
        assert_eq!(row.tokens.trained_versions().max(), Some(7));
        assert_eq!((row.turns[1].start, row.turns[1].end), (4, 5));
        assert_eq!(row.turns[1].version_end, Some(7));
        assert_eq!(row.metadata, r#"{"labels":{"suite":"a"},"source":"header"}"#);
    }

    #[test]
    fn a_call_without_an_end_marks_every_row_of_its_episode() {
        let mut lost = call(2, &[1, 2, 3], &[&[4]]);
        lost.ended = None;
        let row = one(vec![call(1, &[1], &[&[2]]), lost]);
        assert_eq!((row.verdict, reasons(&row)), ("usable", vec!["lost_call"]));
    }

    #[test]
    fn a_reply_that_hit_the_length_limit_is_truncated_and_trained() {
        let mut cut = call(1, &[1], &[&[2]]);
        reply(&mut cut).choices[0].finish_reason = Some("length".to_owned());
        let row = one(vec![cut]);
        assert_eq!((row.status.as_str(), row.verdict), ("truncated", "exact"));
    }

    #[test]
    fn what_the_agent_did_not_wait_for_is_kept_but_not_trained() {
        let mut gone = call(2, &[1, 2, 3], &[&[4]]);
        reply(&mut gone).outcome = Outcome::ClientGone;
        let row = one(vec![call(1, &[1], &[&[2]]), gone]);
        assert_eq!(row.tokens.input_ids, [1, 2, 3, 4]);
        assert_eq!(row.tokens.loss_mask, [0, 1, 0, 0]);
        assert_eq!((row.verdict, row.status.as_str()), ("usable", "aborted"));
        assert_eq!(reasons(&row), ["client_gone"]);
    }

    #[test]
    fn tokens_without_a_logprob_are_not_trained() {
        let mut holes = call(1, &[1], &[&[2, 3, 4]]);
        reply(&mut holes).choices[0].logprobs = vec![f32::NAN, -0.1, -9999.0];
        let row = one(vec![holes]);
        assert_eq!(row.tokens.loss_mask, [0, 0, 1, 0]);
        assert_eq!(row.tokens.logprobs, [0.0, 0.0, -0.1, 0.0]);
        assert_eq!((row.verdict, reasons(&row)), ("usable", vec!["logprob_missing"]));
    }

    #[test]
    fn ids_out_of_the_vocabulary_are_trained_and_said_to_be_mapped() {
        let mut second = call(2, &[1, 2, 3], &[&[4]]);
        reply(&mut second).choices[0].fidelity = Fidelity::Mapped;
        let row = one(vec![call(1, &[1], &[&[2]]), second]);
        assert_eq!((row.verdict, row.fidelity), ("usable", Some("mapped")));
        assert_eq!(
            (row.tokens.loss_mask.as_slice(), reasons(&row)),
            (&[0, 1, 0, 1][..], vec!["mapped"])
        );
    }

    #[test]
    fn uneven_counts_leave_nothing_to_train() {
        let mut uneven = call(1, &[1], &[&[2, 3]]);
        reply(&mut uneven).choices[0].logprobs.pop();
        reply(&mut uneven).usage.completion = Some(5);
        let row = one(vec![uneven]);
        assert_eq!((row.verdict, row.row_weight), ("unusable", 0.0));
        assert_eq!(reasons(&row), ["logprob_count_differs", "token_count_differs"]);
    }

    #[test]
    fn raw_logprobs_are_exact_only_of_an_unbent_distribution() {
        let bent = Some("logprobs_not_of_sampling_distribution");
        let cases = [
            ("raw", r#"{"temperature":1.0,"top_p":1}"#, None),
            ("raw", r#"{"temperature":0.7}"#, bent),
            ("raw", r#"{"top_k":20}"#, bent),
            ("raw", r#"{"top_k":-1}"#, None),
            ("temperature", r#"{"temperature":0.7}"#, None),
            ("temperature", r#"{"top_p":0.9}"#, bent),
            ("processed", r#"{"temperature":0.7,"min_p":0.1}"#, None),
        ];
        for (kind, sampling, reason) in cases {
            let mut call = call(1, &[1], &[&[2]]);
            call.begun.sampling = Some(sampling.to_owned());
            reply(&mut call).logprob_kind = kind.to_owned();
            let row = one(vec![call]);
            assert_eq!(reasons(&row), Vec::from_iter(reason), "{kind} {sampling}");
            assert_eq!(row.logprob_kind, kind);
        }
    }

    #[test]
    fn a_path_of_two_models_says_so() {
        let mut other = call(2, &[1, 2, 3], &[&[4]]);
        reply(&mut other).model = Some("m2".to_owned());
        let row = one(vec![call(1, &[1], &[&[2]]), other]);
        assert_eq!((row.model.as_str(), reasons(&row)), ("m2", vec!["models_differ"]));
    }

    #[test]
    fn the_last_reward_stands_and_null_is_not_zero() {
        let mut episode = episode(vec![call(1, &[1], &[&[2]])]);
        let say = |value, scope| Reward {
            scope,
            name: "reward".to_owned(),
            value,
            source: "judge".to_owned(),
            at: 5,
        };
        let this = RewardScope::Call(episode.calls[0].begun.call_id);
        episode.rewards = vec![say(Some(1.0), RewardScope::Episode), say(Some(0.5), this)];
        let row = &rows_of(&episode)[0];
        assert_eq!((row.reward, row.turns[0].reward), (Some(1.0), Some(0.5)));
        episode.rewards.push(say(None, RewardScope::Episode));
        let row = &rows_of(&episode)[0];
        assert_eq!(row.reward, None);
        assert_eq!(row.rewards.matches("judge").count(), 3);
    }

    #[test]
    fn without_ids_the_messages_are_exported_alone() {
        let user = json!({ "role": "user", "content": "hi" });
        let said = json!({ "role": "assistant", "content": [{ "type": "text", "text": "yo" }] });
        let next = json!({ "role": "user", "content": "go" });
        let calls = vec![
            text_call(1, std::slice::from_ref(&user), "yo"),
            text_call(2, &[user, said, next], "ok"),
        ];
        let row = one(calls);
        assert!(row.tokens.input_ids.is_empty());
        assert_eq!((row.verdict, row.fidelity, row.row_weight), ("unusable", None, 0.0));
        assert_eq!(reasons(&row), ["no_token_ids"]);
        let texts = |m: &Message| m.content.clone().unwrap();
        assert_eq!(row.dialogue.prompt.iter().map(texts).collect::<Vec<_>>(), ["hi"]);
        let completion: Vec<_> = row.dialogue.completion.iter().map(texts).collect();
        assert_eq!(completion, ["yo", "go", "ok"]);
        assert_eq!(row.turns.len(), 2);
    }

    #[test]
    fn calls_without_ids_are_told_of_in_the_rows_with_ids() {
        let user = json!({ "role": "user", "content": "hi" });
        let calls = vec![
            with_bodies(call(1, &[1], &[&[2]]), std::slice::from_ref(&user), "a"),
            text_call(2, &[user], "b"),
        ];
        let rows = rows_of(&episode(calls));
        assert_eq!(rows.iter().map(|r| r.verdict).collect::<Vec<_>>(), ["usable", "unusable"]);
        assert_eq!(reasons(&rows[0]), ["call_without_token_ids"]);
    }
}
