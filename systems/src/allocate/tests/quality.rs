//! How close to the bound layouts of networks are.

use super::{
    Random,
    net::Net,
    nets::{self, Llama, SMOL},
    plan,
};
use crate::{
    allocate::{Allocated, Sweep},
    liveness::Live,
};

fn corpus() -> Vec<(&'static str, Net)> {
    let prompt = Llama { tokens: 512, ..SMOL };
    let wide = Llama { width: 1152, ffn: 6912, kv_width: 256, heads: 4, layers: 26, ..prompt };
    let moe = Llama { experts: 4, ffn: 384, ..SMOL };
    vec![
        ("decode", nets::llama(SMOL)),
        ("decode flash", nets::llama(Llama { flash: true, ..SMOL })),
        ("prompt", nets::llama(prompt)),
        ("prompt flash", nets::llama(Llama { flash: true, ..prompt })),
        ("prompt all logits", nets::llama(Llama { last_only: false, ..prompt })),
        ("prompt flash 2048", nets::llama(Llama { flash: true, context: 2048, ..prompt })),
        ("wide", nets::llama(wide)),
        ("wide flash", nets::llama(Llama { flash: true, ..wide })),
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

/// What the allocator of ggml does with blocks as they come: the smallest of the free ranges that is large enough, the last one
/// only if no other is; every size a multiple of the alignment.
fn first_come(live: &Live) -> u64 {
    let align = live.arenas[0].align_bytes;
    let mut free = vec![(0_u64, u64::MAX)];
    let mut places = vec![0; live.blocks.len()];
    let mut largest = 0;
    for step in 0..live.steps.max(1) {
        for (i, block) in live.blocks.iter().enumerate().filter(|(_, b)| b.first == step) {
            let size = block.size_bytes.next_multiple_of(align);
            let fits = |&at: &usize| free[at].1 - free[at].0 >= size;
            let best = (0..free.len() - 1).filter(fits).min_by_key(|&at| free[at].1 - free[at].0);
            let at = best.unwrap_or(free.len() - 1);
            places[i] = free[at].0;
            free[at].0 += size;
            largest = largest.max(free[at].0);
            if free[at].0 == free[at].1 {
                free.remove(at);
            }
        }
        for (i, block) in live.blocks.iter().enumerate().filter(|(_, b)| b.last == step) {
            free.push((places[i], places[i] + block.size_bytes.next_multiple_of(align)));
        }
        free.retain(|&(start, end)| start < end);
        free.sort_unstable();
        free.dedup_by(|next, before| {
            let touch = before.1 == next.0;
            if touch {
                before.1 = next.1;
            }
            touch
        });
    }
    largest
}

/// Report 20.
#[test]
fn networks_are_planned_at_the_bound() {
    let mut ratios = Vec::new();
    for (name, net) in corpus() {
        let live = net.live(32, u64::MAX);
        let allocated = plan(&live);
        let (planned, bound) = (allocated.planned_bytes(), allocated.lower_bound_bytes);
        let ratio = planned as f64 / bound as f64;
        println!("{name:<22} {:>6} blocks {planned:>12} of {bound:>12} bytes, {ratio:.4}", live.blocks.len());
        assert!(planned <= first_come(&live), "{name}: not above what comes without looking ahead");
        ratios.push(ratio);
    }
    let (mean, worst) =
        (ratios.iter().sum::<f64>() / ratios.len() as f64, ratios.iter().fold(0.0, |a: f64, b| a.max(*b)));
    assert!(mean <= 1.005, "mean {mean}");
    assert!(worst <= 1.04, "worst {worst}");
}

/// Report 20: many small ones, where nothing of the sizes repeats.
#[test]
fn random_graphs_are_planned_near_the_bound() {
    let (mut sum, mut worst, count) = (0.0, 0.0_f64, 300);
    for seed in 0..count {
        let mut random = Random(seed);
        let nodes = 10 + usize::try_from(random.below(120)).expect("small");
        let net = nets::random(seed, nodes, random.below(60), random.below(70));
        let live = net.live(1 << random.below(8), u64::MAX);
        let allocated = plan(&live);
        assert!(allocated.planned_bytes() <= first_come(&live), "seed {seed}");
        // Without what alignment alone asks for.
        let allocated = plan(&net.live(1, u64::MAX));
        let ratio = allocated.planned_bytes() as f64 / allocated.lower_bound_bytes as f64;
        sum += ratio;
        worst = worst.max(ratio);
    }
    println!("mean {:.5}, worst {worst:.4}", sum / count as f64);
    assert!(sum / (count as f64) < 1.002, "mean {}", sum / count as f64);
    assert!(worst < 1.05, "worst {worst}");
}

/// Layers that repeat cost the same each, however many there are.
#[test]
fn depth_changes_nothing() {
    let prompt = Llama { tokens: 64, layers: 4, ..SMOL };
    let bytes = |layers: usize| plan(&nets::llama(Llama { layers, ..prompt }).live(32, u64::MAX)).planned_bytes();
    assert_eq!(bytes(4), bytes(16));
}

/// Skips that all have to be kept to the end of a network that widens again.
#[test]
fn long_skips_are_planned_at_the_bound() {
    for levels in 2..6 {
        for stacked in [false, true] {
            let allocated = plan(&nets::unet(levels, 16, 64, stacked).live(64, u64::MAX));
            assert!(allocated.planned_bytes() <= allocated.lower_bound_bytes * 101 / 100, "{levels} {stacked}");
        }
    }
}

/// Without looking ahead, small blocks lie where large ones come later.
#[test]
fn the_order_of_steps_alone_is_not_enough() {
    let live = nets::resnet(224).live(32, u64::MAX);
    assert!(first_come(&live) > plan(&live).planned_bytes() * 13 / 10);
}

#[test]
fn the_same_graph_gets_the_same_bytes_whatever_was_planned_before() {
    let mut sweep = Sweep::default();
    let nets: Vec<Live> = corpus().iter().map(|(_, net)| net.live(32, u64::MAX)).collect();
    for net in nets.iter().chain(nets.iter().rev()) {
        let mut allocated = Allocated::default();
        super::super::place(net, &mut sweep, &mut allocated).expect("small");
        let fresh = plan(net);
        assert_eq!((allocated.places, allocated.buffers), (fresh.places, fresh.buffers));
    }
}

/// What a block costs: `cargo test --release -p entensor-systems --lib speed -- --ignored --nocapture`.
#[test]
#[ignore = "prints times"]
fn speed() {
    let prompt = Llama { tokens: 512, ..SMOL };
    let models = [
        ("decode", SMOL),
        ("prompt", prompt),
        ("prompt flash", Llama { flash: true, ..prompt }),
        ("moe prompt flash", Llama { experts: 4, ffn: 384, flash: true, ..prompt }),
    ];
    for (name, model) in models {
        for layers in [35, 357, 3570, 35_700] {
            let live = nets::llama(Llama { layers, ..model }).live(32, u64::MAX);
            let (mut sweep, mut allocated) = (Sweep::default(), Allocated::default());
            let mut runs: Vec<f64> = (0..9)
                .map(|_| {
                    let start = std::time::Instant::now();
                    super::super::place(&live, &mut sweep, &mut allocated).expect("small");
                    start.elapsed().as_nanos() as f64 / live.blocks.len() as f64
                })
                .collect();
            runs.sort_by(f64::total_cmp);
            let ratio = allocated.planned_bytes() as f64 / allocated.lower_bound_bytes as f64;
            println!(
                "{name:<18} {:>7} blocks {:6.1} ns a block, at best {:6.1}, {ratio:.4}",
                live.blocks.len(),
                runs[4],
                runs[0]
            );
        }
    }
}
