//! Sides: the arrays beside the tokens of a row, as long as its ids.
//!
//! They are joined as the ids are: each turn brings what the server said of its own tokens. Where
//! nothing was said of a token (a prompt token has no alternatives, a server kept no array) its
//! element is empty, so that all token columns have one length.

use episode::Choice;

use crate::graph::node::Node;

/// One list a token.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ragged<T> {
    /// How many elements each token has.
    pub(crate) lengths: Vec<usize>,
    /// All elements, token by token.
    pub(crate) values: Vec<T>,
}

/// The side columns of a row; none where the server sent no such array for any of its turns.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sides {
    /// Ids of the likeliest tokens; null where the server names them by text alone.
    pub(crate) top_ids: Option<Ragged<Option<i32>>>,
    /// Their texts; null where the server names them by id alone.
    pub(crate) top_tokens: Option<Ragged<Option<String>>>,
    /// Their logprobs.
    pub(crate) top_logprobs: Option<Ragged<f32>>,
    /// Ids that truncated sampling left to choose from.
    pub(crate) kept: Option<Ragged<i32>>,
    pub(crate) experts: Option<Experts>,
    /// Arrays that are there and could not be read.
    pub(crate) unread: u64,
}

/// The experts of each token of a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Experts {
    /// What one token has: `[layers, k]`, or `[layers * k]`.
    pub(crate) shape: Vec<usize>,
    /// Token by token; zeros where none is recorded.
    pub(crate) values: Vec<u16>,
    /// 1 for each token whose experts are recorded.
    pub(crate) known: Vec<i8>,
}

impl Experts {
    /// Number of experts of one token, over all layers.
    pub(crate) fn width(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The arrays of a path whose last choice ends at token `tokens`.
pub(crate) fn sides(path: &[&Node<'_>], tokens: usize) -> Sides {
    let mut sides = Sides::default();
    for node in path.iter().filter(|node| node.has_ids) {
        let Some(choice) = node.choice else { continue };
        let read = [
            side(choice, "top_logprobs").map(|json| sides.add_tops(node, json)),
            side(choice, "sampling_mask").map(|json| sides.add_kept(node, json)),
            side(choice, "routed_experts").map(|json| sides.add_experts(node, json, tokens)),
        ];
        sides.unread += read.into_iter().flatten().filter(Option::is_none).count() as u64;
    }
    sides.pad(tokens);
    sides
}

fn side<'a>(choice: &'a Choice, name: &str) -> Option<&'a str> {
    choice.sides.iter().find(|side| side.name == name).map(|side| side.json.as_str())
}

impl Sides {
    fn add_tops(&mut self, node: &Node<'_>, json: &str) -> Option<()> {
        let tops = of_tokens(node, wire::alternatives(json)?)?;
        let ids = |top: &wire::Alternative| top.id.and_then(|id| i32::try_from(id).ok());
        let at = node.prompt.len();
        self.top_ids.get_or_insert_default().add(at, &tops, ids);
        self.top_tokens.get_or_insert_default().add(at, &tops, |top| top.token.clone());
        self.top_logprobs.get_or_insert_default().add(at, &tops, |top| top.logprob);
        Some(())
    }

    fn add_kept(&mut self, node: &Node<'_>, json: &str) -> Option<()> {
        let kept = of_tokens(node, wire::kept(json)?)?;
        if kept.iter().flatten().any(|id| i32::try_from(*id).is_err()) {
            return None;
        }
        self.kept.get_or_insert_default().add(node.prompt.len(), &kept, |id| *id as i32);
        Some(())
    }

    /// Where a server says nothing else, its experts end with the last token that another one was
    /// sampled after.
    fn add_experts(&mut self, node: &Node<'_>, json: &str, tokens: usize) -> Option<()> {
        let read = wire::routing(json, node.path_len())?;
        let (width, count) = (read.width(), read.tokens());
        let usual = node.path_len().saturating_sub(1).checked_sub(count);
        let whole = (count == node.path_len()).then_some(0);
        let start = read.start.or(whole).or(usual)?;
        if self.experts.as_ref().is_some_and(|experts| experts.shape != read.shape)
            || start.saturating_add(count) > node.path_len()
        {
            return None;
        }
        let experts = self.experts.get_or_insert_with(|| Experts {
            shape: read.shape.clone(),
            values: vec![0; tokens * width],
            known: vec![0; tokens],
        });
        // Later calls say again what earlier ones said of the tokens that they sampled; the first
        // saying is that of the pass in which the token was read.
        for (token, row) in (start..).zip(read.experts.chunks_exact(width)) {
            if experts.known[token] == 0 {
                experts.known[token] = 1;
                experts.values[token * width..][..width].copy_from_slice(row);
            }
        }
        Some(())
    }

    fn pad(&mut self, tokens: usize) {
        self.top_ids.iter_mut().for_each(|column| column.pad(tokens));
        self.top_tokens.iter_mut().for_each(|column| column.pad(tokens));
        self.top_logprobs.iter_mut().for_each(|column| column.pad(tokens));
        self.kept.iter_mut().for_each(|column| column.pad(tokens));
    }

    /// About how many bytes the arrays take in memory.
    pub(crate) fn bytes(&self) -> usize {
        const TOP_BYTES: usize = 8 + 24 + 4;
        let tops = self.top_ids.as_ref().map_or(0, |tops| tops.values.len() * TOP_BYTES);
        let kept = self.kept.as_ref().map_or(0, |kept| kept.values.len() * 4);
        let experts = self.experts.as_ref().map_or(0, |e| e.values.len() * 2 + e.known.len());
        tops + kept + experts
    }
}

/// One element a sampled token. Of the stop token alone a server may say nothing.
fn of_tokens<T>(node: &Node<'_>, mut elements: Vec<Vec<T>>) -> Option<Vec<Vec<T>>> {
    let count = node.sampled.len();
    if elements.len() + 1 == count {
        elements.push(Vec::new());
    }
    (elements.len() == count).then_some(elements)
}

impl<T> Ragged<T> {
    fn add<U>(&mut self, at: usize, tokens: &[Vec<U>], of: impl Fn(&U) -> T) {
        self.pad(at);
        self.lengths.extend(tokens.iter().map(Vec::len));
        self.values.extend(tokens.iter().flatten().map(of));
    }

    fn pad(&mut self, tokens: usize) {
        self.lengths.resize(tokens, 0);
    }
}

#[cfg(test)]
mod tests {
    use episode::{Call, Side};
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::{call, reply};
    use crate::graph::scan::nodes;

    fn with(mut call: Call, name: &str, json: &Value) -> Call {
        let side = Side { name: name.to_owned(), json: json.to_string() };
        reply(&mut call).choices[0].sides.push(side);
        call
    }

    fn read(calls: &[Call]) -> Sides {
        let (nodes, _) = nodes(calls);
        let path: Vec<_> = nodes.iter().collect();
        sides(&path, path.last().unwrap().path_len())
    }

    /// The row is 1 2 [3 4] 5 [6].
    fn two_turns() -> [Call; 2] {
        [call(1, &[1, 2], &[&[3, 4]]), call(2, &[1, 2, 3, 4, 5], &[&[6]])]
    }

    #[test]
    fn a_row_without_arrays_has_no_columns() {
        assert_eq!(read(&two_turns()), Sides::default());
    }

    #[test]
    fn alternatives_stand_at_their_own_tokens() {
        let [first, second] = two_turns();
        let tops = json!([[{ "token": "token_id:3", "logprob": -0.5 }],
            [{ "token": "x", "logprob": -1 }, { "token": "token_id:9", "logprob": -2 }]]);
        let sides = read(&[with(first, "top_logprobs", &tops), second]);
        let lengths = vec![0, 0, 1, 2, 0, 0];
        let ids = Ragged { lengths: lengths.clone(), values: vec![Some(3), None, Some(9)] };
        assert_eq!(sides.top_ids, Some(ids));
        let texts = Ragged { lengths, values: vec![None, Some("x".to_owned()), None] };
        assert_eq!(sides.top_tokens, Some(texts));
        assert_eq!(sides.top_logprobs.unwrap().values, [-0.5, -1.0, -2.0]);
        assert_eq!((sides.kept, sides.experts, sides.unread), (None, None, 0));
    }

    #[test]
    fn a_kept_set_may_lack_the_stop_token_and_no_other() {
        let [first, second] = two_turns();
        let lacks = with(first, "sampling_mask", &json!([[3, 7]]));
        let sides = read(&[lacks, with(second, "sampling_mask", &json!([[6]]))]);
        let kept = Ragged { lengths: vec![0, 0, 2, 0, 0, 1], values: vec![3, 7, 6] };
        assert_eq!((sides.kept, sides.unread), (Some(kept), 0));
        let [first, second] = two_turns();
        let sides = read(&[with(first, "sampling_mask", &json!([[3], [4], [5]])), second]);
        assert_eq!((sides.kept, sides.unread), (None, 1));
    }

    #[test]
    fn experts_end_before_the_last_token_and_the_next_turn_says_the_rest() {
        let [first, second] = two_turns();
        // Of 1 2 3, then of 1 2 3 4 5: the first saying stands, the last token has none.
        let first = with(first, "routed_experts", &json!([[[1, 2]], [[3, 4]], [[5, 6]]]));
        let again = json!([[[9, 9]], [[9, 9]], [[9, 9]], [[7, 8]], [[1, 1]]]);
        let sides = read(&[first, with(second, "routed_experts", &again)]);
        let experts = Experts {
            shape: vec![1, 2],
            values: vec![1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 0, 0],
            known: vec![1, 1, 1, 1, 1, 0],
        };
        assert_eq!((sides.experts, sides.unread), (Some(experts), 0));
    }

    #[test]
    fn experts_of_the_sampled_tokens_alone_are_put_where_they_belong() {
        let [first, second] = two_turns();
        let sides = read(&[first, with(second, "routed_experts", &json!([[[7]], [[8]]]))]);
        assert_eq!(sides.experts.unwrap().values, [0, 0, 0, 7, 8, 0]);
        let [first, second] = two_turns();
        let whole = json!([[[1]], [[2]], [[3]], [[4]], [[5]], [[6]]]);
        let sides = read(&[first, with(second, "routed_experts", &whole)]);
        assert_eq!(sides.experts.unwrap().known, [1; 6]);
    }

    #[test]
    fn experts_of_another_shape_or_of_too_many_tokens_are_not_read() {
        let [first, second] = two_turns();
        let first = with(first, "routed_experts", &json!([[[1, 2]], [[3, 4]], [[5, 6]]]));
        let sides = read(&[first, with(second, "routed_experts", &json!([[1], [2]]))]);
        assert_eq!((sides.experts.unwrap().shape, sides.unread), (vec![1, 2], 1));
        let [first, second] = two_turns();
        let long = with(first, "routed_experts", &json!([[1], [2], [3], [4], [5]]));
        assert_eq!(read(&[long, second]).unread, 1);
    }
}
