//! `rolltape export`: what the files hold, how they are written, and where they go.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use episode::Micros;
use exporter::{Bucket, Encoding, Format, Options, Out, Partition, Shard, Stream};

use crate::exit::Failure;
use crate::reward::now;
use crate::when::when;

/// The options.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportFiles {
    /// A folder, a file whose name ends in .parquet, .jsonl or .arrow, s3://, gs:// or az:// with
    /// a bucket and such a path, or - for stdout
    #[arg(long, value_name = "PATH")]
    pub(crate) out: PathBuf,
    /// What a row is [default: trajectories]; `--format help` tells of each of them
    #[arg(long, value_name = "FORMAT", value_parser = format, default_value = "trajectories",
        hide_default_value = true)]
    format: Format,
    /// How rows are written: parquet, jsonl, arrow [default: by the name of --out, else by format]
    #[arg(long, value_name = "ENCODING", value_parser = encoding)]
    encoding: Option<Encoding>,
    /// Put rows into folders by: group, task, episode-hash:N
    #[arg(long, value_name = "KEY", value_parser = partition)]
    partition_by: Option<Partition>,
    /// Only the I-th of N parts, from 0; a group is never cut
    #[arg(long, value_name = "I/N", value_parser = shard)]
    shard: Option<Shard>,
    /// Only attempts that were closed at this time or later; those still open count by their begin
    #[arg(long, value_name = "TIME", value_parser = when)]
    since: Option<Micros>,
    /// Add the closed attempts that the export at --out does not hold yet
    #[arg(long)]
    new: bool,
    /// Only episodes with at least this reward
    #[arg(long, value_name = "REWARD", allow_negative_numbers = true)]
    min_reward: Option<f64>,
    /// kto: rewards above this one are good
    #[arg(long, value_name = "REWARD", default_value_t = 0.0, allow_negative_numbers = true)]
    label_above: f64,
    /// Replace files that rolltape did not write
    #[arg(long)]
    overwrite: bool,
}

impl ExportFiles {
    /// Whether rows go to stdout, so that nothing else may.
    pub(crate) fn to_stdout(&self) -> bool {
        self.out == Path::new("-")
    }

    /// Fills in the options for the exporter.
    pub(crate) fn fill(self, options: Options) -> Result<Options, Failure> {
        let out = match self.out.to_str() {
            Some("-") => self.stdout()?,
            Some(url) if url.contains("://") => Out::Bucket(bucket(url)),
            _ => Out::Path(self.out),
        };
        Ok(Options {
            out,
            format: self.format,
            encoding: self.encoding,
            min_reward: self.min_reward,
            label_above: self.label_above,
            partition: self.partition_by,
            shard: self.shard,
            since: self.since,
            new: self.new,
            now: now(),
            overwrite: self.overwrite,
            ..options
        })
    }

    fn stdout(&self) -> Result<Out, Failure> {
        let stdout = std::io::stdout();
        if stdout.is_terminal() && self.encoding != Some(Encoding::Jsonl) {
            return Err(Failure::new("rows are not shown on a terminal")
                .hint("send them to another program, or give --encoding jsonl to read them"));
        }
        Ok(Out::Stream(Stream::new(stdout)))
    }
}

/// Object stores are set up by the environment, as their own tools are.
fn bucket(url: &str) -> Bucket {
    let about = |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|p| name.starts_with(p));
    let options = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| about(name))?;
        Some((name.to_ascii_lowercase(), value.into_string().ok()?))
    });
    Bucket { url: url.to_owned(), options: options.collect() }
}

fn format(word: &str) -> Result<Format, String> {
    let list = || {
        let line = |format: Format| format!("\n  {:18} {}", format.as_str(), format.doc());
        Format::ALL.map(line).concat()
    };
    Format::from_word(word).ok_or_else(|| format!("the formats are{}", list()))
}

fn encoding(word: &str) -> Result<Encoding, String> {
    let words = || Encoding::ALL.map(Encoding::as_str).join(", ");
    Encoding::from_word(word).ok_or_else(|| format!("the encodings are {}", words()))
}

fn partition(word: &str) -> Result<Partition, String> {
    let hashed = || {
        let count = word.strip_prefix("episode-hash:")?.parse().ok()?;
        (1..=PARTITIONS_MAX).contains(&count).then_some(Partition::EpisodeHash(count))
    };
    match word {
        "group" => Ok(Partition::Group),
        "task" => Ok(Partition::Task),
        _ => hashed().ok_or_else(|| {
            format!("the keys are group, task and episode-hash:N with N up to {PARTITIONS_MAX}")
        }),
    }
}

/// More folders than this is a mistake.
const PARTITIONS_MAX: u32 = 65_536;

fn shard(word: &str) -> Result<Shard, String> {
    let parsed = word.split_once('/').and_then(|(index, count)| {
        let (index, count) = (index.parse().ok()?, count.parse().ok()?);
        (index < count && count <= PARTITIONS_MAX).then_some(Shard { index, count })
    });
    parsed.ok_or_else(|| "not I/N with I from 0 and below N, such as 0/16".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_from_zero() {
        assert_eq!(shard("2/3"), Ok(Shard { index: 2, count: 3 }));
        for wrong in ["3/3", "-1/3", "1", "0/0", "1/99999999"] {
            assert!(shard(wrong).is_err(), "{wrong}");
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
    fn a_word_that_is_no_format_is_told_all_of_them() {
        let told = format("parquet").unwrap_err();
        assert!(Format::ALL.iter().all(|f| told.contains(f.as_str())), "{told}");
    }
}
