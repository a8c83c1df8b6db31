//! Which op of ggml's stands for one of ours.

use entensor::components::OpKind;
use llama_cpp_sys_2 as sys;

/// The op of ggml's whose memory is planned as that of ours; `None` if ggml has no such op of its own. (A custom op stands in then.)
pub(super) fn ggml_op(kind: OpKind) -> Option<sys::ggml_op> {
    use OpKind as K;
    Some(match kind {
        K::None => sys::GGML_OP_NONE,
        K::Add => sys::GGML_OP_ADD,
        K::Sub => sys::GGML_OP_SUB,
        K::Mul => sys::GGML_OP_MUL,
        K::Div => sys::GGML_OP_DIV,
        K::Scale => sys::GGML_OP_SCALE,
        K::Sqr => sys::GGML_OP_SQR,
        K::Sqrt => sys::GGML_OP_SQRT,
        K::Log => sys::GGML_OP_LOG,
        K::Clamp => sys::GGML_OP_CLAMP,
        K::LeakyRelu => sys::GGML_OP_LEAKY_RELU,
        K::Exp
        | K::Neg
        | K::Abs
        | K::Sgn
        | K::Step
        | K::Relu
        | K::Elu
        | K::Sigmoid
        | K::Tanh
        | K::Silu
        | K::Gelu
        | K::GeluQuick
        | K::GeluErf
        | K::Hardsigmoid
        | K::Hardswish
        | K::Softplus => sys::GGML_OP_UNARY,
        K::Swiglu | K::Geglu | K::Reglu => sys::GGML_OP_GLU,
        K::RmsNorm => sys::GGML_OP_RMS_NORM,
        K::Norm => sys::GGML_OP_NORM,
        K::GroupNorm => sys::GGML_OP_GROUP_NORM,
        K::L2Norm => sys::GGML_OP_L2_NORM,
        K::SoftMax => sys::GGML_OP_SOFT_MAX,
        K::DiagMaskInf => sys::GGML_OP_DIAG_MASK_INF,
        K::Argmax => sys::GGML_OP_ARGMAX,
        K::Argsort => sys::GGML_OP_ARGSORT,
        K::TopK => sys::GGML_OP_TOP_K,
        K::Sum => sys::GGML_OP_SUM,
        K::SumRows => sys::GGML_OP_SUM_ROWS,
        K::Mean => sys::GGML_OP_MEAN,
        K::Cumsum => sys::GGML_OP_CUMSUM,
        K::MulMat => sys::GGML_OP_MUL_MAT,
        K::MulMatId => sys::GGML_OP_MUL_MAT_ID,
        K::Rope => sys::GGML_OP_ROPE,
        K::FlashAttnExt => sys::GGML_OP_FLASH_ATTN_EXT,
        K::GetRows => sys::GGML_OP_GET_ROWS,
        K::SetRows => sys::GGML_OP_SET_ROWS,
        K::AddId => sys::GGML_OP_ADD_ID,
        K::Cpy | K::Cast => sys::GGML_OP_CPY,
        K::Cont => sys::GGML_OP_CONT,
        K::Repeat => sys::GGML_OP_REPEAT,
        K::Concat => sys::GGML_OP_CONCAT,
        K::Pad => sys::GGML_OP_PAD,
        K::Roll => sys::GGML_OP_ROLL,
        K::Upscale => sys::GGML_OP_UPSCALE,
        K::Arange => sys::GGML_OP_ARANGE,
        K::TimestepEmbedding => sys::GGML_OP_TIMESTEP_EMBEDDING,
        K::Im2col => sys::GGML_OP_IM2COL,
        K::Conv2d => sys::GGML_OP_CONV_2D,
        K::Conv2dDw => sys::GGML_OP_CONV_2D_DW,
        K::ConvTranspose1d => sys::GGML_OP_CONV_TRANSPOSE_1D,
        K::ConvTranspose2d => sys::GGML_OP_CONV_TRANSPOSE_2D,
        K::Pool1d => sys::GGML_OP_POOL_1D,
        K::Pool2d => sys::GGML_OP_POOL_2D,
        K::View => sys::GGML_OP_VIEW,
        K::Reshape => sys::GGML_OP_RESHAPE,
        K::Permute => sys::GGML_OP_PERMUTE,
        K::Transpose => sys::GGML_OP_TRANSPOSE,
        // A convolution along one axis is two nodes in ggml; its recurrent ops are others.
        K::Conv1d | K::Lstm | K::Gru => return None,
    })
}

/// Whether ggml has this op as one of its own.
pub(crate) fn has_op(kind: OpKind) -> bool {
    ggml_op(kind).is_some()
}
