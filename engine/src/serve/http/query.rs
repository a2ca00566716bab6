//! Query strings.

use super::error::ApiError;

/// The names and values of a query string, in their order.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses `a=1&b=2`. A name without `=` has an empty value.
    pub(crate) fn parse(query: &str) -> Query {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(name), percent_decode(value))
        });
        Query(pairs.collect())
    }

    /// Iterates over all values of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the last value of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Reads a boolean in the words that FastAPI accepts.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        match self.get(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(default),
            Some("true" | "1" | "on" | "yes" | "t" | "y") => Ok(true),
            Some("false" | "0" | "off" | "no" | "f" | "n") => Ok(false),
            Some(other) => {
                Err(ApiError::bad_field(name, format!("must be a boolean, got `{other}`")))
            }
        }
    }
}

/// Decodes `%41` and `+`. A percent sign without two hexadecimal digits stays.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();

    while let Some((&byte, after)) = rest.split_first() {
        match (byte, hex_byte(after)) {
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

/// Returns the byte that the first two hexadecimal digits spell.
fn hex_byte(digits: &[u8]) -> Option<u8> {
    let pair = std::str::from_utf8(digits.get(..2)?).ok()?;
    u8::from_str_radix(pair, 16).ok()
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
