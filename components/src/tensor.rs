//! The components of a tensor entity. A tensor has all of them from birth, so planning changes values, never archetypes.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use smallvec::SmallVec;

use crate::{
    dtype::DType,
    generation::{InGraph, bump_generation},
    op::Op,
    shape::{Shape, Strides, TensorDesc},
};

/// A backend's place in the engine's list: 0 is the highest priority, the last is the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendIndex(pub u32);

/// The tensor's name, unique in its graph.
#[derive(Component, Clone, Debug, PartialEq, Eq, Hash)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct TensorName(pub Arc<str>);

/// The operands, in the order of the op's constructor.
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct Sources(#[entities] pub SmallVec<[Entity; 3]>);

/// Whose memory a view is: always a root, never a view of a view. Writers are views of their target's root.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct ViewSrc {
    /// The root, if the tensor is a view.
    #[entities]
    pub root: Option<Entity>,
    /// Bytes from the root's first element.
    pub offset_bytes: u64,
}

/// What the user said of a tensor's contents.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct TensorFlags {
    /// Written by the user before a run; its memory is stable.
    pub input: bool,
    /// An input that each run consumes: its memory serves others after its last reader, so it is written before every run.
    /// With several pipelined copies it stays, since inputs are written while older runs go on.
    pub consumed: bool,
    /// Read by the user after each run; its memory (its root's) is not reused.
    pub output: bool,
}

/// The user's wish where a tensor should be.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct Pinned(pub Option<BackendIndex>);

/// The planner's answer where a tensor is. Systems between the passes may read and write it.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendId(pub Option<BackendIndex>);

/// Why a tensor is where it is.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// No pass has decided yet.
    #[default]
    Undecided,
    /// The user pinned it.
    Pin,
    /// Its memory, or its root's or target's, exists already.
    Memory,
    /// Inputs are on the host.
    Input,
    /// It reads weights that lie there.
    Weights,
    /// It reads a cache that lies there.
    Cache,
    /// A higher backend takes the work although the weights are on the host.
    Offload,
    /// An accelerator's run goes on downwards.
    ExpandDown,
    /// An accelerator's run goes on upwards.
    ExpandUp,
    /// Any run goes on downwards.
    RestDown,
    /// Any run goes on upwards.
    RestUp,
    /// A higher backend shares the memory and can run it.
    Upgrade,
    /// Nothing else decided: the backend that can use most of its sources.
    Best,
    /// Views are where their root is.
    InheritView,
    /// Scratch memory is where its first user is.
    InheritUser,
    /// A system of the user's own decided.
    User,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 16] = [
        Self::Undecided,
        Self::Pin,
        Self::Memory,
        Self::Input,
        Self::Weights,
        Self::Cache,
        Self::Offload,
        Self::ExpandDown,
        Self::ExpandUp,
        Self::RestDown,
        Self::RestUp,
        Self::Upgrade,
        Self::Best,
        Self::InheritView,
        Self::InheritUser,
        Self::User,
    ];

    /// The word in plans and explanations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Undecided => "undecided",
            Self::Pin => "pin",
            Self::Memory => "memory",
            Self::Input => "input",
            Self::Weights => "weights",
            Self::Cache => "cache",
            Self::Offload => "offload",
            Self::ExpandDown => "expand.down",
            Self::ExpandUp => "expand.up",
            Self::RestDown => "rest.down",
            Self::RestUp => "rest.up",
            Self::Upgrade => "upgrade",
            Self::Best => "best",
            Self::InheritView => "inherit.view",
            Self::InheritUser => "inherit.user",
            Self::User => "user",
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One copy of a tensor on another backend, made for one graph's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorCopy {
    /// The graph whose plan has the copy.
    pub graph: Entity,
    /// The backend that reads it.
    pub backend: BackendIndex,
    /// Which of the pipelined slots.
    pub slot: u32,
    /// The copy: a tensor with [`CopyOf`].
    pub copy: Entity,
}

/// The copies of a tensor on other backends.
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorCopies(pub Vec<TensorCopy>);

/// On a copy: what it is a copy of.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOf(#[entities] pub Entity);

/// Where existing memory of a tensor lies; `None` for planned memory.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct StoredIn(pub Option<Stored>);

/// A place in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The buffer entity.
    pub buffer: Entity,
    /// Bytes from its start.
    pub offset_bytes: u64,
}

/// Everything a tensor has from birth.
#[derive(Bundle, Clone, Debug)]
pub struct TensorBundle {
    /// The graph it belongs to; first, so that hooks of the others find it.
    pub in_graph: InGraph,
    /// Its name.
    pub name: TensorName,
    /// Element type.
    pub dtype: DType,
    /// Elements per axis.
    pub shape: Shape,
    /// Bytes per axis.
    pub strides: Strides,
    /// The op that makes it.
    pub op: Op,
    /// The op's operands.
    pub sources: Sources,
    /// Whose memory it views.
    pub view_src: ViewSrc,
    /// Input and output.
    pub flags: TensorFlags,
    /// The user's wish.
    pub pinned: Pinned,
    /// Existing memory.
    pub stored_in: StoredIn,
    /// The planner's answer.
    pub backend_id: BackendId,
    /// Why.
    pub cause: Cause,
    /// Copies on other backends.
    pub copies: TensorCopies,
}

/// What a copy has: what it is a copy of, what it looks like, and where it is. What made it and who wants it is its source's.
#[derive(Bundle, Clone, Debug)]
pub struct CopyBundle {
    /// The graph whose plan has it; first, so that hooks of the others find it.
    pub in_graph: InGraph,
    /// What it is a copy of.
    pub copy_of: CopyOf,
    /// `BACKEND#NAME#SLOT`.
    pub name: TensorName,
    /// Element type.
    pub dtype: DType,
    /// Elements per axis.
    pub shape: Shape,
    /// Bytes per axis.
    pub strides: Strides,
    /// The backend that reads it.
    pub backend_id: BackendId,
}

impl TensorBundle {
    /// A leaf without memory: scratch, or an input once its flag is set.
    #[must_use]
    pub fn leaf(name: Arc<str>, desc: TensorDesc) -> Self {
        Self {
            in_graph: InGraph(None),
            name: TensorName(name),
            dtype: desc.dtype,
            shape: desc.shape,
            strides: desc.strides,
            op: Op::None {},
            sources: Sources::default(),
            view_src: ViewSrc::default(),
            flags: TensorFlags::default(),
            pinned: Pinned(None),
            stored_in: StoredIn(None),
            backend_id: BackendId(None),
            cause: Cause::Undecided,
            copies: TensorCopies::default(),
        }
    }
}
