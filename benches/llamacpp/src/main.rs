//! llama.cpp behind lines of text: `llamacpp_peer MODEL THREADS CONTEXT`, told what to do by the bench `llm_vs_llamacpp`.
//!
//! It is a process of its own, so that it can be built for the processor at hand while Entensor beside it is built as users build it,
//! and so that its memory is its own. Each line that comes in is answered by one:
//!
//! - `prompt N`: forgets everything and feeds N tokens at once. Answer: nanoseconds, and the likeliest next token.
//! - `decode N`: feeds N tokens one by one behind what is there, then forgets them again. Answer: the same.

mod engine;

use std::{
    error::Error,
    io::{BufRead, Write},
    time::Instant,
};

use engine::Llama;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or("usage: llamacpp_peer MODEL THREADS CONTEXT");
    let (model, threads, context) = (word()?, word()?.parse()?, word()?.parse()?);
    let mut llama = Llama::new(&model, threads, context)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {}", engine::about())?;
    out.flush()?;
    let mut position = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (what, tokens) = line.split_once(' ').ok_or("a line is a word and a number")?;
        let tokens: usize = tokens.parse()?;
        let start = Instant::now();
        match what {
            "prompt" => {
                llama.truncate(0);
                llama.feed(0, tokens)?;
                position = tokens;
            }
            "decode" => {
                for i in 0..tokens {
                    llama.feed(position + i, 1)?;
                }
            }
            other => return Err(format!("`{other}` is not known").into()),
        }
        let nanoseconds = start.elapsed().as_nanos();
        let likeliest = llama.likeliest();
        llama.truncate(position);
        writeln!(out, "{nanoseconds} {likeliest}")?;
        out.flush()?;
    }
    Ok(())
}
