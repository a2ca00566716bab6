//! The place of the secrets that sign API keys.

use std::io;

/// Makes new content of a place from what it holds.
pub type SecretChange<'a> = dyn FnMut(Option<String>) -> io::Result<String> + 'a;

/// The place of the secrets that sign API keys, which nobody else can read.
pub trait SigningSecretPlace: std::fmt::Debug + Send + Sync {
    /// Reads the content; `None` if there is none.
    ///
    /// # Errors
    /// The reason for which it cannot be trusted or read.
    fn read(&self) -> io::Result<Option<String>>;

    /// Writes the first content. Another process may have been first; its content stays.
    ///
    /// # Errors
    /// The reason for which it cannot be written.
    fn create(&self, content: &str) -> io::Result<()>;

    /// Replaces the content by what `change` makes of it. No other process does so meanwhile.
    ///
    /// # Errors
    /// That of `change`, or the reason for which it cannot be written.
    fn update(&self, change: &mut SecretChange<'_>) -> io::Result<()>;
}
