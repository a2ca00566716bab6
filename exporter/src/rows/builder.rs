//! Builds the rows of an episode.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use episode::{Fidelity, INFRASTRUCTURE_FAILED, Outcome, RewardScope, Trajectory, Turn};
use serde_json::json;

use crate::graph::assessment::kv_cache;
use crate::graph::derive::Derived;
use crate::graph::message_ids::{MessageIds, sent_message_ids};
use crate::graph::node::{Node, PerNode};
use crate::graph::paths::{Path, PathId};
use crate::graph::scan::RecordedAttempt;
use crate::notes::Reason;
use crate::rewards::groups::GroupSummary;
use crate::rewards::infrastructure::{LastCall, failed_by_infrastructure};
use crate::rewards::latest::{LatestRewards, TurnSpan, history};
use crate::rewards::score::{Score, returns};
use crate::rows::annotations::{TokenStream, token_streams};
use crate::rows::dialogue::{Dialogue, PathMessages, path_messages};
use crate::rows::row::{Row, Tokens, TurnRow, is_limit};
use crate::rows::token_data::{TokenData, token_data};
use crate::rows::trajectory::trajectory;
use crate::rows::verdict::{Verdicts, verdict};
use crate::weigh::TokenShares;
use crate::weigh::versions::row_version;

/// Fidelity of ids that were made from text.
const RETOKENIZED: &str = "retokenized";

/// Values of rows that are not recorded with their episode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowExtras<'a> {
    /// Rewards of the episode's group.
    pub(crate) group: Option<&'a GroupSummary>,
    pub(crate) advantage: Option<f64>,
    /// Factor by which a reward counts one turn earlier; none for no returns.
    pub(crate) gamma: Option<f64>,
    /// The trainer's policy version.
    pub(crate) at_version: Option<i64>,
}

/// Makes the rows of one attempt, one at a time. Branches of a long history share its tokens in the
/// forest but not in the rows.
pub(crate) fn rows<'a>(
    attempt: &'a RecordedAttempt,
    derived: &'a Derived<'a>,
    shares: &'a TokenShares<'a>,
    extras: RowExtras<'a>,
) -> impl Iterator<Item = Row> + 'a {
    let verdicts = Verdicts::new(attempt, derived);
    let builder = RowBuilder {
        attempt,
        derived,
        shares,
        extras,
        sent: OnceCell::new(),
        latest: LatestRewards::new(&attempt.rewards),
        rewards: history(&attempt.rewards),
        metadata: metadata(attempt),
        episode_verdict: verdicts.of_episode().0,
        verdicts,
    };
    shares.paths.iter().map(move |path| builder.row(*path))
}

/// All that rows are made of, and the values that the rows of one episode share.
struct RowBuilder<'a> {
    attempt: &'a RecordedAttempt,
    derived: &'a Derived<'a>,
    shares: &'a TokenShares<'a>,
    extras: RowExtras<'a>,
    /// The messages that the calls sent, once they are read.
    sent: OnceCell<PerNode<MessageIds>>,
    latest: LatestRewards,
    rewards: String,
    metadata: String,
    verdicts: Verdicts<'a>,
    episode_verdict: &'static str,
}

impl RowBuilder<'_> {
    fn token_data(&self, path: &[&Node<'_>], ids: &[i32]) -> TokenData {
        let mut data = token_data(path, ids.len());
        let policy = path[path.len() - 1].policy;
        data.fill_experts(ids, policy, self.derived.forest.nodes.iter());
        data
    }

    fn row(&self, id: PathId) -> Row {
        let record = &self.attempt.record;
        let path = &self.derived.paths[id];
        let nodes: Vec<&Node<'_>> =
            path.nodes.iter().map(|n| &self.derived.forest.nodes[*n]).collect();
        let leaf = nodes[nodes.len() - 1];

        let trajectory = trajectory(self.derived, self.shares, id);
        let spans = turn_spans(&trajectory);
        let tokens = self.tokens(&trajectory, path, &spans);
        let trained = tokens.trained();
        let trained_from = tokens.trained_version_bounds().map(|(least, _)| least);

        let left = self.left(path, &nodes, &spans);

        let trajectory_score = self.trajectory_score(id);
        let PathMessages { dialogue, answers } = self.messages(path, &nodes);
        let mut turns = self.turns(id, &trajectory, &spans, trajectory_score);
        turns.iter_mut().zip(answers).for_each(|(turn, at)| turn.message = at);
        let reasons = self.reasons(path, &dialogue);
        Row {
            // Which path this is.
            episode_id: record.id.to_string(),
            attempt: int(record.attempt as usize),
            trajectory_id: self.trajectory_id(id),
            trajectory_index: int(id.0),
            num_trajectories: int(self.derived.paths.len()),
            parent_trajectory_id: left.as_ref().and_then(|(parent, _)| parent.clone()),
            fork_position: left.map(|(_, position)| int(position)),
            kind: path.kind.as_str(),
            kind_reason: path.kind_reason.as_str(),
            group_id: record.group.as_ref().map(ToString::to_string),
            task_id: record.task.as_ref().map(ToString::to_string),
            model: leaf.model().to_owned(),

            // Its tokens and versions.
            tokenizer_fingerprint: fingerprint(path),
            logprob_kind: logprob_kind(&nodes),
            kv_cache: kv_caches(&nodes),
            prompt_len: int(trajectory.turns[0].new_prompt.len()),
            turns,
            mixed_versions: self.shares.versions(id).mixed(),
            staleness: self.extras.at_version.zip(trained_from).map(|(at, from)| at - from),
            token_data: self.token_data(&nodes, &tokens.input_ids),
            annotations: self.streams(&spans, tokens.input_ids.len()),
            scores: Vec::new(),

            // Its rewards.
            reward: self.latest.value(RewardScope::Episode),
            trajectory_reward: trajectory_score.value(),
            is_unscorable: self.is_unscorable(trajectory_score),
            token_rewards: self.latest.token_rewards(&spans, tokens.input_ids.len()),
            advantage: self.extras.advantage,
            group: self.extras.group.cloned(),
            rewards: self.rewards.clone(),
            row_weight: self.shares.row_weight(trained),

            // How far it can be trusted.
            fidelity: match &path.retokenized {
                Some(_) => Some(RETOKENIZED),
                None => leaf.has_ids.then(|| fidelity(&nodes)),
            },
            verdict: verdict(trained, &reasons),
            episode_verdict: self.episode_verdict,
            reasons,
            status: self.status(leaf),
            closed_at: record.closed_at,

            dialogue,
            metadata: self.metadata.clone(),
            tokens,
        }
    }

    fn streams(&self, spans: &[TurnSpan], tokens: usize) -> Vec<TokenStream> {
        token_streams(&self.attempt.annotations, spans, tokens)
    }

    /// Returns the messages of a path. The bodies of an attempt are read at its first row, unless
    /// the derivation read them.
    fn messages(&self, path: &Path, nodes: &[&Node<'_>]) -> PathMessages {
        let forest = &self.derived.forest;
        let sent = match forest.message_ids.len() {
            0 => self
                .sent
                .get_or_init(|| sent_message_ids(&forest.nodes, |node| forest.parent(node))),
            _ => &forest.message_ids,
        };
        let sent: Vec<&MessageIds> = path.nodes.iter().map(|node| &sent[*node]).collect();
        path_messages(nodes, &sent)
    }

    /// The status of the attempt, or of a path whose attempt was closed without one. A harness that
    /// closes every attempt as completed does not know of limits.
    fn status(&self, leaf: &Node<'_>) -> String {
        let record = &self.attempt.record;
        if failed_by_infrastructure(record, LastCall::of(&self.attempt.calls)) {
            return INFRASTRUCTURE_FAILED.to_owned();
        }
        match (record.status.as_deref(), status(leaf)) {
            (None | Some("completed"), "truncated") => "truncated".to_owned(),
            (told, found) => told.unwrap_or(found).to_owned(),
        }
    }

    fn reasons(&self, path: &Path, dialogue: &Dialogue) -> BTreeSet<Reason> {
        let mut reasons = self.verdicts.of_path(path);
        reasons.extend(dialogue.lacks_parts().then_some(Reason::UnreadParts));
        reasons
    }

    /// The trajectory that a path left, and the first token that is its own: another path of the
    /// attempt, or one of the recording that it went on from.
    fn left(
        &self,
        path: &Path,
        nodes: &[&Node<'_>],
        spans: &[TurnSpan],
    ) -> Option<(Option<String>, usize)> {
        if let Some(branch) = path.branch {
            return Some((Some(self.trajectory_id(PathId(branch.parent))), branch.position));
        }
        let replayed = nodes.iter().map_while(|node| node.ended.replayed);
        let last = replayed.enumerate().last().filter(|(at, _)| at + 1 < nodes.len())?;
        let (at, call) = last;
        Some((self.attempt.trunk.get(&call).cloned(), spans[at].end))
    }

    fn trajectory_id(&self, path: PathId) -> String {
        let record = &self.attempt.record;
        format!("{}/{}/{}", record.id, record.attempt, path.0)
    }

    /// Makes the token columns. A token without a logprob is not trained, even in a trained turn.
    fn tokens(&self, trajectory: &Trajectory, path: &Path, spans: &[TurnSpan]) -> Tokens {
        let mut loss_mask = trajectory.loss_mask();
        let mut logprobs = trajectory.logprobs();
        for (mask, logprob) in loss_mask.iter_mut().zip(&mut logprobs) {
            if logprob.is_nan() {
                (*mask, *logprob) = (0, 0.0);
            }
        }
        Tokens {
            // The scan took only ids that fit.
            input_ids: trajectory.input_ids().into_iter().map(|id| id as i32).collect(),
            versions: trajectory.versions(),
            changed: self.changed_versions(path, &loss_mask, spans),
            loss_mask,
            logprobs,
        }
    }

    /// Returns the versions before and after each version change during a trained turn.
    fn changed_versions(&self, path: &Path, loss_mask: &[i8], spans: &[TurnSpan]) -> Vec<i64> {
        path.nodes
            .iter()
            .zip(spans)
            .filter(|(_, span)| loss_mask[span.start..span.end].contains(&1))
            .filter_map(|(node, _)| self.derived.forest.nodes[*node].version_change())
            .flat_map(|change| [change.start, change.end])
            .filter_map(row_version)
            .map(i64::from)
            .collect()
    }

    /// Returns the score of the trajectory of any choice that this path is the first to hold, the
    /// last of them first.
    fn trajectory_score(&self, id: PathId) -> Score {
        let nodes = self.derived.paths[id].nodes.iter().rev();
        let own = nodes.take_while(|node| self.derived.paths.first_of(**node) == id);
        self.latest.trajectory_score(own.map(|node| {
            let node = &self.derived.forest.nodes[*node];
            (node.call_id(), node.index)
        }))
    }

    fn is_unscorable(&self, trajectory_score: Score) -> bool {
        trajectory_score.or(self.latest.score(RewardScope::Episode)) == Score::Null
    }

    fn turns(
        &self,
        id: PathId,
        trajectory: &Trajectory,
        spans: &[TurnSpan],
        trajectory_score: Score,
    ) -> Vec<TurnRow> {
        let path = &self.derived.paths[id];
        // Rewards of later turns count for earlier ones only where that is asked for.
        let scores = self.latest.turn_scores(spans, trajectory_score);
        let returns = match self.extras.gamma {
            Some(gamma) => returns(&scores, gamma),
            None => vec![None; scores.len()],
        };

        let rows = trajectory.turns.iter().enumerate().map(|(at, turn)| {
            let id_of_node = path.nodes[at];
            let node = &self.derived.forest.nodes[id_of_node];
            let versions = turn_versions(turn, node);
            TurnRow {
                call_id: turn.call_id.to_string(),
                choice: int(turn.choice as usize),
                start: int(spans[at].start),
                end: int(spans[at].end),
                finish_reason: turn.finish_reason.clone(),
                version_start: versions.start,
                version_end: versions.end,
                temperature: turn.temperature,
                reward: self.latest.value(RewardScope::Call(turn.call_id)),
                continued: self.derived.paths.nodes[id_of_node].continued,
                mc_return: returns[at],
                model: node.model().to_owned(),
                // What a recording gave is a turn of the source.
                own: self.shares.trains(id, id_of_node) && node.ended.replayed.is_none(),
                complete: node.ended.outcome == Outcome::Complete,
                message: None,
            }
        });
        rows.collect()
    }
}

/// Returns the fingerprint of the tokenizer that made the ids of a path; empty where none did.
fn fingerprint(path: &Path) -> String {
    path.retokenized.as_ref().map_or_else(String::new, |made| made.fingerprint.clone())
}

/// The versions of a turn's first and last token.
struct TurnVersions {
    start: Option<i64>,
    end: Option<i64>,
}

/// Returns the versions of a turn. A version change during the call says more than the tokens do.
fn turn_versions(turn: &Turn, node: &Node<'_>) -> TurnVersions {
    let of_tokens = turn.sampled.versions();
    let known = |version: Option<&i32>| version.copied().filter(|version| *version >= 0);
    let change = node.version_change();
    let start = change.and_then(|change| row_version(change.start));
    let end = change.and_then(|change| row_version(change.end));
    TurnVersions {
        start: start.or(known(of_tokens.first())).map(i64::from),
        end: end.or(known(of_tokens.last())).map(i64::from),
    }
}

/// Converts a length or a count, which the file numbers with 32 bits. Those of arrays in memory are
/// far smaller.
fn int(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Returns the position of the sampled tokens of each turn.
fn turn_spans(trajectory: &Trajectory) -> Vec<TurnSpan> {
    let mut spans = Vec::with_capacity(trajectory.turns.len());
    let mut end = 0;
    for turn in &trajectory.turns {
        let start = end + turn.new_prompt.len();
        end = start + turn.sampled.ids().len();
        spans.push(TurnSpan { call: turn.call_id, choice: turn.choice, start, end });
    }
    spans
}

fn metadata(attempt: &RecordedAttempt) -> String {
    let record = &attempt.record;
    let labels: serde_json::Map<_, _> =
        record.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let mut metadata = json!({ "labels": labels, "source": record.source.as_str() });
    if let Some(chain) = attempt.chain {
        metadata["chain"] = json!({ "calls": chain.calls, "digest": chain.to_string() });
    }
    metadata.to_string()
}

/// Returns the lowest fidelity of the nodes' ids.
fn fidelity(nodes: &[&Node<'_>]) -> &'static str {
    let mut choices = nodes.iter().filter_map(|node| node.choice);
    let is_mapped = choices.any(|choice| choice.fidelity == Fidelity::Mapped);
    if is_mapped { Fidelity::Mapped.as_str() } else { Fidelity::Exact.as_str() }
}

/// Returns the kind of logprobs that all nodes with ids share, else `unknown`.
fn logprob_kind(nodes: &[&Node<'_>]) -> String {
    let with_ids = nodes.iter().filter(|node| node.has_ids);
    let kinds: BTreeSet<&str> = with_ids.map(|node| node.ended.logprob_kind.as_str()).collect();
    match Vec::from_iter(kinds).as_slice() {
        [only] if !only.is_empty() => (*only).to_owned(),
        _ => "unknown".to_owned(),
    }
}

/// Returns the numbers of the KV caches with which the nodes with ids were sampled, where they are
/// not the model's own.
fn kv_caches(nodes: &[&Node<'_>]) -> Option<String> {
    let with_ids = nodes.iter().filter(|node| node.has_ids);
    let found: BTreeSet<String> = with_ids.filter_map(|node| kv_cache(node)).collect();
    (!found.is_empty()).then(|| Vec::from_iter(found).join(", "))
}

/// Returns the status of a path whose episode was closed without one.
fn status(leaf: &Node<'_>) -> &'static str {
    if is_limit(leaf.choice.and_then(|choice| choice.finish_reason.as_deref())) {
        return "truncated";
    }
    match leaf.ended.outcome {
        Outcome::Complete => "completed",
        Outcome::ClientGone => "aborted",
        Outcome::UpstreamFailed | Outcome::Capped => INFRASTRUCTURE_FAILED,
        Outcome::Refused => "failed",
    }
}

#[cfg(test)]
mod tests {
    use episode::{Call, Reward};

    use super::*;
    use crate::rows::messages::RowMessage;
    use crate::tests::fixture::{beside, call, episode, reply, rows_of, text_call, with_bodies};

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
    fn a_reply_that_says_what_cannot_be_is_not_trained() {
        let untrained = |change: &dyn Fn(&mut episode::CallEnd)| {
            let mut lie = call(1, &[1], &[&[2]]);
            change(reply(&mut lie));
            let row = one(vec![lie]);
            (row.verdict, reasons(&row).contains(&"impossible_values"))
        };
        let lies: [&dyn Fn(&mut episode::CallEnd); 4] = [
            &|end| end.choices[0].logprobs[0] = 7.5,
            &|end| end.choices[0].logprobs[0] = f32::INFINITY,
            &|end| end.usage.completion = Some(u64::MAX),
            &|end| end.choices[0].versions[0].start = 9,
        ];
        assert!(lies.iter().all(|lie| untrained(*lie) == ("unusable", true)));
        // Servers that sum in 32 bits are a little off.
        assert_eq!(untrained(&|end| end.choices[0].logprobs[0] = 1e-6), ("exact", false));
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
        for reason in ["length", "max_tokens"] {
            let mut cut = call(1, &[1], &[&[2]]);
            reply(&mut cut).choices[0].finish_reason = Some(reason.to_owned());
            let mut attempt = episode(vec![cut]);
            for (told, expected) in
                [(None, "truncated"), (Some("completed"), "truncated"), (Some("failed"), "failed")]
            {
                attempt.record.status = told.map(str::to_owned);
                let row = rows_of(&attempt).remove(0);
                assert_eq!((row.status.as_str(), row.verdict), (expected, "exact"));
            }
        }
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
        let unknown = Some("sampling_unknown");
        let neutral = r#"{"temperature":1.0,"top_p":1,"top_k":-1,"min_p":0,
            "repetition_penalty":1,"presence_penalty":0,"frequency_penalty":0}"#;
        let cases = [
            ("raw", neutral, None),
            ("raw", "{}", unknown),
            ("raw", r#"{"temperature":1.0,"top_p":1}"#, unknown),
            ("raw", r#"{"temperature":0.7}"#, bent),
            ("raw", r#"{"temperature":0}"#, bent),
            ("raw", r#"{"top_k":20}"#, bent),
            ("raw", r#"{"min_tokens":2}"#, bent),
            ("unknown", "{}", unknown),
            ("temperature", r#"{"temperature":0.7,"top_p":1,"top_k":-1,"min_p":0}"#, None),
            ("temperature", r#"{"temperature":0,"top_p":1,"top_k":-1,"min_p":0}"#, bent),
            ("temperature", r#"{"temperature":0.7}"#, unknown),
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
    fn what_the_server_chose_is_judged_where_it_is_recorded() {
        let with = |value: &str| {
            let mut call = call(1, &[1], &[&[2]]);
            let ended = reply(&mut call);
            ended.logprob_kind = "raw".to_owned();
            ended.sampled_with = Some(format!(r#"{{"temperature":{value}}}"#));
            one(vec![call])
        };
        assert_eq!(with(r#"{"value":1,"source":"server"}"#).verdict, "exact");
        let cold = with(r#"{"value":0.6,"source":"server"}"#);
        assert_eq!(reasons(&cold), ["logprobs_not_of_sampling_distribution"]);
        let unknown = with(r#"{"value":null,"source":"unknown"}"#);
        assert_eq!((unknown.verdict, reasons(&unknown)), ("usable", vec!["sampling_unknown"]));
    }

    #[test]
    fn a_row_says_with_what_kv_cache_it_was_sampled() {
        let with = |numbers: &[Option<&str>]| {
            let calls = numbers.iter().zip(1..).map(|(numbers, n)| {
                let prompt: Vec<u32> = (1..2 * n).collect();
                let mut call = call(n, &prompt, &[&[2 * n]]);
                let entry =
                    |name| format!(r#"{{"kv_cache":{{"value":"{name}","source":"server"}}}}"#);
                reply(&mut call).sampled_with = numbers.map(entry);
                call
            });
            one(calls.collect()).kv_cache
        };
        assert_eq!(with(&[None, None]), None);
        assert_eq!(with(&[None, Some("fp8_e4m3")]).as_deref(), Some("fp8_e4m3"));
        let both = with(&[Some("fp8_e5m2"), Some("fp8_e4m3")]);
        assert_eq!(both.as_deref(), Some("fp8_e4m3, fp8_e5m2"));
    }

    #[test]
    fn the_tokens_of_two_models_are_trained_in_two_rows() {
        let mut other = call(2, &[1, 2, 3], &[&[4]]);
        reply(&mut other).model = Some("m2".to_owned());
        let rows = rows_of(&episode(vec![call(1, &[1], &[&[2]]), other]));
        let brief = |row: &Row| (row.model.clone(), row.tokens.loss_mask.clone(), row.kind_reason);
        let expected = [
            ("m".to_owned(), vec![0, 1], "first_conversation"),
            ("m2".to_owned(), vec![0, 0, 0, 1], "other_model"),
        ];
        assert_eq!(rows.iter().map(brief).collect::<Vec<_>>(), expected);
        assert_eq!((rows[1].kind, reasons(&rows[1])), ("main", vec!["models_differ"]));
        let of: Vec<_> = rows[1].turns.iter().map(|turn| turn.model.as_str()).collect();
        assert_eq!(of, ["m", "m2"]);
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
            provenance: episode::Provenance::default(),
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

    fn judged(episode: &mut RecordedAttempt, said: &[(RewardScope, Option<f64>)]) {
        let reward = |(scope, value): &(RewardScope, Option<f64>)| Reward {
            scope: *scope,
            name: "reward".to_owned(),
            value: *value,
            source: "judge".to_owned(),
            at: 5,
            provenance: episode::Provenance::default(),
        };
        episode.rewards = said.iter().map(reward).collect();
    }

    /// A fork: 1 [2] 3 [4 5] and, from the first turn, 1 (2) 8 [9]; the second branch began first.
    fn forked() -> RecordedAttempt {
        let mut late = call(4, &[1, 2, 3], &[&[4, 5]]);
        late.begun.started_at = 15;
        episode(vec![call(1, &[1], &[&[2]]), call(2, &[1, 2, 8], &[&[9]]), late])
    }

    #[test]
    fn what_a_recording_answered_is_context_of_a_branch() {
        let source = |n| call(n, &[], &[]).begun.call_id;
        let mut calls = vec![
            call(1, &[1], &[&[2]]),
            call(2, &[1, 2, 3], &[&[4, 5]]),
            call(3, &[1, 2, 3, 4, 5, 6], &[&[7]]),
        ];
        for (call, n) in calls.iter_mut().zip([11, 12]) {
            call.ended.as_mut().unwrap().replayed = Some(source(n));
        }
        let mut branch = episode(calls.clone());
        branch.trunk = [(source(12), "src/0/3".to_owned())].into();
        let rows = rows_of(&branch);
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!(row.tokens.loss_mask, [0, 0, 0, 0, 0, 0, 1], "only what is live is trained");
        assert_eq!(
            (row.parent_trajectory_id.as_deref(), row.fork_position),
            (Some("src/0/3"), Some(5))
        );
        assert_eq!((row.verdict, reasons(row)), ("exact", vec!["replayed"]));
        assert!((row.row_weight - 1.0).abs() < 1e-9);

        // A replay to the end trains nothing, and left nothing.
        calls.pop();
        let row = &rows_of(&episode(calls))[0];
        assert_eq!((row.tokens.trained(), row.verdict, row.fork_position), (0, "unusable", None));
    }

    #[test]
    fn a_trajectory_is_rewarded_by_its_last_call() {
        let mut episode = forked();
        let at = |n: usize| episode.calls[n].begun.call_id;
        let [first, other, last] = [at(0), at(1), at(2)];
        let leaf = |call| RewardScope::Trajectory { call, choice: 0 };
        judged(&mut episode, &[(leaf(last), Some(1.0)), (leaf(other), None)]);
        let rewards = |episode: &RecordedAttempt| -> Vec<_> {
            rows_of(episode).iter().map(|row| row.trajectory_reward).collect()
        };
        assert_eq!(rewards(&episode), [Some(1.0), None]);
        assert_eq!(rows_of(&episode)[0].reward, None, "the episode was not scored");
        // What both hold is the first one's; its last call comes before it.
        judged(&mut episode, &[(leaf(first), Some(3.0)), (leaf(other), Some(2.0))]);
        assert_eq!(rewards(&episode), [Some(3.0), Some(2.0)]);
        judged(&mut episode, &[(leaf(last), Some(1.0)), (leaf(first), Some(3.0))]);
        assert_eq!(rewards(&episode), [Some(1.0), None]);
    }

    #[test]
    fn rewards_of_tokens_stand_in_every_row_that_holds_them() {
        let mut episode = forked();
        let at = |n: usize| episode.calls[n].begun.call_id;
        let span = RewardScope::Tokens { call: at(2), choice: 0, start: 0, end: 1 };
        let said = [(RewardScope::Call(at(0)), Some(0.5)), (span, Some(-1.0))];
        judged(&mut episode, &said);
        let rows = rows_of(&episode);
        let first = [None, Some(0.5), None, Some(-1.0), None];
        assert_eq!(rows[0].token_rewards.as_deref(), Some(&first[..]));
        assert_eq!(rows[1].token_rewards.as_deref(), Some(&[None, Some(0.5), None, None][..]));
        judged(&mut episode, &[]);
        assert_eq!(rows_of(&episode)[0].token_rewards, None);
    }

    #[test]
    fn returns_go_back_along_the_branch_and_not_along_time() {
        let mut episode = forked();
        let at = |n: usize| episode.calls[n].begun.call_id;
        let leaf = RewardScope::Trajectory { call: at(1), choice: 0 };
        let said = [
            (RewardScope::Episode, Some(8.0)),
            (RewardScope::Call(at(0)), Some(1.0)),
            (leaf, Some(2.0)),
        ];
        judged(&mut episode, &said);
        let discounted = RowExtras { gamma: Some(0.5), ..RowExtras::default() };
        let returns = |row: &Row| row.turns.iter().map(|turn| turn.mc_return).collect::<Vec<_>>();
        let rows = beside(&episode, discounted);
        assert_eq!(returns(&rows[0]), [Some(5.0), Some(8.0)]);
        assert_eq!(returns(&rows[1]), [Some(2.0), Some(2.0)]);
        assert_eq!(returns(&rows_of(&episode)[0]), [None, None], "nobody asked");
    }

    #[test]
    fn staleness_is_counted_from_the_oldest_trained_version() {
        let told = RowExtras { at_version: Some(9), ..RowExtras::default() };
        assert_eq!(beside(&forked(), told)[0].staleness, Some(2));
        assert_eq!(rows_of(&forked())[0].staleness, None);
    }

    #[test]
    fn a_change_of_version_during_a_turn_is_among_the_versions() {
        let stamped = |n, prompt: &[u32], sampled: &[&[u32]], labels: [&str; 2]| {
            let mut call = call(n, prompt, sampled);
            reply(&mut call).choices[0].versions.clear();
            let [start, end] = labels.map(|label| Some(label.to_owned()));
            reply(&mut call).stamps = episode::VersionStamps { start, end };
            call
        };
        let first = stamped(1, &[1], &[&[2]], ["4", "5"]);
        let told = RowExtras { at_version: Some(9), ..RowExtras::default() };
        let bounds = |calls: Vec<Call>| {
            let row = beside(&episode(calls), told).remove(0);
            let versions = || row.tokens.trained_versions();
            (versions().min(), versions().max(), row.staleness)
        };
        let known = call(2, &[1, 2, 3], &[&[4]]);
        let both = vec![first.clone(), known.clone()];
        assert_eq!(bounds(both), (Some(4), Some(7), Some(5)));
        let back = stamped(1, &[1], &[&[2]], ["9", "8"]);
        assert_eq!(bounds(vec![back, known.clone()]), (Some(7), Some(9), Some(2)));
        assert_eq!(bounds(vec![first.clone()]), (Some(4), Some(5), Some(5)));
        // What is not trained does not count.
        let mut untrained = first;
        reply(&mut untrained).outcome = Outcome::ClientGone;
        assert_eq!(bounds(vec![untrained]), (None, None, None));
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
        let texts = |m: &RowMessage| m.content.clone().unwrap();
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
