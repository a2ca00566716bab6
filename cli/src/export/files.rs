//! `rolltape export`: the format, encoding, selection and target of the files.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue};
use exporter::{Destination, Encoding, FileMode, Format, Options, OutputStream, Partition, Shard};

use crate::exit::Failure;
use crate::options::segments::bucket;
use crate::terminal;
use crate::time::now;

/// Options of an export's files.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct ExportFiles {
    /// Target: a folder, a file, a bucket's URL, or - for stdout
    ///
    /// A file ends in .parquet, .jsonl or .arrow. A bucket is at s3://, gs:// or az://.
    #[arg(long, value_name = "PATH", value_parser = out)]
    pub(crate) out: PathBuf,
    /// Format of the rows
    #[arg(long, value_name = "FORMAT", value_parser = format(), default_value = "trajectories")]
    format: Format,
    /// Encoding of the rows: parquet, jsonl, arrow
    ///
    /// [default: by the name of --out, else by format]
    #[arg(long, value_name = "ENCODING", value_parser = encoding)]
    encoding: Option<Encoding>,
    /// Key of folders: group, task, episode-hash:N
    #[arg(long, value_name = "KEY", value_parser = partition)]
    partition_by: Option<Partition>,
    /// Export only part I of N, counted from 0
    ///
    /// Parts have about as many calls, and a group is never split. Give all parts the same --until
    /// while the store is recorded to.
    #[arg(long, value_name = "I/N", value_parser = shard)]
    pub(crate) shard: Option<Shard>,
    /// Add closed attempts that the export at --out lacks
    #[arg(long)]
    new: bool,
    /// Highest reward that is not good, for kto
    #[arg(long, value_name = "REWARD", default_value_t = 0.0, allow_negative_numbers = true)]
    label_above: f64,
    /// Replace files that rolltape did not write
    #[arg(long)]
    overwrite: bool,
    /// Mode of the files, in octal [default: 600]
    ///
    /// 640 lets their group read them.
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<FileMode>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl ExportFiles {
    /// True if rows go to stdout; then nothing else may be printed there.
    pub(crate) fn to_stdout(&self) -> bool {
        self.out == Path::new("-")
    }

    /// Sets these options in the exporter's.
    pub(crate) fn fill(self, options: Options) -> Result<Options, Failure> {
        let out = match self.out.to_str() {
            Some("-") => self.stdout()?,
            Some(url) if url.contains("://") => Destination::Bucket(bucket(url)),
            _ => Destination::Path(self.out),
        };

        Ok(Options {
            out,
            format: self.format,
            encoding: self.encoding,
            label_above: self.label_above,
            partition: self.partition_by,
            shard: self.shard,
            new: self.new,
            now: now(),
            overwrite: self.overwrite,
            file_mode: self.mode.unwrap_or_default(),
            ..options
        })
    }

    fn stdout(&self) -> Result<Destination, Failure> {
        if terminal::is_terminal() && self.encoding != Some(Encoding::Jsonl) {
            return Err(Failure::new("stdout is a terminal, and rows are binary")
                .hint("redirect stdout, or give --encoding jsonl to read the rows"));
        }
        Ok(Destination::Stream(OutputStream::new(terminal::rows())))
    }
}

/// A parser whose values `--help` lists, each with its own line.
fn format() -> impl TypedValueParser<Value = Format> {
    let values = Format::ALL.map(|format| PossibleValue::new(format.as_str()).help(format.doc()));
    let words = KnownElsewhere(PossibleValuesParser::new(values));
    words.map(|word| Format::from_word(&word).expect("the parser admits formats only"))
}

/// A parser of formats that knows what other tools call them.
#[derive(Clone)]
struct KnownElsewhere(PossibleValuesParser);

impl TypedValueParser for KnownElsewhere {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        self.0.parse_ref(command, arg, value).map_err(|mut error| {
            if let Some(tip) = value.to_str().and_then(format_tip) {
                error.remove(ContextKind::SuggestedValue);
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
            }
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

/// The words to write in place of one that is no format.
fn format_tip(word: &str) -> Option<&'static str> {
    Some(match word.to_ascii_lowercase().as_str() {
        "parquet" => "parquet is an encoding: --encoding parquet",
        "jsonl" | "json" => "a JSON line a row is an encoding: --encoding jsonl",
        "arrow" => "arrow is an encoding: --encoding arrow",
        "csv" => "there is no CSV, since cells hold lists: --encoding jsonl",
        "sharegpt" | "chatml" | "messages" | "conversations" | "alpaca" => {
            "messages of good episodes: --format sft"
        }
        "dpo" | "orpo" | "preferences" => "pairs of answers: --format preference",
        "grpo" | "ppo" => "rows of tokens, with advantages: --format trl --advantage grpo",
        _ => return None,
    })
}

/// A target whose name does not promise what is not written.
fn out(word: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(word);
    let end = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    match ["csv", "json", "txt", "tsv", "xlsx"].contains(&end) && !path.is_dir() {
        true => Err(format!("no `.{end}` is written: end it in .parquet, .jsonl or .arrow")),
        false => Ok(path),
    }
}

fn encoding(word: &str) -> Result<Encoding, String> {
    Encoding::from_word(word).ok_or_else(|| {
        format!("the encodings are {}", Encoding::ALL.map(Encoding::as_str).join(", "))
    })
}

fn mode(word: &str) -> Result<FileMode, String> {
    let bits = u32::from_str_radix(word, 8).ok().filter(|_| !word.starts_with('+'));
    bits.and_then(FileMode::from_bits).ok_or_else(|| {
        "not an octal mode that lets the owner read and write, such as 600 or 640".to_owned()
    })
}

/// Most partitions or shards; a larger number is a mistake.
const PARTITIONS_MAX: u32 = 65_536;

fn partition(word: &str) -> Result<Partition, String> {
    match word {
        "group" => Ok(Partition::Group),
        "task" => Ok(Partition::Task),
        _ => hash_partition(word).ok_or_else(|| {
            format!("the keys are group, task and episode-hash:N with N up to {PARTITIONS_MAX}")
        }),
    }
}

fn hash_partition(word: &str) -> Option<Partition> {
    let count = word.strip_prefix("episode-hash:")?.parse().ok()?;
    (1..=PARTITIONS_MAX).contains(&count).then_some(Partition::EpisodeHash(count))
}

fn shard(word: &str) -> Result<Shard, String> {
    word.split_once('/')
        .and_then(|(index, count)| {
            Some(Shard { index: index.parse().ok()?, count: count.parse().ok()? })
        })
        .filter(|shard| shard.index < shard.count && shard.count <= PARTITIONS_MAX)
        .ok_or_else(|| "not I/N with I from 0 and below N, such as 0/16".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;

    #[test]
    fn parts_are_counted_from_zero() {
        assert_eq!(shard("2/3"), Ok(Shard { index: 2, count: 3 }));
        for wrong in ["3/3", "-1/3", "1", "0/0", "1/99999999"] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode("0640"), Ok(FileMode::from_bits(0o640).unwrap()));
        for wrong in ["", "rw", "400", "777", "888", "+600"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn folders_are_by_group_task_or_hash() {
        assert_eq!(partition("episode-hash:8"), Ok(Partition::EpisodeHash(8)));
        for wrong in ["episode-hash", "episode-hash:0", "episode-hash:70000", "model"] {
            assert!(partition(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn help_and_a_wrong_word_list_every_format() {
        let mut command = ExportFiles::augment_args(clap::Command::new("export"));
        let help = command.render_long_help().to_string();
        assert!(Format::ALL.iter().all(|f| help.contains(f.doc())), "{help}");
        let line = ["export", "--out", "d", "--format", "parquet"];
        let error = command.try_get_matches_from(line).unwrap_err().to_string();
        assert!(Format::ALL.iter().all(|f| error.contains(f.as_str())), "{error}");
        assert!(error.contains("tip: parquet is an encoding: --encoding parquet"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_written_is_not_a_folder() {
        assert!(out("data.csv").unwrap_err().contains(".parquet"));
        for right in ["data", "data.parquet", "a.b/c", "-", "s3://b/d"] {
            assert_eq!(out(right), Ok(right.into()));
        }
    }
}
