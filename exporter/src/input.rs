//! What an export reads: which attempts, in which order ([`plan`]), a few ahead ([`ahead`]).

pub(crate) mod ahead;
pub(crate) mod plan;
