//! Servers that score recorded ids, for commands that ask one.
//!
//! [`scorer`] is a server, or an engine with a model folder; [`weights`] the folders of its weights.

pub(crate) mod scorer;
pub(crate) mod weights;

use crate::exit::Failure;

/// The key in a variable.
pub(crate) fn key(variable: &str) -> Result<String, Failure> {
    std::env::var(variable).map_err(|_| {
        Failure::new(format!("the variable `{variable}` is not set"))
            .hint("--with-key-env names the variable that holds the server's key")
    })
}
