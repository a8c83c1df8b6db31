//! Planning beside ggml: the same graphs through our passes and through ggml's scheduler and allocator, in turn, in one run.
//!
//! `cargo bench -p entensor-benches --features peers --bench plan_vs_ggml [-- NODES…]` (see the folder's README).

mod described;
mod ggml;
mod samples;
mod stacks;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut sizes = Vec::new();
    for word in &words {
        sizes.push(word.parse().map_err(|_| format!("`{word}` is no number of nodes"))?);
    }
    if sizes.is_empty() {
        sizes = vec![1_000, 10_000, 100_000];
    }
    ggml::silence();
    println!("{}; CMake's Release build, as the crate configures it", ggml::version());
    stacks::run(&sizes)
}
