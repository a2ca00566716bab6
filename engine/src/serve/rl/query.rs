//! The query of an address.

use super::super::error::ApiError;

/// Names and values, in their order.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: &str) -> Query {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        });
        Query(pairs.collect())
    }

    /// All values of a name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The last value of a name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A truth value, as FastAPI reads one.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        match self.get(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(default),
            Some("true" | "1" | "on" | "yes" | "t" | "y") => Ok(true),
            Some("false" | "0" | "off" | "no" | "f" | "n") => Ok(false),
            Some(other) => Err(ApiError::bad(name, format!("must be a boolean, got `{other}`"))),
        }
    }
}

/// `%41` and `+` as what they stand for.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = code.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (byte, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &after[2..];
            }
            _ => {
                bytes.push(if byte == b'+' { b' ' } else { byte });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_as_forms_write_them() {
        let query = Query::parse("mode=keep&tags=a&tags=b%2Fc+d&clear_cache=False&odd=%4&flag");
        assert_eq!(query.get("mode"), Some("keep"));
        assert_eq!(query.all("tags").collect::<Vec<_>>(), ["a", "b/c d"]);
        assert!(!query.flag("clear_cache", true).unwrap());
        assert!(query.flag("absent", true).unwrap());
        assert!(query.flag("mode", true).is_err());
        assert_eq!((query.get("odd"), query.get("flag")), (Some("%4"), Some("")));
    }
}
