//! Ops that make each element of one or two elements.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use entensor_components::Op;

use super::Grid;
use crate::{
    math,
    place::Place,
    simd::Level,
    tensor::{Bases, TILE},
};

/// What an element costs in the unit of [`Grid`], beside a little arithmetic and beside an exponential.
const LIGHT: usize = 8;
const HEAVY: usize = 32;

/// Makes of a table of ops: the enum of their functions, which op is which, the kernel's `run`, and a macro that is the
/// pattern of all of them, as `Op` and as `OpKind`. So a line here is all that the backend needs to know of such an op.
macro_rules! functions {
    ($(#[$doc:meta])+ $Function:ident of $Kernel:ident, $ops:ident:
        $($Kind:ident { $($param:ident),* } $cost:ident => $f:expr;)+
    ) => {
        $(#[$doc])+
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum $Function {
            $($Kind { $($param: f32),* },)+
        }

        impl $Function {
            /// The function of an op, if it is one of these.
            pub(crate) fn of(op: &Op) -> Option<Self> {
                match *op {
                    $(Op::$Kind { $($param),* } => Some(Self::$Kind { $($param),* }),)+
                    _ => None,
                }
            }

            /// What an element costs, in the unit of [`Grid`].
            pub(crate) fn cost(self) -> usize {
                match self {
                    $(Self::$Kind { .. } => $cost,)+
                }
            }
        }

        impl $Kernel {
            #[inline(always)]
            pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
                match self.function {
                    $($Function::$Kind { $($param),* } => self.map(level, bases, chunk, $f),)+
                }
            }
        }

        macro_rules! $ops {
            (Op) => { $(Op::$Kind { .. })|+ };
            (OpKind) => { $(OpKind::$Kind)|+ };
        }
        pub(crate) use $ops;
    };
}

functions! {
    /// Which function of one element.
    UnaryFunction of Unary, unary_ops:
    Scale { by } LIGHT => |x| x * by;
    Sqr {} LIGHT => |x| x * x;
    Sqrt {} LIGHT => f32::sqrt;
    Log {} HEAVY => math::log;
    Exp {} HEAVY => math::exp;
    Neg {} LIGHT => |x| -x;
    Abs {} LIGHT => f32::abs;
    Sgn {} LIGHT => math::sgn;
    Step {} LIGHT => |x| if x > 0.0 { 1.0 } else { 0.0 };
    Clamp { min, max } LIGHT => |x| math::clamp(x, min, max);
    Relu {} LIGHT => math::relu;
    LeakyRelu { negative_slope } LIGHT => |x| if x > 0.0 { x } else { negative_slope * x };
    Elu {} HEAVY => math::elu;
    Sigmoid {} HEAVY => math::sigmoid;
    Tanh {} HEAVY => math::tanh;
    Silu {} HEAVY => math::silu;
    Gelu {} HEAVY => math::gelu;
    GeluQuick {} HEAVY => math::gelu_quick;
    GeluErf {} HEAVY => math::gelu_erf;
    Hardsigmoid {} LIGHT => math::hardsigmoid;
    Hardswish {} LIGHT => math::hardswish;
}

functions! {
    /// Which function of two elements.
    BinaryFunction of Binary, binary_ops:
    Add {} LIGHT => |a, b| a + b;
    Sub {} LIGHT => |a, b| a - b;
    Mul {} LIGHT => |a, b| a * b;
    Div {} LIGHT => |a, b| a / b;
    Swiglu {} HEAVY => |gate, value| math::silu(gate) * value;
    Geglu {} HEAVY => |gate, value| math::gelu(gate) * value;
    Reglu {} LIGHT => |gate, value| math::relu(gate) * value;
}

/// A function of one element.
#[derive(Debug)]
pub(crate) struct Unary {
    pub(crate) function: UnaryFunction,
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Unary {
    #[inline(always)]
    fn map<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize, f: impl Fn(f32) -> f32) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let (x, out) = (x.row(at), unsafe { out.row_mut(at) });
            for (start, len) in piece.tiles() {
                x.load(level, start, &mut tile[..len]);
                tile[..len].iter_mut().for_each(|v| *v = f(*v));
                out.store(level, start, &tile[..len]);
            }
        }
    }
}

/// A function of two elements, the second operand repeated over the first.
#[derive(Debug)]
pub(crate) struct Binary {
    pub(crate) function: BinaryFunction,
    pub(crate) a: Place,
    pub(crate) b: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Binary {
    #[inline(always)]
    fn map<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize, f: impl Fn(f32, f32) -> f32) {
        let (a, b, out) = (bases.tensor(&self.a), bases.tensor(&self.b), bases.tensor(&self.out));
        let (mut first, mut second) = ([0.0; TILE], [0.0; TILE]);
        let repeats = self.b.shape[0] != self.a.shape[0];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let (a, out) = (a.row(at), unsafe { out.row_mut(at) });
            let b = b.row([at[0] % self.b.shape[1], at[1] % self.b.shape[2], at[2] % self.b.shape[3]]);
            for (start, len) in piece.tiles() {
                a.load(level, start, &mut first[..len]);
                if repeats {
                    b.load_repeated(level, start, &mut second[..len]);
                } else {
                    b.load(level, start, &mut second[..len]);
                }
                first[..len].iter_mut().zip(&second[..len]).for_each(|(a, b)| *a = f(*a, *b));
                out.store(level, start, &first[..len]);
            }
        }
    }
}
