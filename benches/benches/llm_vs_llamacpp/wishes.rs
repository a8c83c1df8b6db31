//! What is to be measured: the words of the command line.

use std::error::Error;

/// Names of weights that a file is made with, in the order of the table.
pub(crate) const WEIGHTS: [&str; 8] = ["q4_1", "q8_0", "q4_0", "q4_K_M", "q6_K", "f16", "bf16", "f32"];

/// Those that everything is measured with.
const THOROUGH: [&str; 2] = ["q4_1", "q8_0"];

/// What the engines are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Tokens fed one by one; else all at once.
    pub(crate) decode: bool,
    /// How many.
    pub(crate) tokens: usize,
    /// Tokens in the conversation before.
    pub(crate) depth: usize,
}

impl Run {
    pub(crate) fn prompt(tokens: usize) -> Self {
        Self { decode: false, tokens, depth: 0 }
    }

    pub(crate) fn decode(tokens: usize, depth: usize) -> Self {
        Self { decode: true, tokens, depth }
    }

    /// `pp512`, `tg128`, `tg64@2048`.
    fn parse(word: &str) -> Option<Self> {
        let (what, rest) = word.split_at_checked(2)?;
        let number = |text: &str| text.parse().ok().filter(|&n: &usize| (1..=8192).contains(&n));
        match what {
            "pp" => Some(Self::prompt(number(rest)?)),
            "tg" => {
                let (tokens, depth) = rest.split_once('@').map_or((rest, Some(0)), |(t, d)| (t, number(d)));
                Some(Self::decode(number(tokens)?, depth?))
            }
            _ => None,
        }
    }

    /// As [`Self::parse`] reads it.
    pub(crate) fn name(self) -> String {
        match (self.decode, self.depth) {
            (false, _) => format!("pp{}", self.tokens),
            (true, 0) => format!("tg{}", self.tokens),
            (true, depth) => format!("tg{}@{depth}", self.tokens),
        }
    }
}

/// Everything that was asked for.
#[derive(Debug)]
pub(crate) struct Wishes {
    pub(crate) weights: Vec<&'static str>,
    pub(crate) threads: Vec<usize>,
    pub(crate) memory: bool,
    /// `plain` or `openmp`, if it is not to be found out.
    pub(crate) peer: Option<String>,
    /// The backend of ours, without its threads.
    pub(crate) backend: String,
    /// No runs were named, nor memory alone.
    everything: bool,
    runs: Vec<Run>,
    rounds: Option<usize>,
}

impl Wishes {
    pub(crate) fn parse(words: &[String]) -> Result<Self, Box<dyn Error>> {
        let mut wishes = Self {
            weights: Vec::new(),
            threads: Vec::new(),
            memory: false,
            peer: None,
            backend: "cpu".into(),
            everything: false,
            runs: Vec::new(),
            rounds: None,
        };
        for word in words {
            let counted =
                |last| word.strip_suffix(last).and_then(|n: &str| n.parse().ok()).filter(|n| (1..=256).contains(n));
            if let Some(name) = WEIGHTS.iter().find(|name| name.eq_ignore_ascii_case(word)) {
                wishes.weights.push(name);
            } else if let Some(run) = Run::parse(word) {
                wishes.runs.push(run);
            } else if let Some(threads) = counted('t') {
                wishes.threads.push(threads);
            } else if let Some(rounds) = counted('r') {
                wishes.rounds = Some(rounds);
            } else if word == "memory" {
                wishes.memory = true;
            } else if word == "plain" || word == "openmp" {
                wishes.peer = Some(word.clone());
            } else if word == "cpu" || word.starts_with("cpu:") {
                wishes.backend.clone_from(word);
            } else {
                let known = "weights (q4_1 …), runs (pp512, tg128, tg64@2048), threads (2t), rounds (5r), `memory`, `record`, \
                             `plain`, `openmp`, a backend (cpu:…)";
                return Err(format!("`{word}` is none of: {known}").into());
            }
        }
        if wishes.weights.is_empty() {
            wishes.weights = WEIGHTS.to_vec();
        }
        if wishes.threads.is_empty() {
            wishes.threads = vec![1, 2];
        }
        wishes.everything = wishes.runs.is_empty() && !wishes.memory;
        wishes.memory |= wishes.everything;
        Ok(wishes)
    }

    /// What is measured with these weights.
    pub(crate) fn runs_of(&self, weights: &str) -> Vec<Run> {
        if !self.everything {
            return self.runs.clone();
        }
        let mut runs = vec![Run::prompt(512), Run::decode(128, 0)];
        if THOROUGH.contains(&weights) {
            runs.splice(0..0, [Run::prompt(32)]);
            runs.insert(2, Run::prompt(2048));
            runs.push(Run::decode(64, 2048));
        }
        runs
    }

    /// How often, in turn.
    pub(crate) fn rounds_of(&self, weights: &str) -> usize {
        self.rounds.unwrap_or(if THOROUGH.contains(&weights) { 5 } else { 3 })
    }
}
