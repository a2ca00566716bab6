//! Lists of what a store holds, for people who read: pages of attempts, groups in numbers, calls
//! without their bodies, and what the first and the last ones said. Questions in SQL,
//! also those about the health of a run. An index of texts.

pub(crate) mod calls;
pub(crate) mod episodes;
pub(crate) mod filter;
pub(crate) mod groups;
pub(crate) mod health;
pub(crate) mod past_calls;
pub(crate) mod spoken;
pub(crate) mod sql;
pub(crate) mod text_index;
pub(crate) mod total;

#[cfg(test)]
mod plans;
#[cfg(test)]
mod tests;
