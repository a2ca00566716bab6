//! The attempts that an export reads: in which order ([`plan`]), some ahead ([`prefetch`]), and
//! which it holds already ([`exported`]).

pub(crate) mod exported;
pub(crate) mod plan;
pub(crate) mod prefetch;
