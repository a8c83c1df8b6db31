//! Planning beside ggml: the same graphs through our passes and through ggml's scheduler and allocator, in turn, in one run.
//!
//! `cargo bench -p entensor-benches --features peers --bench plan_vs_ggml [-- NODES… | corpus | FILE.graph… | record]`: stacks of so
//! many nodes, the corpus, other graphs; without words the usual stacks and the corpus. See the folder's README.

mod corpus;
mod described;
mod ggml;
mod samples;
mod stacks;

use std::error::Error;

use entensor_benches::results;

fn main() -> Result<(), Box<dyn Error>> {
    if results::recorded("plan_vs_ggml", "--features peers")? {
        return Ok(());
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let (mut sizes, mut files) = (Vec::new(), Vec::new());
    for word in &words {
        match word.parse() {
            Ok(size) => sizes.push(size),
            Err(_) if word == "corpus" => files.extend(corpus::files()?),
            Err(_) if word.ends_with(".graph") => files.push(word.into()),
            Err(_) => return Err(format!("`{word}` is neither a number of nodes, `corpus`, nor a .graph file").into()),
        }
    }
    if words.is_empty() {
        sizes = vec![1_000, 10_000, 100_000];
        files = corpus::files()?;
    }
    ggml::silence();
    println!("{}; CMake's Release build, as the crate configures it", ggml::version());
    let trouble = ggml::mock_trouble();
    if let Some(trouble) = &trouble {
        eprintln!(
            "NO MOCK DEVICES: {trouble}. Stacks on several backends stand beside recorded figures, graphs of files are left out."
        );
    }
    if !sizes.is_empty() {
        stacks::run(&sizes, trouble.is_none())?;
    }
    if !files.is_empty() && trouble.is_none() {
        corpus::run(&files)?;
    }
    Ok(())
}
