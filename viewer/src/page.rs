//! The files of the page that shows a recording. `viewer/page` has their sources.

/// A file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFile {
    /// Its content type.
    pub content_type: &'static str,
    /// Its content.
    pub content: &'static [u8],
}

/// Paths, content types and contents.
const FILES: [(&str, &str, &[u8]); 4] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../page/dist/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_bytes!("../page/dist/app.js")),
    ("/app.css", "text/css; charset=utf-8", include_bytes!("../page/dist/app.css")),
    ("/icon.svg", "image/svg+xml", include_bytes!("../page/dist/icon.svg")),
];

/// The file of the page at a path of the listener.
pub fn page_file(path: &str) -> Option<PageFile> {
    let (_, content_type, content) = FILES.iter().find(|(known, _, _)| *known == path)?;
    Some(PageFile { content_type, content })
}
