//! Nets for pictures from noise: a way down, a way up, and skips between them that live long.

use entensor_components::DType;

use super::{
    CorpusError, CorpusFile,
    sheet::{Sheet, Tensor, list},
};

const CHANNELS: [u64; 4] = [128, 256, 384, 512];
const BLOCKS: usize = 2;
const TIME_WIDTH: u64 = 512;
const GROUPS: u64 = 32;

/// The files of this family.
pub(super) fn files() -> Result<Vec<CorpusFile>, CorpusError> {
    let direct = "U-Net of 4 levels on a latent picture of 64x64, convolutions as one op; all on the gpu, which has no timestep_embedding";
    let patches = "the same as patches and products (im2col), on the host alone";
    Ok(vec![
        Net { s: Sheet::new(&["gpu ops=all,-timestep_embedding", "cpu"]), place: "gpu", patches: false, time: None }
            .file("unet", direct)?,
        Net { s: Sheet::new(&["cpu"]), place: "cpu", patches: true, time: None }.file("unet_im2col", patches)?,
    ])
}

struct Net {
    s: Sheet,
    /// Where the weights are.
    place: &'static str,
    /// Whether convolutions are products with patches.
    patches: bool,
    time: Option<Tensor>,
}

impl Net {
    fn file(mut self, name: &'static str, about: &'static str) -> Result<CorpusFile, CorpusError> {
        let noise = self.s.input("noise", DType::F32, &[64, 64, 4]);
        self.time();
        let mut x = self.conv("in", noise, CHANNELS[0], 3, 1);
        let mut skips = vec![x];
        for (level, channels) in CHANNELS.into_iter().enumerate() {
            for block in 0..BLOCKS {
                let name = format!("down.{level}.{block}");
                x = self.residual(&name, x, channels);
                if level >= 2 {
                    x = self.attention(&format!("{name}.attn"), x);
                }
                skips.push(x);
            }
            if level + 1 < CHANNELS.len() {
                x = self.conv(&format!("down.{level}.shrink"), x, channels, 3, 2);
                skips.push(x);
            }
        }
        x = self.residual("middle.0", x, CHANNELS[3]);
        x = self.attention("middle.attn", x);
        x = self.residual("middle.1", x, CHANNELS[3]);
        for (level, channels) in CHANNELS.into_iter().enumerate().rev() {
            for block in 0..=BLOCKS {
                let name = format!("up.{level}.{block}");
                if let Some(skip) = skips.pop() {
                    x = self.s.op(&format!("{name}.concat"), "concat dim=2", &[x, skip]);
                }
                x = self.residual(&name, x, channels);
                if level >= 2 {
                    x = self.attention(&format!("{name}.attn"), x);
                }
            }
            if level > 0 {
                let [w, h, c, n] = self.s.shape(x);
                let op = format!("upscale ne={}", list(&[2 * w, 2 * h, c, n]));
                x = self.s.op(&format!("up.{level}.wide"), &op, &[x]);
                x = self.conv(&format!("up.{level}.grow"), x, channels, 3, 1);
            }
        }
        let x = self.group_norm("out_norm", x);
        let x = self.s.op("out_silu", "silu", &[x]);
        let x = self.conv("out_conv", x, 4, 3, 1);
        self.s.output("denoised", "sub", &[noise, x]);
        self.s.finish(name, about, 1)
    }

    /// What the step's number says, as a vector that every block adds.
    fn time(&mut self) {
        let steps = self.s.input("step", DType::F32, &[1]);
        let x = self.s.op("time_waves", &format!("timestep_embedding dim={}", CHANNELS[0]), &[steps]);
        let x = self.linear("time.0", x, TIME_WIDTH);
        let x = self.s.op("time_silu", "silu", &[x]);
        let x = self.linear("time.1", x, TIME_WIDTH);
        self.time = Some(self.s.op("time", "silu", &[x]));
    }

    fn linear(&mut self, name: &str, x: Tensor, to: u64) -> Tensor {
        let from = self.s.shape(x)[0];
        let w = self.s.weight(&format!("{name}.weight"), DType::F16, &[from, to], self.place);
        let y = self.s.op(&format!("{name}_product"), "mul_mat", &[w, x]);
        let b = self.s.weight(&format!("{name}.bias"), DType::F32, &[to], self.place);
        self.s.op(name, "add", &[y, b])
    }

    fn conv(&mut self, name: &str, x: Tensor, to: u64, size: u64, stride: u64) -> Tensor {
        let from = self.s.shape(x)[2];
        let kernel = self.s.weight(&format!("{name}.kernel"), DType::F16, &[size, size, from, to], self.place);
        let pad = size / 2;
        let params = format!("s0={stride} s1={stride} p0={pad} p1={pad}");
        let y = if self.patches {
            let patches = self.s.op(&format!("{name}_patches"), &format!("im2col {params} dtype=f16"), &[kernel, x]);
            let [k, w, h, n] = self.s.shape(patches);
            let op = format!("reshape shape={}", list(&[k, w * h * n]));
            let rows = self.s.op(&format!("{name}_rows"), &op, &[patches]);
            let op = format!("reshape shape={}", list(&[k, to]));
            let columns = self.s.op(&format!("{name}_columns"), &op, &[kernel]);
            let y = self.s.op(&format!("{name}_product"), "mul_mat", &[rows, columns]);
            let op = format!("reshape shape={}", list(&[w, h, n, to]));
            let y = self.s.op(&format!("{name}_planes"), &op, &[y]);
            let y = self.s.op(&format!("{name}_perm"), "permute axes=[0,1,3,2]", &[y]);
            self.s.op(&format!("{name}_cont"), "cont", &[y])
        } else {
            self.s.op(&format!("{name}_conv"), &format!("conv_2d {params}"), &[kernel, x])
        };
        let b = self.s.weight(&format!("{name}.bias"), DType::F32, &[1, 1, to], self.place);
        self.s.op(name, "add", &[y, b])
    }

    fn group_norm(&mut self, name: &str, x: Tensor) -> Tensor {
        let channels = self.s.shape(x)[2];
        let y = self.s.op(&format!("{name}_groups"), &format!("group_norm n_groups={GROUPS}"), &[x]);
        let w = self.s.weight(&format!("{name}.weight"), DType::F32, &[1, 1, channels], self.place);
        let y = self.s.op(&format!("{name}_scaled"), "mul", &[y, w]);
        let b = self.s.weight(&format!("{name}.bias"), DType::F32, &[1, 1, channels], self.place);
        self.s.op(name, "add", &[y, b])
    }

    fn residual(&mut self, name: &str, x: Tensor, to: u64) -> Tensor {
        let from = self.s.shape(x)[2];
        let y = self.group_norm(&format!("{name}.norm1"), x);
        let y = self.s.op(&format!("{name}.silu1"), "silu", &[y]);
        let mut y = self.conv(&format!("{name}.conv1"), y, to, 3, 1);
        if let Some(time) = self.time {
            let t = self.linear(&format!("{name}.time"), time, to);
            let op = format!("reshape shape={}", list(&[1, 1, to]));
            let t = self.s.op(&format!("{name}.time_planes"), &op, &[t]);
            y = self.s.op(&format!("{name}.timed"), "add", &[y, t]);
        }
        let y = self.group_norm(&format!("{name}.norm2"), y);
        let y = self.s.op(&format!("{name}.silu2"), "silu", &[y]);
        let y = self.conv(&format!("{name}.conv2"), y, to, 3, 1);
        let x = if from == to { x } else { self.conv(&format!("{name}.skip"), x, to, 1, 1) };
        self.s.op(name, "add", &[x, y])
    }

    /// Attention between all places of a picture, with one head.
    fn attention(&mut self, name: &str, x: Tensor) -> Tensor {
        let [w, h, channels, _] = self.s.shape(x);
        let y = self.group_norm(&format!("{name}.norm"), x);
        let op = format!("reshape shape={}", list(&[w * h, channels]));
        let y = self.s.op(&format!("{name}.places"), &op, &[y]);
        let y = self.s.op(&format!("{name}.places_transposed"), "transpose", &[y]);
        let y = self.s.op(&format!("{name}.rows"), "cont", &[y]);
        let q = self.linear(&format!("{name}.q"), y, channels);
        let k = self.linear(&format!("{name}.k"), y, channels);
        let v = self.linear(&format!("{name}.v"), y, channels);
        let scores = self.s.op(&format!("{name}.scores"), "mul_mat", &[k, q]);
        let weights = self.s.op(&format!("{name}.weights"), "soft_max scale=0.05", &[scores]);
        let v = self.s.op(&format!("{name}.v_transposed"), "transpose", &[v]);
        let v = self.s.op(&format!("{name}.v_cont"), "cont", &[v]);
        let mixed = self.s.op(&format!("{name}.mixed"), "mul_mat", &[v, weights]);
        let y = self.linear(&format!("{name}.out"), mixed, channels);
        let y = self.s.op(&format!("{name}.out_transposed"), "transpose", &[y]);
        let y = self.s.op(&format!("{name}.out_cont"), "cont", &[y]);
        let op = format!("reshape shape={}", list(&[w, h, channels]));
        let y = self.s.op(&format!("{name}.picture"), &op, &[y]);
        self.s.op(name, "add", &[x, y])
    }
}
