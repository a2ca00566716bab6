//! The innermost loops, written once for every instruction set.
//!
//! - [`vector`]: sixteen lanes of `f32`, in the registers of x86-64 or in a plain array;
//!   `neon` has those of AArch64.
//! - [`tile`]: products of some rows with some panels of weights, in registers.
//! - [`loops`]: loops that the compiler vectorizes by itself.

pub(super) mod loops;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod tile;
pub(super) mod vector;
