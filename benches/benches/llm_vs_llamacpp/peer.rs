//! llama.cpp's programs: built here, or named by who has built them, and which of them is the faster one.

use std::{
    error::Error,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    files::Files,
    measure::{CONTEXT, median},
    side::Side,
    wishes::{Run, Wishes},
};

/// One build of llama.cpp.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// `plain` or `openmp`: whose threads it uses.
    pub(crate) name: String,
    program: PathBuf,
}

impl Peer {
    /// Both builds. `ENTENSOR_LLAMACPP` may name programs that are built already: `plain=PATH,openmp=PATH`.
    pub(crate) fn all(wishes: &Wishes) -> Result<Vec<Self>, Box<dyn Error>> {
        let wanted = |name: &str| wishes.peer.as_deref().is_none_or(|peer| peer == name);
        if let Ok(named) = std::env::var("ENTENSOR_LLAMACPP") {
            let parts = named.split(',').map(|part| match part.split_once('=') {
                Some((name @ ("plain" | "openmp"), path)) => Ok(Self { name: name.into(), program: path.into() }),
                _ => Err(format!("ENTENSOR_LLAMACPP is plain=PATH,openmp=PATH, not `{named}`")),
            });
            let found: Vec<Self> = parts.collect::<Result<_, _>>()?;
            let found: Vec<Self> = found.into_iter().filter(|peer| wanted(&peer.name)).collect();
            return if found.is_empty() {
                Err("ENTENSOR_LLAMACPP names no build that is wanted".into())
            } else {
                Ok(found)
            };
        }
        let builds = [("plain", "peer"), ("openmp", "openmp")].into_iter().filter(|(name, _)| wanted(name));
        builds.map(|(name, feature)| Self::build(name, feature)).collect()
    }

    /// Builds a program with the instructions of this processor, which the crate has to be told by a flag that ours is built without:
    /// so it has a folder of its own. Nothing happens if it is there already.
    fn build(name: &str, feature: &str) -> Result<Self, Box<dyn Error>> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("llamacpp").join(name);
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["build", "--release", "--package", "entensor-llamacpp", "--features", feature, "--target-dir"]);
        command.arg(&folder).current_dir(env!("CARGO_MANIFEST_DIR"));
        command.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", "-C target-cpu=native");
        eprintln!(
            "llama.cpp with {name} threads, built for this processor: RUSTFLAGS='-C target-cpu=native' {command:?}"
        );
        let status = command.status()?;
        if !status.success() {
            return Err("llama.cpp was not built; the README says what that needs".into());
        }
        let program = folder.join("release").join(format!("llamacpp_peer{}", std::env::consts::EXE_SUFFIX));
        Ok(Self { name: name.into(), program })
    }

    /// Starts it with a model.
    pub(crate) fn start(&self, model: &Path, threads: usize, context: usize) -> Result<Side, Box<dyn Error>> {
        let mut command = Command::new(&self.program);
        Side::start(command.arg(model).args([threads.to_string(), context.to_string()]))
    }
}

/// The build that is faster on so many threads: by the product of its speeds at a prompt and at decoding.
pub(crate) fn best(peers: &[Peer], files: &Files, threads: usize, wishes: &Wishes) -> Result<Peer, Box<dyn Error>> {
    let model = files.of(wishes.weights[0])?;
    let mut best: Option<(f64, &Peer, String)> = None;
    let mut sides = Vec::new();
    for peer in peers {
        sides.push((peer, peer.start(&model, threads, CONTEXT)?, [Vec::new(), Vec::new()]));
    }
    // A thread alone needs no runtime to meet others.
    let rounds = if threads == 1 || peers.len() == 1 { 0 } else { 4 };
    let runs = [Run::prompt(128), Run::decode(32, 0)];
    for round in 0..rounds {
        for (_, side, seconds) in &mut sides {
            for (run, seconds) in runs.into_iter().zip(seconds) {
                side.prepare(run)?;
                let answer = side.run(run)?;
                // The first round warms up.
                if round > 0 {
                    seconds.push(answer.time.as_secs_f64());
                }
            }
        }
    }
    for (peer, side, seconds) in sides {
        let [prompt, decode] = seconds.map(|seconds| if rounds == 0 { 1.0 } else { median(&seconds) });
        if rounds > 0 {
            let (pp, tg) = (128.0 / prompt, 32.0 / decode);
            println!("llama.cpp, {}, {threads} threads: pp128 {pp:.1}, tg32 {tg:.1} tokens/s", peer.name);
        }
        let cost = prompt * decode;
        if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
            best = Some((cost, peer, side.about.clone()));
        }
    }
    let (_, peer, about) = best.ok_or("there is no llama.cpp to compare with")?;
    println!("beside {threads} of ours: {about}\n");
    Ok(peer.clone())
}
