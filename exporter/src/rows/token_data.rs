//! Data that the server reported of the tokens of a row, in arrays with one element a token.
//!
//! They are joined as the ids are: each turn brings the arrays of its own tokens. Where the server
//! reported nothing of a token (a prompt token has no alternatives, a server kept no array), its
//! element is empty, so all token columns have one length.

use episode::Choice;

use crate::graph::node::Node;

/// One list for each token.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ragged<T> {
    /// Number of elements of each token.
    pub(crate) lengths: Vec<usize>,
    /// All elements, token by token.
    pub(crate) values: Vec<T>,
}

/// The data of a row's tokens; none where the server sent no such array for any of its turns.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TokenData {
    /// Ids of the likeliest tokens; null where the server names them by text alone.
    pub(crate) top_ids: Option<Ragged<Option<i32>>>,
    /// Texts of the likeliest tokens; null where the server names them by id alone.
    pub(crate) top_tokens: Option<Ragged<Option<String>>>,
    /// Logprobs of the likeliest tokens.
    pub(crate) top_logprobs: Option<Ragged<f32>>,
    /// Ids that truncated sampling could choose from.
    pub(crate) kept: Option<Ragged<i32>>,
    pub(crate) experts: Option<Experts>,
    /// Number of arrays that could not be read.
    pub(crate) unread: u64,
}

/// The experts of each token of a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Experts {
    /// Shape of one token: `[layers, k]`, or `[layers * k]`.
    pub(crate) shape: Vec<usize>,
    /// Experts token by token; zeros where none are recorded.
    pub(crate) values: Vec<u16>,
    /// 1 for each token whose experts are recorded, else 0.
    pub(crate) known: Vec<i8>,
}

impl Experts {
    /// Returns the number of experts of one token, over all layers.
    pub(crate) fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the first token without experts, if one after it has some.
    fn first_gap(&self) -> Option<usize> {
        let gap = self.known.iter().position(|known| *known == 0)?;
        self.known[gap..].contains(&1).then_some(gap)
    }
}

/// Joins the arrays of the nodes of a path that has `tokens` tokens.
pub(crate) fn token_data(path: &[&Node<'_>], tokens: usize) -> TokenData {
    let mut data = TokenData::default();
    for node in path.iter().filter(|node| node.has_ids) {
        let Some(choice) = node.choice else { continue };
        let read = [
            column(choice, "top_logprobs").map(|json| data.add_tops(node, json)),
            column(choice, "sampling_mask").map(|json| data.add_kept(node, json)),
            column(choice, "routed_experts").map(|json| data.add_experts(node, json, tokens)),
        ];
        data.unread += read.into_iter().flatten().filter(Option::is_none).count() as u64;
    }
    data.pad(tokens);
    data
}

fn column<'a>(choice: &'a Choice, name: &str) -> Option<&'a str> {
    choice
        .token_columns
        .iter()
        .find(|column| column.name == name)
        .map(|column| column.json.as_str())
}

impl TokenData {
    fn add_tops(&mut self, node: &Node<'_>, json: &str) -> Option<()> {
        let tops = per_sampled_token(node, wire::alternatives(json)?)?;
        let at = node.prompt.len();
        let id = |top: &wire::Alternative| top.id.and_then(|id| i32::try_from(id).ok());
        self.top_ids.get_or_insert_default().add(at, &tops, id);
        self.top_tokens.get_or_insert_default().add(at, &tops, |top| top.token.clone());
        self.top_logprobs.get_or_insert_default().add(at, &tops, |top| top.logprob);
        Some(())
    }

    fn add_kept(&mut self, node: &Node<'_>, json: &str) -> Option<()> {
        let kept = per_sampled_token(node, wire::sampling_mask(json)?)?;
        if kept.iter().flatten().any(|id| i32::try_from(*id).is_err()) {
            return None;
        }
        self.kept.get_or_insert_default().add(node.prompt.len(), &kept, |id| *id as i32);
        Some(())
    }

    /// Adds the experts that the call of a node reports of the first `tokens` tokens of its path.
    fn add_experts(&mut self, node: &Node<'_>, json: &str, tokens: usize) -> Option<()> {
        let read = wire::routing(json, node.path_len())?;
        let (width, count) = (read.width(), read.tokens());
        let start = read.start.or_else(|| usual_start(node.path_len(), count))?;
        let is_other_shape =
            self.experts.as_ref().is_some_and(|experts| experts.shape != read.shape);
        if is_other_shape || start.saturating_add(count) > node.path_len() {
            return None;
        }

        let experts = self.experts.get_or_insert_with(|| Experts {
            shape: read.shape.clone(),
            values: vec![0; tokens * width],
            known: vec![0; tokens],
        });
        // Later calls repeat the experts of tokens that earlier calls sampled. The first report is
        // that of the pass in which the token was read, so it stands.
        for (token, row) in (start..tokens).zip(read.experts.chunks_exact(width)) {
            if experts.known[token] == 0 {
                experts.known[token] = 1;
                experts.values[token * width..][..width].copy_from_slice(row);
            }
        }
        Some(())
    }

    /// Fills in experts that no call of the path reports, because another call of the same policy
    /// with the same first tokens did: a call is asked only for those that no earlier one has. The
    /// experts of a token depend on it and on those before it.
    pub(crate) fn fill_experts<'a>(
        &mut self,
        ids: &[i32],
        policy: &str,
        nodes: impl IntoIterator<Item = &'a Node<'a>>,
    ) {
        let is_same = |(id, own): &(u32, &i32)| i32::try_from(*id) == Ok(**own);
        for node in nodes {
            let Some(gap) = self.experts.as_ref().and_then(Experts::first_gap) else { return };
            if !node.has_ids || node.policy != policy {
                continue;
            }
            let path = node.prompt.iter().chain(node.sampled).copied();
            let shared = path.zip(ids).take_while(is_same).count();
            let json = node.choice.and_then(|choice| column(choice, "routed_experts"));
            if let Some(json) = json.filter(|_| shared > gap) {
                self.add_experts(node, json, shared);
            }
        }
    }

    fn pad(&mut self, tokens: usize) {
        self.top_ids.iter_mut().for_each(|column| column.pad(tokens));
        self.top_tokens.iter_mut().for_each(|column| column.pad(tokens));
        self.top_logprobs.iter_mut().for_each(|column| column.pad(tokens));
        self.kept.iter_mut().for_each(|column| column.pad(tokens));
    }

    /// Estimates the bytes that the arrays take in memory.
    pub(crate) fn bytes(&self) -> usize {
        const TOP_BYTES: usize = 8 + 24 + 4;
        let tops = self.top_ids.as_ref().map_or(0, |tops| tops.values.len() * TOP_BYTES);
        let kept = self.kept.as_ref().map_or(0, |kept| kept.values.len() * 4);
        let experts = self.experts.as_ref().map_or(0, |e| e.values.len() * 2 + e.known.len());
        tops + kept + experts
    }
}

/// Returns the token at which a server's experts begin where it does not say so. They cover all
/// tokens, or end with the last token that another one was sampled after.
fn usual_start(path_len: usize, count: usize) -> Option<usize> {
    if count == path_len { Some(0) } else { path_len.saturating_sub(1).checked_sub(count) }
}

/// Checks that there is one element for each sampled token. A server may report nothing of the stop
/// token.
fn per_sampled_token<T>(node: &Node<'_>, mut elements: Vec<Vec<T>>) -> Option<Vec<Vec<T>>> {
    let count = node.sampled.len();
    if elements.len() + 1 == count {
        elements.push(Vec::new());
    }
    (elements.len() == count).then_some(elements)
}

impl<T> Ragged<T> {
    fn add<U>(&mut self, at: usize, tokens: &[Vec<U>], value: impl Fn(&U) -> T) {
        self.pad(at);
        self.lengths.extend(tokens.iter().map(Vec::len));
        self.values.extend(tokens.iter().flatten().map(value));
    }

    fn pad(&mut self, tokens: usize) {
        self.lengths.resize(tokens, 0);
    }
}

#[cfg(test)]
mod tests {
    use episode::{Call, TokenColumn};
    use serde_json::{Value, json};

    use super::*;
    use crate::graph::scan::choice_nodes;
    use crate::tests::fixture::{call, reply};

    fn with(mut call: Call, name: &str, json: &Value) -> Call {
        let column = TokenColumn { name: name.to_owned(), json: json.to_string() };
        reply(&mut call).choices[0].token_columns.push(column);
        call
    }

    fn read(calls: &[Call]) -> TokenData {
        let (nodes, _) = choice_nodes(calls);
        let path: Vec<_> = nodes.iter().collect();
        token_data(&path, path.last().unwrap().path_len())
    }

    /// The row is 1 2 [3 4] 5 [6].
    fn two_turns() -> [Call; 2] {
        [call(1, &[1, 2], &[&[3, 4]]), call(2, &[1, 2, 3, 4, 5], &[&[6]])]
    }

    #[test]
    fn a_row_without_arrays_has_no_columns() {
        assert_eq!(read(&two_turns()), TokenData::default());
    }

    #[test]
    fn alternatives_stand_at_their_own_tokens() {
        let [first, second] = two_turns();
        let tops = json!([[{ "token": "token_id:3", "logprob": -0.5 }],
            [{ "token": "x", "logprob": -1 }, { "token": "token_id:9", "logprob": -2 }]]);
        let data = read(&[with(first, "top_logprobs", &tops), second]);
        let lengths = vec![0, 0, 1, 2, 0, 0];
        let ids = Ragged { lengths: lengths.clone(), values: vec![Some(3), None, Some(9)] };
        assert_eq!(data.top_ids, Some(ids));
        let texts = Ragged { lengths, values: vec![None, Some("x".to_owned()), None] };
        assert_eq!(data.top_tokens, Some(texts));
        assert_eq!(data.top_logprobs.unwrap().values, [-0.5, -1.0, -2.0]);
        assert_eq!((data.kept, data.experts, data.unread), (None, None, 0));
    }

    #[test]
    fn a_kept_set_may_lack_the_stop_token_and_no_other() {
        let [first, second] = two_turns();
        let lacks = with(first, "sampling_mask", &json!([[3, 7]]));
        let data = read(&[lacks, with(second, "sampling_mask", &json!([[6]]))]);
        let kept = Ragged { lengths: vec![0, 0, 2, 0, 0, 1], values: vec![3, 7, 6] };
        assert_eq!((data.kept, data.unread), (Some(kept), 0));
        let [first, second] = two_turns();
        let data = read(&[with(first, "sampling_mask", &json!([[3], [4], [5]])), second]);
        assert_eq!((data.kept, data.unread), (None, 1));
    }

    #[test]
    fn the_next_turn_reports_the_experts_of_the_last_token() {
        let [first, second] = two_turns();
        // Of 1 2 3, then of 1 2 3 4 5: the first saying stands, the last token has none.
        let first = with(first, "routed_experts", &json!([[[1, 2]], [[3, 4]], [[5, 6]]]));
        let again = json!([[[9, 9]], [[9, 9]], [[9, 9]], [[7, 8]], [[1, 1]]]);
        let data = read(&[first, with(second, "routed_experts", &again)]);
        let experts = Experts {
            shape: vec![1, 2],
            values: vec![1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 0, 0],
            known: vec![1, 1, 1, 1, 1, 0],
        };
        assert_eq!((data.experts, data.unread), (Some(experts), 0));
    }

    #[test]
    fn experts_of_sampled_tokens_alone_stand_at_these_tokens() {
        let [first, second] = two_turns();
        let data = read(&[first, with(second, "routed_experts", &json!([[[7]], [[8]]]))]);
        assert_eq!(data.experts.unwrap().values, [0, 0, 0, 7, 8, 0]);
        let [first, second] = two_turns();
        let whole = json!([[[1]], [[2]], [[3]], [[4]], [[5]], [[6]]]);
        let data = read(&[first, with(second, "routed_experts", &whole)]);
        assert_eq!(data.experts.unwrap().known, [1; 6]);
    }

    #[test]
    fn experts_of_the_same_tokens_fill_gaps() {
        let [first, _] = two_turns();
        let first = with(first, "routed_experts", &json!([[[1, 2]], [[3, 4]], [[5, 6]]]));
        // It was to go on from 1 2 [3 4], but the second token of that came back as 9.
        let other = call(2, &[1, 2, 3, 9, 5], &[&[6]]);
        let other = with(other, "routed_experts", &json!([[[7, 7]], [[8, 8]]]));
        let calls = [first, other];
        let (nodes, _) = choice_nodes(&calls);
        let other = nodes.iter().last().unwrap();
        let filled = |policy: &str| {
            let mut data = token_data(&[other], 6);
            data.fill_experts(&[1, 2, 3, 9, 5, 6], policy, nodes.iter());
            data.experts.unwrap()
        };
        let whole = filled(other.policy);
        assert_eq!(whole.known, [1, 1, 1, 1, 1, 0]);
        assert_eq!(whole.values, [1, 2, 3, 4, 5, 6, 7, 7, 8, 8, 0, 0]);
        assert_eq!(filled("another").known, [0, 0, 0, 1, 1, 0]);
    }

    #[test]
    fn experts_of_another_shape_or_of_too_many_tokens_are_not_read() {
        let [first, second] = two_turns();
        let first = with(first, "routed_experts", &json!([[[1, 2]], [[3, 4]], [[5, 6]]]));
        let data = read(&[first, with(second, "routed_experts", &json!([[1], [2]]))]);
        assert_eq!((data.experts.unwrap().shape, data.unread), (vec![1, 2], 1));
        let [first, second] = two_turns();
        let long = with(first, "routed_experts", &json!([[1], [2], [3], [4], [5]]));
        assert_eq!(read(&[long, second]).unread, 1);
    }
}
