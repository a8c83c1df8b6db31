//! Layouts of networks, of random lifetimes and of hand-made corners.

mod nets;

use super::{Allocated, Sweep};
use crate::liveness::Live;
use nets::{Llama, Net, SMOL};

/// A small generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Small numbers often, large ones seldom.
    fn heavy(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(max.ilog2()) + 1);
        (1 << bits) + self.below(1 << bits)
    }
}

fn corpus() -> Vec<(&'static str, Net)> {
    let prompt = Llama { tokens: 512, ..SMOL };
    let moe = Llama { experts: 4, ffn: 384, ..SMOL };
    vec![
        ("decode", nets::llama(SMOL)),
        ("decode flash", nets::llama(Llama { flash: true, ..SMOL })),
        ("prompt", nets::llama(prompt)),
        ("prompt flash", nets::llama(Llama { flash: true, ..prompt })),
        ("prompt all logits", nets::llama(Llama { last_only: false, ..prompt })),
        ("prompt flash 2048", nets::llama(Llama { flash: true, context: 2048, ..prompt })),
        ("gemma-like flash", nets::llama(Llama { flash: true, width: 1152, ffn: 6912, kv_width: 256, heads: 4, layers: 26, ..prompt })),
        ("gemma-like", nets::llama(Llama { width: 1152, ffn: 6912, kv_width: 256, heads: 4, layers: 26, ..prompt })),
        ("moe decode", nets::llama(moe)),
        ("moe prompt", nets::llama(Llama { tokens: 512, ..moe })),
        ("moe prompt flash", nets::llama(Llama { tokens: 512, flash: true, ..moe })),
        ("encoder-decoder", nets::encoder_decoder(4, 384, 1500, 8)),
        ("encoder-decoder 448", nets::encoder_decoder(4, 384, 1500, 448)),
        ("unet", nets::unet(4, 64, 64, false)),
        ("unet stacked", nets::unet(4, 64, 64, true)),
        ("unet 3 stacked", nets::unet(3, 32, 128, true)),
        ("mobilenet", nets::mobilenet(224, false)),
        ("mobilenet direct", nets::mobilenet(224, true)),
        ("resnet", nets::resnet(224)),
        ("mlp 1", nets::mlp(1)),
        ("mlp 10000", nets::mlp(10_000)),
        ("random 100", nets::random(1, 100, 10, 30)),
        ("random 300", nets::random(2, 300, 20, 30)),
        ("random 1000", nets::random(3, 1000, 5, 50)),
        ("random 1000 far", nets::random(4, 1000, 60, 10)),
        ("random 5000", nets::random(5, 5000, 3, 30)),
    ]
}

fn plan(live: &Live) -> Allocated {
    let mut allocated = Allocated::default();
    super::place(live, &mut Sweep::default(), &mut allocated).expect("a small plan");
    allocated
}

#[test]
#[ignore = "prints a table"]
fn table() {
    for (name, net) in corpus() {
        let live = net.live(32, u64::MAX);
        let start = std::time::Instant::now();
        let allocated = plan(&live);
        let time = start.elapsed();
        let (planned, bound) = (allocated.planned_bytes(), allocated.lower_bound_bytes);
        println!(
            "{name:<22} {:>6} blocks {planned:>12} of {bound:>12} = {:.4}, {:?}",
            live.blocks.len(),
            planned as f64 / bound as f64,
            time
        );
    }
}
