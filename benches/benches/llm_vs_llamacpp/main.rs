//! Entensor and llama.cpp on one model file, in turn, in one run.
//!
//! `cargo bench -p entensor-benches --features peers --bench llm_vs_llamacpp [-- WORD…]`; the words are in the folder's README.
//! Each engine is a process of its own that is told what to do by lines of text. Ours is this program again, as users build it;
//! llama.cpp is the package `entensor-llamacpp`, built here for the processor at hand.

mod files;
mod measure;
mod ours;
mod peer;
mod report;
mod side;
mod wishes;

use std::error::Error;

use entensor_benches::{limits::Memory, results};
use files::Files;
use peer::Peer;
use wishes::Wishes;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let Some(word) = words.first()
        && word == ours::ENGINE
    {
        return ours::serve(&words[1..]);
    }
    if results::recorded("llm_vs_llamacpp", "--features peers")? {
        return Ok(());
    }
    let wishes = Wishes::parse(&words)?;
    let files = Files::find()?;
    let peers = Peer::all(&wishes)?;
    let memory = Memory::new();
    println!("machine: {}\n", results::machine());
    for &threads in &wishes.threads {
        let peer = peer::best(&peers, &files, threads, &wishes)?;
        for weights in &wishes.weights {
            let file = files.of(weights)?;
            let runs = wishes.runs_of(weights);
            if !runs.is_empty() {
                let found = measure::speeds(&file, threads, &wishes, weights, &runs, &peer, &memory)?;
                println!("{}", report::speeds(weights, threads, &found));
            }
            if wishes.memory {
                let found = measure::memory(&file, threads, &wishes, &peer)?;
                println!("{}", report::memory(weights, threads, &found));
            }
        }
    }
    Ok(())
}
