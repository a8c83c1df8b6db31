//! The drawing of a plan, for every file of the corpus and every fixture that plans.

mod common;

use std::collections::HashSet;

use common::{entensor, graphs};

/// A reader of the part of the dot language that drawings use: statements, quoted strings, attribute lists, subgraphs.
struct Dot<'a> {
    rest: &'a str,
    declared: HashSet<String>,
    edges: Vec<(String, String)>,
}

impl<'a> Dot<'a> {
    fn read(text: &'a str) -> Self {
        let mut dot = Self { rest: text, declared: HashSet::new(), edges: Vec::new() };
        assert_eq!((dot.token(), dot.token(), dot.token()), (Some("digraph"), Some("plan"), Some("{")));
        dot.statements();
        assert_eq!(dot.token(), None, "text behind the graph");
        dot
    }

    fn token(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start();
        let first = self.rest.chars().next()?;
        let end = match first {
            '"' => {
                let mut escaped = false;
                let close = self.rest[1..].find(|c| {
                    let closes = c == '"' && !escaped;
                    assert!(c >= ' ', "a control character in a string");
                    escaped = c == '\\' && !escaped;
                    closes
                });
                close.expect("the string is closed") + 2
            }
            '-' => 2,
            '{' | '}' | '[' | ']' | '=' | ',' | ';' => 1,
            _ => self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).expect("more follows"),
        };
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        assert!(!token.is_empty(), "{}", &self.rest[..20]);
        Some(token)
    }

    fn statements(&mut self) {
        loop {
            let word = self.token().expect("the graph is closed");
            match word {
                "}" => return,
                "subgraph" => {
                    assert!(self.token().is_some_and(|name| name.starts_with("cluster_")));
                    assert_eq!(self.token(), Some("{"));
                    self.statements();
                    continue;
                }
                _ => {}
            }
            match self.token() {
                Some("=") => drop(self.token()),
                Some("[") => {
                    self.attributes();
                    // `node [...]` sets what all nodes look like.
                    assert!(word == "node" || self.declared.insert(word.into()), "{word} is drawn twice");
                }
                Some("->") => {
                    let to = self.token().expect("a node");
                    self.edges.push((word.into(), to.into()));
                    if self.rest.trim_start().starts_with('[') {
                        self.token();
                        self.attributes();
                    }
                }
                other => panic!("{word} {other:?}"),
            }
            assert_eq!(self.token(), Some(";"), "behind {word}");
        }
    }

    fn attributes(&mut self) {
        loop {
            let (key, is, value) = (self.token(), self.token(), self.token());
            assert!(key.is_some() && is == Some("=") && value.is_some());
            match self.token() {
                Some(",") => {}
                Some("]") => return,
                other => panic!("{other:?} in a list of attributes"),
            }
        }
    }
}

#[test]
fn drawings_are_in_the_dot_language_and_hold_every_node_and_operand() {
    for path in graphs() {
        let json = entensor("plan", &path, &["--format", "json"]);
        if json.code != 0 {
            continue;
        }
        let json = json.json();
        let nodes = json["nodes"].as_array().expect("nodes");
        let drawn = entensor("plan", &path, &["--format", "dot"]).ok();
        let dot = Dot::read(&drawn);
        assert_eq!(dot.declared.len(), nodes.len(), "{path:?}");
        assert_eq!(
            dot.edges.len(),
            nodes.iter().map(|n| n["sources"].as_array().map_or(0, Vec::len)).sum::<usize>(),
            "{path:?}"
        );
        for (from, to) in &dot.edges {
            assert!(dot.declared.contains(from) && dot.declared.contains(to), "{path:?}: {from} -> {to}");
        }
        let clusters = drawn.matches("subgraph cluster_").count();
        assert_eq!(clusters, json["splits"].as_array().map_or(0, Vec::len), "{path:?}");
        let is_copied = !json["copies"].as_array().expect("copies").is_empty();
        assert_eq!(drawn.contains("label=copy"), is_copied, "{path:?}");
    }
}
