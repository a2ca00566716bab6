//! Methods and paths that the user adds to the list of those that agents may use.

use std::borrow::Cow;
use std::str::FromStr;

use http::path::target::normal_path;
use hyper::Method;
use thiserror::Error;

use crate::config::tag_segments::tag_length;

/// A method and path that agents may use beside those on the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedPath {
    method: Method,
    /// The path in its normal form, or its beginning.
    path: String,
    is_beginning: bool,
}

/// A text that names no method and path to allow.
#[derive(Debug, Clone, Error)]
pub enum InvalidAllowedPath {
    /// The text is not a method and a path.
    #[error(
        "`{0}` is not a method and a path; give one such as 'POST /tokenize' or 'GET /files/*'"
    )]
    NotPath(String),
    /// The path is written differently from the way in which paths are compared.
    #[error("`{0}` is not in its normal form; give `{1}`")]
    NotNormal(String, String),
}

impl FromStr for AllowedPath {
    type Err = InvalidAllowedPath;

    fn from_str(text: &str) -> Result<Self, InvalidAllowedPath> {
        let invalid = || InvalidAllowedPath::NotPath(text.to_owned());
        let (method, path) = text.trim().split_once(' ').ok_or_else(invalid)?;
        let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes());
        let method =
            method.ok().filter(|method| ![Method::CONNECT, Method::TRACE].contains(method));
        let method = method.ok_or_else(invalid)?;
        let path = path.trim();
        if path.contains(['?', '#', ' ']) {
            return Err(invalid());
        }

        let (path, is_beginning) = match path.strip_suffix('*') {
            Some(beginning) => (beginning, true),
            None => (path, false),
        };
        match normal_path(path, tag_length).map_err(|_| invalid())? {
            Cow::Borrowed(path) => Ok(Self { method, path: path.to_owned(), is_beginning }),
            Cow::Owned(normal) => Err(InvalidAllowedPath::NotNormal(path.to_owned(), normal)),
        }
    }
}

impl AllowedPath {
    /// Returns true if the method and path, without a tag and a query, are allowed.
    pub(crate) fn allows(&self, method: &Method, path: &str) -> bool {
        let is_path = match self.is_beginning {
            true => path.starts_with(&self.path),
            false => path.trim_end_matches('/') == self.path.trim_end_matches('/'),
        };
        self.method == *method && is_path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_method_and_path_is_refused() {
        for bad in [
            "",
            "/tokenize",
            "POST",
            "POST tokenize",
            "CONNECT /x",
            "POST /a?b",
            "POST /a\\b",
            "P\u{e9} /",
        ] {
            assert!(bad.parse::<AllowedPath>().is_err(), "{bad}");
        }
        let why = "POST /v1/../x".parse::<AllowedPath>().unwrap_err().to_string();
        assert!(why.ends_with("give `/x`"), "{why}");
    }
}
