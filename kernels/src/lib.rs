//! Tensor operations for a decoder-only transformer.
//!
//! Read [`op`] first: one trait, [`Ops`], names every operation that a model needs and gives its
//! shapes.
//! [`cpu`] implements it for any machine, [`cuda`] for NVIDIA's GPUs.
//!
//! Two promises hold for every implementation that calls itself exact:
//!
//! - a row of a result depends on that row's inputs only, never on how many rows stand beside it,
//!   so a request gets the same bits alone and in a batch;
//! - the order of every sum is fixed, so all instruction sets give the same bits.
//!
//! [`Numerics::Fast`] gives up the second: its bits are those of one machine.
//!
//! This is the only crate of the workspace that may hold unsafe code.

pub mod cpu;
pub mod cuda;
pub mod nccl;
pub mod op;
mod reach;
mod step;

pub use cpu::{Cpu, Numerics};
pub use op::{
    Draw, Drawn, DrawnScores, Heads, Home, LowRank, OpError, Ops, PAGE, Rotation, Span, Step,
    TOP_MAX, Values,
};
pub use reach::Reach;
