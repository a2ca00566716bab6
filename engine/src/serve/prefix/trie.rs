//! Texts that share their starts, with values where they end.

/// A radix tree over bytes. Nothing is ever taken out of it; it is dropped whole.
#[derive(Debug)]
pub(super) struct Trie<T> {
    /// The first is the root. By number and not nested, so that dropping a long line of them needs
    /// no deep stack.
    nodes: Vec<Node<T>>,
    bytes: usize,
}

#[derive(Debug)]
struct Node<T> {
    /// What this node adds to the text of its parent.
    edge: Box<[u8]>,
    /// Children by the first bytes of their edges, ascending.
    children: Vec<(u8, usize)>,
    values: Vec<T>,
}

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Trie { nodes: vec![Node::new(&[])], bytes: 0 }
    }
}

impl<T> Node<T> {
    fn new(edge: &[u8]) -> Node<T> {
        Node { edge: edge.into(), children: Vec::new(), values: Vec::new() }
    }

    fn child(&self, first: u8) -> Result<usize, usize> {
        self.children.binary_search_by_key(&first, |(byte, _)| *byte)
    }
}

impl<T> Trie<T> {
    /// Bytes of texts and of what was counted.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most bytes that a text adds: a node for its end and one in the middle of an edge.
    pub(super) fn bytes_of(text: &[u8]) -> usize {
        text.len() + 2 * size_of::<Node<T>>()
    }

    /// Counts the bytes of a value.
    pub(super) fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// The values at a node, oldest first.
    pub(super) fn at(&self, node: usize) -> &[T] {
        &self.nodes[node].values
    }

    pub(super) fn at_mut(&mut self, node: usize) -> &mut Vec<T> {
        &mut self.nodes[node].values
    }

    /// The nodes with values whose texts `text` starts with, and their lengths.
    pub(super) fn along(&self, text: &[u8]) -> Vec<(usize, usize)> {
        let (mut found, mut node, mut len) = (Vec::new(), 0, 0);
        loop {
            if !self.nodes[node].values.is_empty() {
                found.push((len, node));
            }
            let Some(&first) = text.get(len) else { return found };
            let Ok(place) = self.nodes[node].child(first) else { return found };
            node = self.nodes[node].children[place].1;
            let edge = &self.nodes[node].edge;
            if !text[len..].starts_with(edge) {
                return found;
            }
            len += edge.len();
        }
    }

    /// The node of `text`, made if there is none.
    pub(super) fn insert(&mut self, text: &[u8]) -> usize {
        let (mut node, mut rest) = (0, text);
        while let Some(&first) = rest.first() {
            let place = match self.nodes[node].child(first) {
                Ok(place) => place,
                Err(place) => {
                    let new = self.push(rest);
                    self.nodes[node].children.insert(place, (first, new));
                    return new;
                }
            };
            let next = self.nodes[node].children[place].1;
            let edge = &self.nodes[next].edge;
            let common = edge.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if common < edge.len() {
                let middle = self.split(next, common);
                self.nodes[node].children[place].1 = middle;
                node = middle;
            } else {
                node = next;
            }
            rest = &rest[common..];
        }
        node
    }

    fn push(&mut self, edge: &[u8]) -> usize {
        self.bytes += edge.len() + size_of::<Node<T>>();
        self.nodes.push(Node::new(edge));
        self.nodes.len() - 1
    }

    /// A new node in the middle of the edge to `node`, behind its first `count` bytes.
    fn split(&mut self, node: usize, count: usize) -> usize {
        let edge = std::mem::take(&mut self.nodes[node].edge);
        let (head, tail) = edge.split_at(count);
        let middle = self.push(head);
        self.bytes -= head.len();
        self.nodes[middle].children.push((tail[0], node));
        self.nodes[node].edge = tail.into();
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
            trie.at_mut(node).push(text);
        }
        for text in ["", "abcdefg", "abdx", "ax", "éab", "è", "x", "abcde"] {
            let found: Vec<&str> = trie
                .along(text.as_bytes())
                .into_iter()
                .flat_map(|(len, node)| {
                    trie.at(node).iter().inspect(move |value| assert_eq!(value.len(), len))
                })
                .copied()
                .collect();
            let mut expected: Vec<&str> =
                texts.into_iter().filter(|known| text.starts_with(known)).collect();
            expected.sort_by_key(|known| known.len());
            assert_eq!(found, expected, "{text}");
        }
        let again = trie.insert(b"abd");
        assert_eq!(trie.at(again), ["abd"]);
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
