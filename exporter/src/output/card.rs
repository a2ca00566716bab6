//! The dataset card, which tells `datasets` which files of a folder are rows, and of which format.
//!
//! Without it, `load_dataset` reads manifests of JSON lines along with the rows. It also takes a
//! partition whose name contains `test` or `train` for a split and leaves out the others.

use crate::options::encoding::Encoding;
use crate::options::format::Format;

/// The file that `datasets` looks for, beside a `README.md` that a user may have written.
pub(crate) const NAME: &str = ".huggingface.yaml";
/// First line, which tells our cards from others.
const MARK: &str = "# Written by `rolltape export`, for load_dataset of this folder.";
const CONFIG: &str = "- config_name: ";
const FILES: &str = "  - ";

/// The files of one format in a folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CardEntry {
    pub(crate) format: Format,
    pub(crate) encoding: Encoding,
    pub(crate) partitioned: bool,
}

impl CardEntry {
    /// Returns globs for the first file, and for files that were added and shards. No format's name
    /// with a number behind it is another format's name.
    fn globs(self) -> Vec<String> {
        let folder = if self.partitioned { "*=*/" } else { "" };
        let (format, ending) = (self.format.as_str(), self.encoding.as_str());
        [".", "-[0-9]*."].map(|then| format!("\"{folder}{format}{then}*{ending}\"")).to_vec()
    }
}

/// One format with the globs of its files, in quotes.
struct CardConfig {
    format: Format,
    globs: Vec<String>,
}

impl CardConfig {
    /// Returns the ending of the names of its files.
    fn ending(&self) -> Option<&str> {
        self.globs.first().and_then(|glob| glob.rsplit('*').next())
    }
}

/// Returns the card with an entry in place of that of its format; none where the card that is there
/// is not ours. A card lists files of one encoding, that of its first format.
pub(crate) fn with(before: Option<&[u8]>, entry: CardEntry) -> Option<String> {
    let mut configs = before.map_or(Some(Vec::new()), read)?;
    configs.retain(|config| config.format != entry.format);
    configs.push(CardConfig { format: entry.format, globs: entry.globs() });
    configs.sort_by_key(|config| Format::ALL.iter().position(|other| *other == config.format));

    let ending = configs.first().and_then(CardConfig::ending).map(str::to_owned);
    configs.retain(|config| config.ending() == ending.as_deref());
    Some(written(&configs))
}

fn written(configs: &[CardConfig]) -> String {
    let mut lines = vec![MARK.to_owned(), "configs:".to_owned()];
    for (index, config) in configs.iter().enumerate() {
        lines.push(format!("{CONFIG}{}", config.format.as_str()));
        lines.extend((index == 0).then(|| "  default: true".to_owned()));
        lines.push("  data_files:".to_owned());
        lines.extend(config.globs.iter().map(|glob| format!("{FILES}{glob}")));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Reads a card; none where it is not ours.
fn read(bytes: &[u8]) -> Option<Vec<CardConfig>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut configs: Vec<CardConfig> = Vec::new();
    for line in text.strip_prefix(MARK)?.lines() {
        if let Some(word) = line.strip_prefix(CONFIG) {
            configs.push(CardConfig { format: Format::from_word(word)?, globs: Vec::new() });
        } else if let Some((glob, config)) = line.strip_prefix(FILES).zip(configs.last_mut()) {
            config.globs.push(glob.to_owned());
        }
    }
    Some(configs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(format: Format, encoding: Encoding) -> CardEntry {
        CardEntry { format, encoding, partitioned: false }
    }

    const TRAJECTORIES: &str = r#"- config_name: trajectories
  default: true
  data_files:
  - "trajectories.*parquet"
  - "trajectories-[0-9]*.*parquet"
"#;

    #[test]
    fn a_card_names_the_files_of_each_format() {
        let card = with(None, rows(Format::Sft, Encoding::Parquet)).unwrap();
        assert!(card.contains("- config_name: sft\n  default: true\n"), "{card}");
        let both = with(Some(card.as_bytes()), rows(Format::Trajectories, Encoding::Parquet));
        let both = both.unwrap();
        assert!(both.contains(TRAJECTORIES), "the contract comes first\n{both}");
        assert!(both.contains("- config_name: sft\n  data_files:\n"), "{both}");
        let again = with(Some(both.as_bytes()), rows(Format::Sft, Encoding::Parquet));
        assert_eq!(again.as_ref(), Some(&both));
        let parts =
            CardEntry { partitioned: true, ..rows(Format::Trajectories, Encoding::Parquet) };
        let parts = with(Some(both.as_bytes()), parts).unwrap();
        assert!(parts.contains("  - \"*=*/trajectories.*parquet\"\n"), "{parts}");
        assert!(!parts.contains("  - \"trajectories"), "{parts}");
    }

    #[test]
    fn a_card_is_for_one_encoding() {
        let lines = with(None, rows(Format::Art, Encoding::Jsonl)).unwrap();
        let parquet = with(Some(lines.as_bytes()), rows(Format::Sft, Encoding::Parquet)).unwrap();
        assert!(parquet.contains("sft") && !parquet.contains("art"), "{parquet}");
        let lines = with(Some(parquet.as_bytes()), rows(Format::Art, Encoding::Jsonl)).unwrap();
        assert_eq!(lines, parquet);
    }

    #[test]
    fn what_others_wrote_is_no_card_of_ours() {
        assert_eq!(with(Some(b"configs: []\n"), rows(Format::Sft, Encoding::Parquet)), None);
        assert_eq!(with(Some(b"\xff"), rows(Format::Sft, Encoding::Parquet)), None);
    }
}
