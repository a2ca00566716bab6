//! Rows: one row a path.
//!
//! [`builder`] makes a [`row`] of each path: [`trajectory`] gives its tokens, [`dialogue`] its
//! [`messages`], [`token_data`] the data of its tokens, [`verdict`] its verdict. [`retokenize`]
//! makes ids for paths without any. [`scores`] are what other models say of its tokens. [`schema`]
//! is the contract with trainers, and [`columns`] turns rows into Arrow arrays.

pub(crate) mod annotations;
pub(crate) mod builder;
pub(crate) mod columns;
pub(crate) mod dialogue;
pub(crate) mod messages;
pub(crate) mod retokenize;
pub(crate) mod row;
pub(crate) mod schema;
pub(crate) mod scores;
pub(crate) mod token_data;
pub(crate) mod trajectory;
pub(crate) mod verdict;
