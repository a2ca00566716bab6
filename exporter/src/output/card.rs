//! Card: tells `datasets` which files of a folder are rows, and of which format.
//!
//! Without it `load_dataset` reads manifests of JSON lines along with the rows, and takes a
//! partition whose name says `test` or `train` for a split and leaves the others out.

use crate::formats::Format;
use crate::output::encode::Encoding;

/// The file that `datasets` looks for, beside a `README.md` that somebody may have written.
pub(crate) const NAME: &str = ".huggingface.yaml";
/// What the file begins with; tells ours from others.
const MARK: &str = "# Written by `rolltape export`, for load_dataset of this folder.";
const CONFIG: &str = "- config_name: ";
const FILES: &str = "  - ";

/// The files of one format in a folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) format: Format,
    pub(crate) encoding: Encoding,
    pub(crate) partitioned: bool,
}

impl Rows {
    /// Globs for one file, those that were added, and shards: no format's name with a number
    /// behind it is another format's.
    fn globs(self) -> Vec<String> {
        let folder = if self.partitioned { "*=*/" } else { "" };
        let (format, ending) = (self.format.as_str(), self.encoding.as_str());
        [".", "-[0-9]*."].map(|then| format!("\"{folder}{format}{then}*{ending}\"")).to_vec()
    }
}

/// One format with its globs, in quotes.
type Config = (Format, Vec<String>);

/// The card with these rows in place of those of their format; none where the one that is there is
/// not ours. One card is for files of one encoding, that of the first format.
pub(crate) fn with(before: Option<&[u8]>, rows: Rows) -> Option<String> {
    let mut configs = before.map_or(Some(Vec::new()), read)?;
    configs.retain(|(format, _)| *format != rows.format);
    configs.push((rows.format, rows.globs()));
    configs.sort_by_key(|(format, _)| Format::ALL.iter().position(|other| other == format));
    let ending = |(_, globs): &Config| {
        let glob = globs.first().and_then(|glob| glob.rsplit('*').next());
        glob.map(str::to_owned)
    };
    let of_first = configs.first().and_then(ending);
    configs.retain(|config| ending(config) == of_first);
    Some(written(&configs))
}

fn written(configs: &[Config]) -> String {
    let mut lines = vec![MARK.to_owned(), "configs:".to_owned()];
    for (index, (format, globs)) in configs.iter().enumerate() {
        lines.push(format!("{CONFIG}{}", format.as_str()));
        lines.extend((index == 0).then(|| "  default: true".to_owned()));
        lines.push("  data_files:".to_owned());
        lines.extend(globs.iter().map(|glob| format!("{FILES}{glob}")));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// What stands in a card of ours.
fn read(bytes: &[u8]) -> Option<Vec<Config>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let lines = text.strip_prefix(MARK)?.lines();
    let mut configs: Vec<Config> = Vec::new();
    for line in lines {
        if let Some(word) = line.strip_prefix(CONFIG) {
            configs.push((Format::from_word(word)?, Vec::new()));
        } else if let (Some(glob), Some((_, globs))) =
            (line.strip_prefix(FILES), configs.last_mut())
        {
            globs.push(glob.to_owned());
        }
    }
    Some(configs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(format: Format, encoding: Encoding) -> Rows {
        Rows { format, encoding, partitioned: false }
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
        let parts = Rows { partitioned: true, ..rows(Format::Trajectories, Encoding::Parquet) };
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
