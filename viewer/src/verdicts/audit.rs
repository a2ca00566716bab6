//! The audit that `rolltape audit --keep` left beside the store.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::bounds::AUDIT_BYTES_MAX;
use crate::error::ViewError;
use crate::parameters::Parameters;

/// The kept audit of a store.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditView {
    /// The object that the command wrote; none where no audit is kept.
    pub audit: Option<Value>,
}

/// Reads the audit that is kept at `path`.
pub(crate) fn audit(path: Option<&Path>, parameters: Parameters) -> Result<AuditView, ViewError> {
    parameters.end()?;
    let Some(path) = path.filter(|path| path.is_file()) else {
        return Ok(AuditView { audit: None });
    };
    let text = read(path).map_err(|error| unread(path, &error.to_string()))?;
    let read = serde_json::from_slice(&text);
    let audit: Value = read.map_err(|_| unread(path, "it is no whole JSON object"))?;
    Ok(AuditView { audit: Some(audit) })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(AUDIT_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

fn unread(path: &Path, why: &str) -> ViewError {
    let name = path.file_name().unwrap_or_default().display();
    let text = format!("the kept audit `{name}` cannot be read: {why}; keep another one");
    ViewError::Missing(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_audit_is_read_as_it_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.db-audit");
        let asked = || audit(Some(&path), Parameters::default());
        assert_eq!(asked().unwrap().audit, None);

        std::fs::write(&path, r#"{"verdict": "clean"}"#).unwrap();
        assert_eq!(asked().unwrap().audit, Some(json!({ "verdict": "clean" })));

        std::fs::write(&path, r#"{"verdict": "cl"#).unwrap();
        let why = asked().unwrap_err().to_string();
        assert!(why.contains("`run.db-audit`") && why.ends_with("keep another one"), "{why}");
    }
}
