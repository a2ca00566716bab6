//! Encodings: their words on the command line, and the endings of names of files.

use std::path::Path;

use crate::options::format::Format;

/// Encoding of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Apache Parquet.
    Parquet,
    /// One JSON object a line.
    Jsonl,
    /// A stream of Arrow's IPC format.
    Arrow,
}

impl Encoding {
    /// All encodings.
    pub const ALL: [Self; 3] = [Self::Parquet, Self::Jsonl, Self::Arrow];

    /// Returns the word on the command line, which is also the ending of names of files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Jsonl => "jsonl",
            Self::Arrow => "arrow",
        }
    }

    /// Returns the ending of names of tables beside the rows. It is another usual ending of the
    /// same encoding, so a reader of all files with the first one gets only rows.
    pub(crate) fn side_table_ending(self) -> &'static str {
        match self {
            Self::Parquet => "pq",
            Self::Jsonl => "ndjson",
            Self::Arrow => "arrows",
        }
    }

    /// Returns the encoding of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|encoding| encoding.as_str() == word)
    }

    /// Returns the encoding of a file's name; none for a name without one, which is a folder's.
    pub fn of_path(path: &Path) -> Option<Self> {
        Self::from_word(path.extension()?.to_str()?)
    }

    /// Returns the encoding of a format when none is named.
    pub fn default_of(format: Format) -> Self {
        if format.is_document() { Self::Jsonl } else { Self::Parquet }
    }
}
