//! The page in one file, with the answers that it would ask for.
//!
//! The answers are those of a [`Viewer`], as a control listener would give them. The file needs no
//! server, and its policy lets it ask no network.

mod answers;
mod elements;
mod parts;

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use episode::{AttemptId, GroupId, Micros};
use serde_json::json;
use sha2::{Digest, Sha256};
use store::Selection;
use thiserror::Error;

use self::answers::Answers;
use self::elements::{PageElements, escaped};
use crate::answer::Viewer;
use crate::error::ViewError;
use crate::page::page_file;
use crate::time::seconds;

/// The content of a page in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    /// The attempts that can be read.
    pub attempts: Vec<AttemptId>,
    /// The group whose attempts these are: it can be read as well.
    pub group: Option<GroupId>,
    /// True if the recorded bodies are in the file.
    pub has_bodies: bool,
    /// The version of the program that writes the file.
    pub version: String,
    /// The time of writing.
    pub written_at: Micros,
    /// Longest file, in bytes.
    pub bytes_max: u64,
}

/// The reasons for which there is no whole file.
#[derive(Debug, Error)]
pub enum FileError {
    /// A question has no answer.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file would be longer than it may be.
    #[error("the page would have more than {0} bytes")]
    TooLong(u64),
}

impl FileContent {
    /// The attempt, or the group, by its name.
    fn title(&self) -> String {
        match (&self.group, self.attempts.as_slice()) {
            (Some(group), _) => format!("group {group}"),
            (None, [only]) if only.attempt == 0 => only.episode.to_string(),
            (None, names) => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        }
    }

    /// The facts of the file, for the page.
    fn facts(&self) -> String {
        let attempts = self
            .attempts
            .iter()
            .map(|name| json!({ "episode_id": name.episode.as_str(), "attempt": name.attempt }));
        let facts = json!({
            "title": self.title(),
            "attempts": attempts.collect::<Vec<_>>(),
            "group": self.group.as_ref().map(GroupId::as_str),
            "has_bodies": self.has_bodies,
            "version": self.version,
            "written_at": seconds(self.written_at),
        });
        facts.to_string()
    }
}

/// Writes the page with its answers. Returns its length in bytes.
///
/// # Errors
/// [`FileError`] when a question has no answer, the page would be too long, or `to` takes no more.
pub async fn write_page(
    viewer: &Viewer,
    content: &FileContent,
    to: impl Write,
) -> Result<u64, FileError> {
    let mut elements = PageElements::new(to, content.bytes_max);
    elements.text(&head(&content.title()))?;
    elements.json("data-file", "", &content.facts())?;

    let mut answers = Answers::new(viewer, elements);
    if let Some(group) = &content.group {
        answers.group(group).await?;
    }
    for attempt in &content.attempts {
        answers.attempt(attempt, content.has_bodies).await?;
    }

    let mut elements = answers.end();
    elements
        .text("</head>\n<body>\n<noscript>This page needs JavaScript.</noscript>\n</body>\n")?;
    elements.text("</html>\n")?;
    elements.end()
}

/// The attempts of a group, in the order in which they began.
///
/// # Errors
/// [`ViewError`] when there are none, or the store cannot be read.
pub async fn attempts_of(viewer: &Viewer, group: &GroupId) -> Result<Vec<AttemptId>, ViewError> {
    let mut snapshot = viewer.snapshot().await?;
    let selection = Selection { group: Some(group.clone()), ..Selection::default() };
    let records = snapshot.episodes(&selection).await.map_err(ViewError::from)?;
    let attempts =
        records.into_iter().map(|record| AttemptId { episode: record.id, attempt: record.attempt });
    let attempts: Vec<AttemptId> = attempts.collect();
    match attempts.is_empty() {
        true => Err(ViewError::Missing(format!("no group `{group}`"))),
        false => Ok(attempts),
    }
}

/// The beginning of the page, with its script and its styles.
fn head(title: &str) -> String {
    let (script, style) = (text_of("/app.js"), text_of("/app.css"));
    let icon = STANDARD.encode(text_of("/icon.svg"));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n<title>{} · rolltape</title>\n\
         <link rel=\"icon\" href=\"data:image/svg+xml;base64,{icon}\">\n<style>{style}</style>\n\
         <script type=\"module\">{script}</script>\n",
        policy(script, style),
        escaped(title),
    )
}

/// The policy for browsers: this script and these styles, and nothing from anywhere.
fn policy(script: &str, style: &str) -> String {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; \
         form-action 'none'",
        hash(script),
        hash(style)
    )
}

/// A file of the page as text.
fn text_of(path: &str) -> &'static str {
    let file = page_file(path).map(|file| file.content).unwrap_or_default();
    std::str::from_utf8(file).expect("the page's files are text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_and_the_styles_can_stand_in_a_page() {
        for path in ["/app.js", "/app.css"] {
            let text = text_of(path).to_lowercase();
            for end in ["</script", "</style", "<!--", "<script", "\r"] {
                assert!(!text.is_empty() && !text.contains(end), "{path} contains {end}");
            }
        }
    }

    #[test]
    fn the_policy_names_what_is_there_and_nothing_else() {
        let policy = policy("alert(1)", "a{}");
        let expected = "sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI=";
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(policy.contains(&format!("script-src '{expected}'")), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    }

    #[test]
    fn a_title_is_text() {
        assert!(
            head("</title><script>").contains("<title>&lt;/title&gt;&lt;script&gt; · rolltape")
        );
    }
}
