//! Nets that name what is in a picture: thin layers by channel on a phone, and wide residual blocks on a workstation.

use entensor_components::DType;

use super::{
    CorpusError, CorpusFile,
    sheet::{Sheet, Tensor, list},
};

const CLASSES: u64 = 1000;

/// The files of this family.
pub(super) fn files() -> Result<Vec<CorpusFile>, CorpusError> {
    Ok(vec![mobilenet()?, resnet()?])
}

struct Net {
    s: Sheet,
    /// Where the weights are.
    place: &'static str,
}

impl Net {
    fn bias(&mut self, name: &str, x: Tensor) -> Tensor {
        let channels = self.s.shape(x)[2];
        let b = self.s.weight(&format!("{name}.bias"), DType::F32, &[1, 1, channels], self.place);
        self.s.op(name, "add", &[x, b])
    }

    /// A convolution with the batch norm folded into kernel and bias.
    fn conv(&mut self, name: &str, x: Tensor, to: u64, size: u64, stride: u64) -> Tensor {
        let from = self.s.shape(x)[2];
        let kernel = self.s.weight(&format!("{name}.kernel"), DType::F16, &[size, size, from, to], self.place);
        let (pad, name_of) = (size / 2, format!("{name}_conv"));
        let op = format!("conv_2d s0={stride} s1={stride} p0={pad} p1={pad}");
        let y = self.s.op(&name_of, &op, &[kernel, x]);
        self.bias(name, y)
    }

    fn classes(&mut self, x: Tensor) {
        let [w, h, channels, n] = self.s.shape(x);
        let op = format!("pool_2d op=avg k0={w} k1={h} s0={w} s1={h}");
        let x = self.s.op("pooled", &op, &[x]);
        let x = self.s.op("features", &format!("reshape shape={}", list(&[channels, n])), &[x]);
        let w = self.s.weight("classes.weight", DType::F16, &[channels, CLASSES], self.place);
        let x = self.s.op("classes_product", "mul_mat", &[w, x]);
        let b = self.s.weight("classes.bias", DType::F32, &[CLASSES], self.place);
        let x = self.s.op("scores", "add", &[x, b]);
        self.s.output("probabilities", "soft_max", &[x]);
    }
}

/// Expansion, channels, blocks, first stride.
const MOBILE: [(u64, u64, u32, u64); 7] =
    [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];

fn mobilenet() -> Result<CorpusFile, CorpusError> {
    let about = "MobileNet-like net on 224x224 with convolutions by channel; phone whose npu and cpu share memory, the npu without \
                 pooling and softmax";
    let machine = ["npu memory=host ops=add,clamp,mul_mat,conv_2d,conv_2d_dw align=64", "cpu"];
    let mut net = Net { s: Sheet::new(&machine), place: "cpu" };
    let image = net.s.input("image", DType::F32, &[224, 224, 3]);
    let clamp = |net: &mut Net, name: &str, x: Tensor| net.s.op(&format!("{name}_clamp"), "clamp min=0 max=6", &[x]);
    let x = net.conv("first", image, 32, 3, 2);
    let mut x = clamp(&mut net, "first", x);
    for (stage, (expansion, channels, blocks, stride)) in MOBILE.into_iter().enumerate() {
        for block in 0..blocks {
            let name = format!("block.{stage}.{block}");
            let from = net.s.shape(x)[2];
            let mut y = x;
            if expansion != 1 {
                y = net.conv(&format!("{name}.expand"), y, from * expansion, 1, 1);
                y = clamp(&mut net, &format!("{name}.expand"), y);
            }
            let kernel = format!("{name}.depth.kernel");
            let kernel = net.s.weight(&kernel, DType::F16, &[3, 3, 1, from * expansion], net.place);
            let stride = if block == 0 { stride } else { 1 };
            let op = format!("conv_2d_dw s0={stride} s1={stride} p0=1 p1=1");
            y = net.s.op(&format!("{name}.depth_conv"), &op, &[kernel, y]);
            y = net.bias(&format!("{name}.depth"), y);
            y = clamp(&mut net, &format!("{name}.depth"), y);
            y = net.conv(&format!("{name}.project"), y, channels, 1, 1);
            x = if stride == 1 && from == channels { net.s.op(&name, "add", &[x, y]) } else { y };
        }
    }
    x = net.conv("last", x, 1280, 1, 1);
    x = clamp(&mut net, "last", x);
    net.classes(x);
    net.s.finish("mobilenet", about, 1)
}

fn resnet() -> Result<CorpusFile, CorpusError> {
    let about = "ResNet-like net of 50 layers on 4 pictures of 224x224, 2 copies; on the gpu, which cannot pool";
    let mut net = Net { s: Sheet::new(&["gpu ops=all,-pool_2d events async", "cpu"]), place: "gpu" };
    let image = net.s.input("image", DType::F32, &[224, 224, 3, 4]);
    let x = net.conv("first", image, 64, 7, 2);
    let x = net.s.op("first_relu", "relu", &[x]);
    let mut x = net.s.op("first_pool", "pool_2d op=max k0=3 k1=3 s0=2 s1=2 p0=1 p1=1", &[x]);
    for (stage, blocks) in [3_u32, 4, 6, 3].into_iter().enumerate() {
        let narrow = 64 << stage;
        for block in 0..blocks {
            let name = format!("block.{stage}.{block}");
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let y = net.conv(&format!("{name}.reduce"), x, narrow, 1, 1);
            let y = net.s.op(&format!("{name}.reduce_relu"), "relu", &[y]);
            let y = net.conv(&format!("{name}.middle"), y, narrow, 3, stride);
            let y = net.s.op(&format!("{name}.middle_relu"), "relu", &[y]);
            let y = net.conv(&format!("{name}.widen"), y, 4 * narrow, 1, 1);
            let skip = if block == 0 { net.conv(&format!("{name}.skip"), x, 4 * narrow, 1, stride) } else { x };
            let sum = net.s.op(&format!("{name}.sum"), "add", &[y, skip]);
            x = net.s.op(&name, "relu", &[sum]);
        }
    }
    net.classes(x);
    net.s.finish("resnet", about, 2)
}
