//! Texts that share their starts, with values at their ends.

/// A radix tree over bytes. Nothing is removed from it; it is dropped whole.
#[derive(Debug)]
pub(super) struct Trie<T> {
    /// The nodes by number; the first is the root. They are not nested, so that dropping a long
    /// chain of them needs no deep stack.
    nodes: Vec<TrieNode<T>>,
    bytes: usize,
}

/// The number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TrieNodeId(usize);

const ROOT: TrieNodeId = TrieNodeId(0);

#[derive(Debug)]
struct TrieNode<T> {
    /// The text that this node adds to that of its parent.
    edge: Box<[u8]>,
    /// Children by the first bytes of their edges, ascending.
    children: Vec<(u8, TrieNodeId)>,
    values: Vec<T>,
}

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Trie { nodes: vec![TrieNode::new(&[])], bytes: 0 }
    }
}

impl<T> TrieNode<T> {
    fn new(edge: &[u8]) -> TrieNode<T> {
        TrieNode { edge: edge.into(), children: Vec::new(), values: Vec::new() }
    }

    /// Finds the child whose edge starts with `first`: its index, or the index to insert it at.
    fn child_index(&self, first: u8) -> Result<usize, usize> {
        self.children.binary_search_by_key(&first, |(byte, _)| *byte)
    }
}

impl<T> Trie<T> {
    /// Returns the bytes of all texts and counted values.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the most bytes that a text adds: one node at its end, and one in the middle of an
    /// edge.
    pub(super) fn max_bytes_of(text: &[u8]) -> usize {
        text.len() + 2 * size_of::<TrieNode<T>>()
    }

    /// Counts the bytes of a value that came, and of those that went.
    pub(super) fn count_bytes(&mut self, came: usize, went: usize) {
        self.bytes = (self.bytes + came).saturating_sub(went);
    }

    /// Returns the values at a node, oldest first.
    pub(super) fn values(&self, node: TrieNodeId) -> &[T] {
        &self.node(node).values
    }

    /// Returns the values at a node for changes.
    pub(super) fn values_mut(&mut self, node: TrieNodeId) -> &mut Vec<T> {
        &mut self.node_mut(node).values
    }

    /// Lists the nodes with values whose texts `text` starts with, and the lengths of these texts.
    pub(super) fn prefixes_of(&self, text: &[u8]) -> Vec<(usize, TrieNodeId)> {
        let mut found = Vec::new();
        let mut node = ROOT;
        let mut len = 0;
        loop {
            if !self.values(node).is_empty() {
                found.push((len, node));
            }
            let Some(&first) = text.get(len) else { return found };
            let Ok(index) = self.node(node).child_index(first) else { return found };
            node = self.node(node).children[index].1;
            let edge = &self.node(node).edge;
            if !text[len..].starts_with(edge) {
                return found;
            }
            len += edge.len();
        }
    }

    /// Returns the node of `text`, and makes it if there is none.
    pub(super) fn insert(&mut self, text: &[u8]) -> TrieNodeId {
        let mut node = ROOT;
        let mut rest = text;
        while let Some(&first) = rest.first() {
            let index = match self.node(node).child_index(first) {
                Ok(index) => index,
                Err(index) => {
                    let leaf = self.push_node(rest);
                    self.node_mut(node).children.insert(index, (first, leaf));
                    return leaf;
                }
            };

            // Where the text leaves the edge, a new node splits it.
            let child = self.node(node).children[index].1;
            let edge = &self.node(child).edge;
            // Mostly all of it is shared, which is found many bytes at a time.
            let is_whole = rest.starts_with(edge);
            let common = match is_whole {
                true => edge.len(),
                false => edge.iter().zip(rest).take_while(|(a, b)| a == b).count(),
            };
            let next = if is_whole { child } else { self.split_edge(child, common) };
            self.node_mut(node).children[index].1 = next;
            node = next;
            rest = &rest[common..];
        }
        node
    }

    fn node(&self, TrieNodeId(index): TrieNodeId) -> &TrieNode<T> {
        &self.nodes[index]
    }

    fn node_mut(&mut self, TrieNodeId(index): TrieNodeId) -> &mut TrieNode<T> {
        &mut self.nodes[index]
    }

    fn push_node(&mut self, edge: &[u8]) -> TrieNodeId {
        self.bytes += edge.len() + size_of::<TrieNode<T>>();
        self.nodes.push(TrieNode::new(edge));
        TrieNodeId(self.nodes.len() - 1)
    }

    /// Makes a node behind the first `count` bytes of the edge to `node`, with `node` as its child.
    fn split_edge(&mut self, node: TrieNodeId, count: usize) -> TrieNodeId {
        let edge = std::mem::take(&mut self.node_mut(node).edge);
        let (head, tail) = edge.split_at(count);
        let middle = self.push_node(head);
        // The bytes of the edge are counted already.
        self.bytes -= head.len();
        self.node_mut(middle).children.push((tail[0], node));
        self.node_mut(node).edge = tail.into();
        middle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_along_another() {
        let texts = ["", "a", "abc", "abd", "b", "abcdef", "é", "éa", "abcd"];
        let mut trie = Trie::default();
        for text in texts {
            let node = trie.insert(text.as_bytes());
            trie.values_mut(node).push(text);
        }
        for text in ["", "abcdefg", "abdx", "ax", "éab", "è", "x", "abcde"] {
            let found: Vec<&str> = trie
                .prefixes_of(text.as_bytes())
                .into_iter()
                .flat_map(|(len, node)| {
                    trie.values(node).iter().inspect(move |value| assert_eq!(value.len(), len))
                })
                .copied()
                .collect();
            let mut expected: Vec<&str> =
                texts.into_iter().filter(|known| text.starts_with(known)).collect();
            expected.sort_by_key(|known| known.len());
            assert_eq!(found, expected, "{text}");
        }
        let again = trie.insert(b"abd");
        assert_eq!(trie.values(again), ["abd"]);
    }

    #[test]
    fn shared_starts_are_kept_once() {
        let mut trie: Trie<()> = Trie::default();
        let mut text = String::new();
        for turn in 0..1000 {
            text.push_str(&format!("turn {turn}, of a hundred bytes or so: {}", "x".repeat(80)));
            trie.insert(text.as_bytes());
        }
        assert!(trie.bytes() < 3 * text.len(), "{} for {}", trie.bytes(), text.len());
    }
}
