//! Folders of weights by version: `runs/w/v{version}`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use episode::version_number;

/// The mark of the version in a pattern.
const MARK: &str = "{version}";

/// A pattern of folders, one a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WeightsPattern {
    before: String,
    after: String,
}

impl FromStr for WeightsPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (before, after) = text
            .split_once(MARK)
            .ok_or_else(|| format!("has no {MARK}, such as runs/w/v{MARK}"))?;
        Ok(Self { before: before.to_owned(), after: after.to_owned() })
    }
}

impl WeightsPattern {
    /// The folder of a label: with the label itself in place of the mark, or with its number.
    pub(crate) fn folder(&self, label: &str) -> Option<PathBuf> {
        let number = version_number(label).map(|number| number.to_string());
        let names = [Some(label.to_owned()), number].into_iter().flatten();
        names.map(|name| self.path(&name)).find(|folder| folder.is_dir())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("{}{name}{}", self.before, self.after))
    }

    /// The labels of the folders that are there, those first whose number is nearest to that of
    /// `label`.
    pub(crate) fn labels_beside(&self, label: Option<&str>) -> Vec<String> {
        let own = label.and_then(|label| self.folder(label));
        let mut labels = self.labels();
        labels.retain(|other| self.folder(other) != own);
        let here = label.and_then(version_number);
        let distance = |other: &String| {
            let there = version_number(other);
            here.zip(there).map_or(i64::MAX, |(here, there)| (here - there).saturating_abs())
        };
        labels.sort_by_key(|other| (distance(other), other.clone()));
        labels
    }

    /// The labels of the folders that are there.
    fn labels(&self) -> Vec<String> {
        // The mark may stand within a name, and more of the path may follow.
        let (parent, start) = match self.before.rsplit_once('/') {
            Some((parent, start)) => (format!("{parent}/"), start),
            None => ("./".to_owned(), self.before.as_str()),
        };
        let end = self.after.split('/').next().unwrap_or_default();
        let entries = std::fs::read_dir(Path::new(&parent)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let labels = names.filter_map(|name| {
            Some(name.strip_prefix(start)?.strip_suffix(end)?.to_owned()).filter(|l| !l.is_empty())
        });
        labels.filter(|label| self.path(label).is_dir()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_found_by_label_and_by_number() {
        let root = tempfile::tempdir().unwrap();
        for name in ["v9/hf", "v10/hf", "v12/hf", "v7", "other"] {
            std::fs::create_dir_all(root.path().join(name)).unwrap();
        }
        let text = format!("{}/v{{version}}/hf", root.path().display());
        let pattern: WeightsPattern = text.parse().unwrap();
        assert_eq!(pattern.folder("10"), Some(root.path().join("v10/hf")));
        assert_eq!(pattern.folder("policy-v10"), Some(root.path().join("v10/hf")));
        assert_eq!(pattern.folder("7"), None);
        assert_eq!(pattern.labels_beside(Some("10")), ["9", "12"]);
        assert!("runs/w".parse::<WeightsPattern>().unwrap_err().contains("{version}"));
    }
}
