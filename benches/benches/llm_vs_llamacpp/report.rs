//! Tables of what was measured, as they are printed and kept.

use std::fmt::Write as _;

use crate::{
    measure::{Found, median},
    side::Resident,
};

/// The middle of some values, and the least and most of them.
fn spread(values: &[f64], digits: usize) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{:.digits$} ({least:.digits$}–{most:.digits$})", median(values))
}

/// A table of speeds.
pub(crate) fn speeds(weights: &str, threads: usize, found: &Found) -> String {
    let (gb, gop) = (median(&found.gb_per_s), median(&found.gop_per_s));
    let mut text = format!(
        "### {weights}, {threads} thread{}\n\n\
         limits beside it: reads {} GB/s, products {} Gop/s ({})\n\n\
         | run | ours, tokens/s | llama.cpp | ratio | ours, of the limit | llama.cpp's | same next token |\n\
         |---|---|---|---|---|---|---|\n",
        if threads == 1 { "" } else { "s" },
        spread(&found.gb_per_s, 1),
        spread(&found.gop_per_s, 0),
        found.by,
    );
    for speeds in &found.speeds {
        let ratios: Vec<f64> = speeds.ours.iter().zip(&speeds.peers).map(|(ours, peer)| ours / peer).collect();
        let percent = |speeds_of: &[f64]| {
            let speed = median(speeds_of);
            if speeds.run.decode {
                let reads = speeds.bytes_per_token * speed / 1e9;
                format!("{:.0} % ({reads:.1} GB/s)", 100.0 * reads / gb)
            } else {
                let products = speeds.operations_per_token * speed / 1e9;
                format!("{:.0} % ({products:.0} Gop/s)", 100.0 * products / gop)
            }
        };
        writeln!(
            text,
            "| {} | {} | {} | **{}** | {} | {} | {} of {} |",
            speeds.run.name(),
            spread(&speeds.ours, 1),
            spread(&speeds.peers, 1),
            spread(&ratios, 2),
            percent(&speeds.ours),
            percent(&speeds.peers),
            speeds.agreed,
            ratios.len(),
        )
        .ok();
    }
    text
}

/// Lines about memory.
pub(crate) fn memory(weights: &str, threads: usize, found: &[Option<Resident>; 2]) -> String {
    let [Some(ours), Some(peer)] = found else {
        return format!("{weights}: this system does not tell how much memory is resident\n");
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "{weights}, {threads} threads, memory after 2048 tokens: ours {:.1} MiB at most, {:.1} of its own; llama.cpp {:.1} MiB at most, {:.1} \
         of its own; peak ratio {:.2}\n",
        mib(ours.peak),
        mib(ours.own),
        mib(peer.peak),
        mib(peer.own),
        mib(ours.peak) / mib(peer.peak)
    )
}
