//! A trie of token texts: which tokens does a text begin with?

use std::borrow::Cow;
use std::collections::VecDeque;

/// Tokens by their bytes. Its size is in proportion to the texts, and so is the time to build it, but for sorting them.
#[derive(Debug)]
pub(super) struct Trie {
    /// In breadth-first order, so that the children of a node are neighbours. The first is the root.
    nodes: Vec<Node>,
    /// By node: the byte that leads to it. Those of children ascend.
    labels: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    first_child: usize,
    children: u16,
    token: Option<u32>,
}

impl Trie {
    /// A trie of these texts. Of equal ones the first counts.
    pub(super) fn new(tokens: &[(u32, Cow<'_, str>)]) -> Self {
        let mut tokens: Vec<(&[u8], u32)> = tokens.iter().map(|(id, text)| (text.as_bytes(), *id)).collect();
        tokens.sort_unstable();
        tokens.dedup_by_key(|(text, _)| *text);
        let new = Node { first_child: 0, children: 0, token: None };
        let mut trie = Self { nodes: vec![new], labels: vec![0] };
        // The tokens below a node that has none of its own yet, and the length of what leads to it.
        let mut open = VecDeque::from([(&tokens[..], 0)]);
        let mut at = 0;
        while let Some((mut tokens, length)) = open.pop_front() {
            // The shortest is the first.
            if let Some(&(text, id)) = tokens.first()
                && text.len() == length
            {
                trie.nodes[at].token = Some(id);
                tokens = &tokens[1..];
            }
            trie.nodes[at].first_child = trie.nodes.len();
            for below in tokens.chunk_by(|(a, _), (b, _)| a[length] == b[length]) {
                trie.nodes[at].children += 1;
                trie.nodes.push(new);
                trie.labels.push(below[0].0[length]);
                open.push_back((below, length + 1));
            }
            at += 1;
        }
        trie
    }

    /// The tokens that `text` begins with, the shortest first: their lengths in bytes and their ids.
    pub(super) fn prefixes<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = self.nodes.first();
        let mut bytes = text.bytes().zip(1..);
        std::iter::from_fn(move || {
            for (byte, length) in bytes.by_ref() {
                node = Some(self.child(node?, byte)?);
                if let Some(token) = node?.token {
                    return Some((length, token));
                }
            }
            None
        })
    }

    fn child(&self, node: &Node, byte: u8) -> Option<&Node> {
        let labels = &self.labels[node.first_child..][..usize::from(node.children)];
        let child = labels.binary_search(&byte).ok()?;
        self.nodes.get(node.first_child + child)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prefixes_are_found_as_by_comparison(
            tokens in prop::collection::btree_set("[abü]{0,5}", 0..30),
            text in "[abüc]{0,12}",
        ) {
            let mut tokens: Vec<(u32, Cow<'_, str>)> = (0u32..).zip(tokens).map(|(id, token)| (id, token.into())).collect();
            tokens.retain(|(_, token)| !token.is_empty());
            let begins = tokens.iter().filter(|(_, token)| text.starts_with(&**token));
            let mut expected: Vec<(usize, u32)> = begins.map(|(id, token)| (token.len(), *id)).collect();
            expected.sort_unstable();
            let equal: Vec<(u32, Cow<'_, str>)> = tokens.iter().map(|(id, token)| (id + 100, token.clone())).collect();
            tokens.extend(equal);
            let found: Vec<(usize, u32)> = Trie::new(&tokens).prefixes(&text).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
