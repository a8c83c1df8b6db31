//! Damaged `.graph` texts from a seed: bytes, words, numbers and lines of good texts, changed, moved, doubled and dropped.
//!
//! The text of a seed never changes between runs while the texts it starts from are the same.

use entensor_components::{DTYPES, OPS};

use crate::generate::{Limits, Random, case};

/// Longest text that comes out.
pub const MAX_BYTES: usize = 24 << 10;

const WORDS: &[&str] = &[
    "backend",
    "buffer",
    "tensor",
    "weight",
    "input",
    "scratch",
    "pin",
    "copies",
    "run",
    "on",
    "in",
    "output",
    "opaque",
    "=",
    "events",
    "async",
    "cpu",
    "gpu",
    "dev0",
    "x",
    "y",
    "t0",
    "t1",
    "t2",
    "t3",
    "none",
    "[4]",
    "[0]",
    "[4,0]",
    "[32,4]",
    "[1,1,1,1]",
    "[2,3,4,5,6]",
    "[]",
    "[18446744073709551615]",
    "memory=host",
    "memory=shared",
    "reads=host",
    "reads=host,shared,dev0",
    "ops=all",
    "ops=all,-add,-mul_mat",
    "ops=add",
    "dtypes=all,-f16",
    "buffer_type=host",
    "max_buffer=64",
    "max_buffer=0",
    "max_buffer=18446744073709551615",
    "align=1",
    "align=256",
    "align=1G",
    "pad=1",
    "pad=500",
    "pad=1G",
    "offload_batch=0",
    "offload_batch=1",
    "max_inputs=0",
    "max_inputs=1",
    "min_batch=32",
    "usage=weights",
    "usage=any",
    "usage=compute",
    "pin=cpu",
    "pin=dev0",
    "shape=[4]",
    "shape=[1,4]",
    "shape=[18446744073709551615,2]",
    "strides=[4,16,64,64]",
    "strides=[0,0,0,0]",
    "offset=4",
    "offset=18446744073709551615",
    "axes=[1,0,2,3]",
    "axes=[0,0,0,0]",
    "dtype=f16",
    "dtype=q8_0",
    "by=0.5",
    "by=nan",
    "scale=inf",
    "eps=0",
    "eps=-1",
    "dim=4",
    "n_dims=3",
    "mode=neox",
    "k=0",
    "s0=0",
    "stop=1e30",
    "step=0",
    "#",
    "\n",
    "\t",
    "\r",
    "\u{0}",
    "\u{feff}",
    "ä",
    "，",
];

const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "7",
    "31",
    "32",
    "33",
    "63",
    "64",
    "65",
    "255",
    "256",
    "1023",
    "1024",
    "1025",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1K",
    "1M",
    "1G",
    "16G",
    "17179869184G",
    "-1",
    "-0",
    "0x10",
    "1e9",
    "1_000",
];

const LINES: &[&str] = &[
    "backend more",
    "backend more memory=host",
    "backend last memory=host ops=add",
    "buffer extra on cpu",
    "buffer extra on cpu opaque",
    "scratch extra f32 [4,4]",
    "input extra f32 [32,4]",
    "weight extra q8_0 [32,4] on cpu",
    "tensor extra f16 [4] in buf0",
    "extra = relu x",
    "extra = view x shape=[2]",
    "extra = cpy x x",
    "extra = set_rows x x x",
    "copies 4",
    "copies 1024",
    "pin x cpu",
    "run x",
    "run x,y,",
    "extra = mul_mat x x output",
];

/// The text of a seed, made from one of these texts, two of them, or a random graph.
#[must_use]
pub fn mutated(seed: u64, texts: &[String]) -> String {
    let mut random = Random::new(seed);
    let mut text = start(&mut random, texts).into_bytes();
    // One change mostly, so that many texts are still nearly right; sometimes a whole storm.
    let changes = *random.pick(&[1, 1, 1, 2, 2, 3, 5, 20]);
    for _ in 0..changes {
        change(&mut random, &mut text, texts);
        text.truncate(MAX_BYTES);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn start(random: &mut Random, texts: &[String]) -> String {
    if texts.is_empty() || random.percent(25) {
        return case(random.below(1 << 20), Limits::default());
    }
    random.pick(texts).clone()
}

fn index(random: &mut Random, len: usize) -> usize {
    usize::try_from(random.below(len as u64)).unwrap_or(0)
}

/// Ranges of the words of a text, without blanks.
fn words(text: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    let mut first = None;
    for (i, byte) in text.iter().chain([&b' ']).enumerate() {
        match (byte.is_ascii_whitespace(), first) {
            (false, None) => first = Some(i),
            (true, Some(start)) => {
                ranges.push(start..i);
                first = None;
            }
            _ => {}
        }
    }
    ranges
}

/// Ranges of the runs of digits.
fn numbers(text: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for i in (0..text.len()).filter(|&i| text[i].is_ascii_digit()) {
        match ranges.last_mut() {
            Some(last) if last.end == i => last.end += 1,
            _ => ranges.push(i..i + 1),
        }
    }
    ranges
}

fn lines(text: &[u8]) -> Vec<Vec<u8>> {
    text.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn word(random: &mut Random) -> String {
    match random.below(4) {
        0 => random.pick(OPS).name.to_owned(),
        1 => random.pick(DTYPES).name.to_owned(),
        _ => (*random.pick(WORDS)).to_owned(),
    }
}

fn change(random: &mut Random, text: &mut Vec<u8>, texts: &[String]) {
    match random.below(12) {
        0 | 1 => change_byte(random, text),
        2..=5 => change_word(random, text),
        6 | 7 => {
            let found = numbers(text);
            if !found.is_empty() {
                let range = random.pick(&found).clone();
                text.splice(range, random.pick(NUMBERS).bytes());
            }
        }
        8..=10 => {
            let mut all = lines(text);
            change_lines(random, &mut all);
            *text = all.join(&b'\n');
        }
        _ => {
            // The head of one text and the tail of another.
            let (mut head, tail) = (lines(text), lines(start(random, texts).as_bytes()));
            head.truncate(index(random, head.len() + 1));
            head.extend_from_slice(&tail[index(random, tail.len())..]);
            *text = head.join(&b'\n');
        }
    }
}

fn change_byte(random: &mut Random, text: &mut Vec<u8>) {
    let at = index(random, text.len() + 1);
    let byte = u8::try_from(random.below(256)).unwrap_or(0);
    match random.below(4) {
        0 => text.insert(at, byte),
        1 if at < text.len() => drop(text.remove(at)),
        2 if at < text.len() => text[at] = byte,
        _ if at < text.len() => text[at] ^= 1 << random.below(8),
        _ => {}
    }
}

fn change_word(random: &mut Random, text: &mut Vec<u8>) {
    let found = words(text);
    if found.is_empty() {
        text.extend(word(random).bytes());
        return;
    }
    let range = random.pick(&found).clone();
    let other = text[random.pick(&found).clone()].to_vec();
    match random.below(6) {
        // Words of the text itself are names that exist: what comes out is often still a graph.
        0..=2 => drop(text.splice(range, other)),
        3 => drop(text.splice(range, word(random).bytes())),
        4 => drop(text.splice(range.end..range.end, format!(" {}", word(random)).bytes())),
        _ => drop(text.splice(range, [])),
    }
}

fn change_lines(random: &mut Random, all: &mut Vec<Vec<u8>>) {
    let (a, b) = (index(random, all.len()), index(random, all.len()));
    match random.below(6) {
        0 => drop(all.remove(a)),
        1 => all.swap(a, b),
        2 => {
            let line = all[a].clone();
            all.insert(b, line);
        }
        3 => {
            let line = all.remove(a);
            all.insert(b.min(all.len()), line);
        }
        4 => all.insert(a, random.pick(LINES).as_bytes().to_vec()),
        _ => {
            for i in (1..all.len()).rev() {
                all.swap(i, index(random, i + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_text_and_seeds_give_many() {
        let texts = ["backend cpu\ninput x f32 [4]\ny = relu x\n".to_owned()];
        let all: Vec<String> = (0..500).map(|seed| mutated(seed, &texts)).collect();
        assert!((0..500).all(|seed| mutated(seed, &texts) == all[usize::try_from(seed).expect("small")]));
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert!(distinct.len() > 400, "{} texts", distinct.len());
        assert!(all.iter().all(|text| text.len() <= MAX_BYTES * 3), "bytes that are no UTF-8 become three");
    }
}
