//! The attempts that an export reads: which, in which order ([`plan`]), some ahead ([`prefetch`]).

pub(crate) mod plan;
pub(crate) mod prefetch;
