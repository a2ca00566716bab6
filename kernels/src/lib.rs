//! Tensor operations for a decoder-only transformer.
//!
//! Read [`op`] first: its trait, [`Ops`], has every operation that a model needs, with the
//! shapes. [`cpu`] implements it for any machine, [`cuda`] for NVIDIA's GPUs. [`nccl`] receives
//! weights that a trainer broadcasts.
//!
//! An implementation that calls itself exact keeps two promises:
//!
//! - a row of a result depends on that row's inputs only, not on the number of rows beside it, so
//!   a request gets the same bits alone and in a batch;
//! - the order of every sum is fixed, so all instruction sets give the same bits.
//!
//! [`Numerics::Fast`] gives up the second: its bits are those of one machine.
//!
//! This is the only crate of the workspace that may contain unsafe code.

mod bf16;
pub mod cpu;
pub mod cuda;
pub mod heap;
pub mod nccl;
pub mod op;
mod random;

pub use cpu::{Cpu, Numerics};
pub use op::{
    AttentionRows, ConvolutionInputs, DeltaHeads, DeltaInputs, DeviceLimits, DrawParams,
    DrawnScores, DrawnToken, EXPERTS_MAX, ExpertChoice, ExpertMatrices, Heads, HostValues,
    IN_PROMPT, KvFormat, LayerPages, LayerRouting, LayerStates, LowRank, MatrixPart, OpError, Ops,
    PAGE, POSITION_MAX, PageMove, PageMoves, Penalties, Placement, ReplyCounts, Residual, RmsNorm,
    Rotation, ShapedDraw, Span, SpanState, StateMark, Step, TOP_MAX, Values,
};
