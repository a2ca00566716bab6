//! The elements of a page that hold its data.

use std::io::Write;

use crate::file::FileError;

/// A page under way, of a bounded length.
pub(super) struct PageElements<W> {
    to: W,
    bytes: u64,
    bytes_max: u64,
}

impl<W: Write> PageElements<W> {
    pub(super) fn new(to: W, bytes_max: u64) -> Self {
        Self { to, bytes: 0, bytes_max }
    }

    /// Writes HTML.
    pub(super) fn text(&mut self, text: &str) -> Result<(), FileError> {
        self.bytes += text.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(FileError::TooLong(self.bytes_max));
        }
        Ok(self.to.write_all(text.as_bytes())?)
    }

    /// Writes a JSON text under an attribute. No text in it can end the element, or begin another.
    pub(super) fn json(
        &mut self,
        attribute: &str,
        value: &str,
        json: &str,
    ) -> Result<(), FileError> {
        let value = escaped(value);
        self.text(&format!("<script type=\"application/json\" {attribute}=\"{value}\">"))?;
        self.text(&json.replace('<', "\\u003c"))?;
        self.text("</script>\n")
    }

    /// Ends the page. Returns its length.
    pub(super) fn end(mut self) -> Result<u64, FileError> {
        self.to.flush()?;
        Ok(self.bytes)
    }
}

/// A text as HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn no_recorded_text_ends_its_element() {
        let mut page = Vec::new();
        let mut elements = PageElements::new(&mut page, 1000);
        let said = json!(["</script><script>alert(1)</script>", "<!--", "a < b"]);
        elements.json("data-answer", "a\"<b>", &said.to_string()).unwrap();
        elements.end().unwrap();

        let page = String::from_utf8(page).unwrap();
        let inner = page.split_once('>').unwrap().1.strip_suffix("</script>\n").unwrap();
        assert!(!inner.contains('<'), "{inner}");
        assert_eq!(serde_json::from_str::<Value>(inner).unwrap(), said);
        assert!(page.contains("data-answer=\"a&quot;&lt;b&gt;\""), "{page}");
    }

    #[test]
    fn a_page_is_no_longer_than_it_may_be() {
        let mut elements = PageElements::new(Vec::new(), 100);
        elements.text(&"a".repeat(100)).unwrap();
        assert!(matches!(elements.text("a"), Err(FileError::TooLong(100))));
        assert_eq!(elements.to.len(), 100);
    }
}
