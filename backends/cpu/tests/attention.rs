//! Attention over a cache of which some rows are in use: how many is data.

mod common;

use common::{attention, contents, cpu, memory};
use entensor_components::{Backend, DType};

/// Reads f32.
fn values(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("four bytes")))).collect()
}

fn halves(bytes: &[u8]) -> Vec<f64> {
    let mut decoded = vec![0.0; bytes.len() / 2];
    (DType::F16.row().dequantize)(bytes, &mut decoded);
    decoded.into_iter().map(f64::from).collect()
}

/// What [`attention`] is, one query after the other.
fn expected(tokens: usize, rows: usize, used: usize, read: &[u8]) -> Vec<f64> {
    let (q, rest) = read.split_at(32 * tokens * 6 * 4);
    let (q, cache) = (values(q), halves(&rest[..4 * rows * 64]));
    let row = |plane: usize, row: usize| &cache[(plane * rows + row) * 32..][..32];
    let mut out = Vec::new();
    for token in 0..tokens {
        for head in 0..6 {
            let query = &q[(head * tokens + token) * 32..][..32];
            let seen = used + token + 1 - tokens;
            let score = |key| row(head / 3, key).iter().zip(query).map(|(k, q)| k * q).sum::<f64>() * 0.2;
            let weights: Vec<f64> = (0..seen).map(|key| f64::exp(score(key))).collect();
            let sum: f64 = weights.iter().sum();
            out.extend(
                (0..32).map(|i| {
                    weights.iter().enumerate().map(|(key, w)| w * row(2 + head / 3, key)[i]).sum::<f64>() / sum
                }),
            );
        }
    }
    out
}

#[test]
fn one_split_serves_every_number_of_rows_in_use() {
    for (tokens, rows) in [(1, 2000), (2, 300), (3, 1000), (40, 1000), (7, 100)] {
        for threads in [1, 3] {
            let backend = cpu(threads);
            let prepared = backend.prepare(&attention(tokens, rows, tokens).0).expect("valid");
            for used in [tokens, tokens + 1, 31.max(tokens), 64.max(tokens), 97, rows - 1, rows] {
                let (_, read, written) = attention(tokens, rows, used);
                let memories = [memory(&backend, &read), memory(&backend, &written)];
                prepared.submit(&memories).expect("runs");
                let [tokens, rows, used] = [tokens, rows, used].map(|n| usize::try_from(n).expect("small"));
                let expected = expected(tokens, rows, used, &read);
                let found = values(&contents(&backend, &memories[1])[..expected.len() * 4]);
                for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    // NaN of rows that nobody sees would show here.
                    assert!(
                        (found - expected).abs() < 1e-5,
                        "{tokens} tokens, {used} of {rows} rows, {index}: {found}"
                    );
                }
            }
        }
    }
}

/// A query's bits are its own: what others see of the same keys changes nothing.
#[test]
fn what_other_queries_see_changes_no_bit() {
    let (tokens, rows) = (2, 64);
    let backend = cpu(1);
    let (split, read, written) = attention(tokens, rows, 64);
    let prepared = backend.prepare(&split).expect("valid");
    let first_token = |read: &[u8]| {
        let memories = [memory(&backend, read), memory(&backend, &written)];
        prepared.submit(&memories).expect("runs");
        contents(&backend, &memories[1])[..32 * 6 * 4].to_vec()
    };
    // The first token sees all keys but the last; the second one sees all, or all but some in the middle.
    let expected = first_token(&read);
    for key in [0, 5, 31, 40] {
        let mut other = read.clone();
        let mask = read.len() - usize::try_from(rows * 2).expect("small");
        other[mask + 2 * key..][..2].copy_from_slice(&0xfc00_u16.to_le_bytes());
        assert_eq!(first_token(&other), expected, "the second token does not see key {key}");
    }
}
