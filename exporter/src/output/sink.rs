//! Sink: rows in, files out: makes records, has them encoded, and puts the files and their manifest
//! in place when all is written.

use std::collections::BTreeSet;
use std::path::PathBuf;

use arrow::datatypes::SchemaRef;
use serde_json::Value;

use crate::forks::{self, Fork, forks_schema};
use crate::formats::{Format, Maker};
use crate::graph::scan::Scanned;
use crate::input::plan::{Numbers, Place, Planned, attempt_name};
use crate::notes::Lefts;
use crate::options::Options;
use crate::output::card;
use crate::output::encode::{Encoder, Encoding};
use crate::output::layout::Layout;
use crate::output::manifest::{FORMAT_VERSION, Manifest};
use crate::output::object::{Objects, as_io};
use crate::output::open_file::{OpenFile, Pen, Whole};
use crate::output::target::{Out, Target, WriteError, at};
use crate::rows::Row;
use crate::weigh::models::Models;

/// Records are turned into arrays when they hold this many bytes.
const BATCH_BYTES: usize = 4 << 20;
/// Forks are, when there are so many.
const BATCH_FORKS: usize = 4096;

/// The files of an export while they are written.
pub(crate) struct Sink {
    target: Target,
    layout: Layout,
    format: Format,
    maker: Maker,
    overwrite: bool,
    /// Whether each partition has a folder.
    partitioned: bool,
    /// The options, as a manifest shows them.
    asked: Value,
    /// The manifest that is there already.
    before: Option<Manifest>,
    /// Whether only what is not there yet is asked for.
    new: bool,
    /// Whether this run adds to what is there.
    adds: bool,
    open: Option<OpenFile>,
    /// The table of forks, beside the rows of the contract.
    forks: Option<OpenFile>,
    pending_forks: Vec<Fork>,
    sealed: Vec<Whole>,
    /// Rows of the files that are whole, without forks.
    rows: u64,
    episodes: BTreeSet<String>,
    numbers: Numbers,
    /// Whose calls are records, where records are calls.
    models: Models,
    /// Whether anything was made of the attempt that is being written.
    taken: bool,
}

/// What the files say of how they came to be.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) notes: Value,
    pub(crate) left_out: Lefts,
}

impl Sink {
    /// Looks at the target, and makes its folder; changes no file.
    pub(crate) async fn create(options: &Options) -> Result<Self, WriteError> {
        let format = options.format;
        let (target, layout) = match &options.out {
            Out::Path(path) => {
                let (folder, layout) = Layout::new(path, format, options.encoding, options.shard)?;
                (Target::folder(folder)?, layout)
            }
            Out::Bucket(bucket) => {
                let failed = |error| at(&PathBuf::from(&bucket.url))(as_io(error));
                let (store, path) = bucket.open().map_err(failed)?;
                let root = bucket.root(&path);
                let (prefix, layout) = Layout::new(&path, format, options.encoding, options.shard)?;
                (Target::Objects(Objects::new(store, prefix, root)), layout)
            }
            Out::Stream(stream) => {
                let encoding = options.encoding.unwrap_or_else(|| match format.is_document() {
                    true => Encoding::Jsonl,
                    false => Encoding::Arrow,
                });
                let name = PathBuf::from(format!("-.{}", encoding.as_str()));
                (Target::Stream(stream.clone()), Layout::new(&name, format, None, None)?.1)
            }
        };
        takes(options, &target, &layout)?;
        let mut sink = Self {
            maker: Maker::new(format, options.label_above),
            before: None,
            new: options.new,
            adds: false,
            overwrite: options.overwrite,
            partitioned: options.partition.is_some(),
            asked: options.asked(layout.encoding()),
            open: None,
            forks: None,
            pending_forks: Vec::new(),
            sealed: Vec::new(),
            rows: 0,
            episodes: BTreeSet::new(),
            numbers: Numbers::default(),
            taken: false,
            models: options.models.clone().unwrap_or_default(),
            target,
            layout,
            format,
        };
        sink.look(options).await?;
        sink.go_on(options)?;
        if format == Format::Trajectories && !matches!(sink.target, Target::Stream(_)) {
            let name = sink.layout.forks(sink.addition());
            sink.forks = Some(sink.file(name, "", &forks_schema()).await?);
        }
        Ok(sink)
    }

    /// Reads the manifest that is there.
    async fn look(&mut self, options: &Options) -> Result<(), WriteError> {
        let path = || self.target.path(&self.layout.manifest);
        let bytes = self.target.read(&self.layout.manifest).await?;
        self.before = bytes.as_deref().and_then(Manifest::read);
        match &self.before {
            None if bytes.is_some() && !self.overwrite => {
                return Err(WriteError::Foreign { path: path() });
            }
            Some(before) if before.format_version > FORMAT_VERSION => {
                return Err(WriteError::Newer { path: path(), version: before.format_version });
            }
            Some(before) if options.new => {
                let made = Manifest::new(self.format);
                if before.format != made.format || !before.agrees_with(&self.asked) {
                    return Err(WriteError::OtherOptions { path: path() });
                }
                self.adds = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts behind what is there, where this run adds to it.
    fn go_on(&mut self, options: &Options) -> Result<(), WriteError> {
        let before = self.before.as_ref().filter(|_| self.adds);
        self.maker.count_from(before.map_or(0, |before| before.rows), options.shard);
        if let Some(before) = before.filter(|_| self.format.is_numbered()) {
            let uncounted =
                || WriteError::Uncounted { path: self.target.path(&self.layout.manifest) };
            self.numbers = before.numbers.clone().ok_or_else(uncounted)?;
        }
        Ok(())
    }

    /// The numbers that were given, and give the next ones.
    pub(crate) fn numbers(&mut self) -> &mut Numbers {
        &mut self.numbers
    }

    /// The attempts that are in the export already, where only new ones are asked for.
    pub(crate) fn held(&self) -> Option<BTreeSet<String>> {
        let held = self.before.as_ref().filter(|_| self.adds);
        self.new.then(|| held.map(|before| before.episodes.clone()).unwrap_or_default())
    }

    /// Begins an attempt, and the file for it; takes its forks.
    pub(crate) async fn attempt(
        &mut self,
        episode: &Scanned,
        forks: Vec<Fork>,
        partition: &str,
    ) -> Result<(), WriteError> {
        if self.open.as_ref().is_none_or(|open| open.partition != partition) {
            self.seal().await?;
            self.begin(partition).await?;
        }
        if self.format == Format::Calls {
            self.calls(episode).await?;
        }
        self.pending_forks.extend(forks);
        if self.pending_forks.len() >= BATCH_FORKS {
            self.flush_forks().await?;
        }
        self.taken = self.format == Format::Calls && !episode.calls.is_empty();
        Ok(())
    }

    /// Adds the calls of an attempt. One after the other: each has the whole history in it, and
    /// together they may be more than a batch can hold.
    async fn calls(&mut self, episode: &Scanned) -> Result<(), WriteError> {
        for call in &episode.calls {
            if !self.models.takes_call(call) {
                continue;
            }
            self.maker.call(&episode.record, call);
            if self.maker.pending_bytes() >= BATCH_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Adds a row.
    pub(crate) async fn row(&mut self, row: Row, place: Place) -> Result<(), WriteError> {
        self.taken |= self.maker.row(row, place);
        if self.maker.pending_bytes() >= BATCH_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Ends an attempt.
    pub(crate) async fn attempt_ended(&mut self, planned: &Planned) -> Result<(), WriteError> {
        self.maker.attempt_ended();
        if self.taken {
            self.episodes.insert(attempt_name(&planned.record));
        }
        if self.maker.pending_bytes() >= BATCH_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Ends the last file and counts the records of all. `keep_empty` makes a file of no records
    /// where there would be none.
    pub(crate) async fn end(&mut self, keep_empty: bool) -> Result<u64, WriteError> {
        self.seal().await?;
        if self.sealed.is_empty() && keep_empty && !self.adds {
            self.begin("").await?;
            self.seal().await?;
        }
        self.rows = self.sealed.iter().map(|(entry, _)| entry.rows).sum();
        self.flush_forks().await?;
        if let Some(forks) = self.forks.take() {
            self.sealed.push(forks.end().await?);
        }
        Ok(self.rows)
    }

    /// Rows and turns of which no record was made, and pairs that were none.
    pub(crate) fn left_out(&self) -> Lefts {
        self.maker.left_out()
    }

    /// Puts all files in place, the manifest last. Gives their paths.
    pub(crate) async fn publish(mut self, told: Said) -> Result<Vec<PathBuf>, WriteError> {
        let manifest = self.manifest(told);
        // What can fail is done for all files before the first one shows.
        self.sealed.iter().try_for_each(|(entry, _)| self.target.ready(&entry.path))?;
        let mut paths = Vec::new();
        for (entry, file) in std::mem::take(&mut self.sealed) {
            paths.push(self.target.place(file, &entry.path).await?);
        }
        if matches!(self.target, Target::Stream(_)) {
            return Ok(Vec::new());
        }
        self.tell_readers().await?;
        let name = &self.layout.manifest;
        let failed = |error: serde_json::Error| at(&self.target.path(name))(error.into());
        paths.push(self.target.put(name, &manifest.to_bytes().map_err(failed)?).await?);
        // What the export before had and this one has not would be read along with it.
        for old in self.before.iter().flat_map(|before| &before.files) {
            if manifest.files.iter().all(|new| new.path != old.path) && is_below(&old.path) {
                self.target.remove(&old.path).await?;
            }
        }
        Ok(paths)
    }

    /// Says in the folder which of its files are rows, unless somebody else has said it.
    async fn tell_readers(&self) -> Result<(), WriteError> {
        if self.layout.is_one_file() {
            return Ok(());
        }
        let before = self.target.read(card::NAME).await?;
        let rows = card::Rows {
            format: self.format,
            encoding: self.layout.encoding(),
            partitioned: self.partitioned,
        };
        if let Some(card) = card::with(before.as_deref(), rows) {
            self.target.put(card::NAME, card.as_bytes()).await?;
        }
        Ok(())
    }

    /// Takes back what was sent and will never show, after the end.
    pub(crate) async fn give_up(self) {
        for (_, file) in self.sealed {
            file.give_up().await;
        }
    }

    fn manifest(&self, told: Said) -> Manifest {
        let mut manifest = match &self.before {
            Some(before) if self.adds => {
                Manifest { additions: before.additions + 1, ..before.clone() }
            }
            _ => Manifest::new(self.format),
        };
        manifest.files.extend(self.sealed.iter().map(|(entry, _)| entry.clone()));
        manifest.rows += self.rows;
        manifest.episodes.extend(self.episodes.iter().cloned());
        manifest.numbers = self.format.is_numbered().then(|| self.numbers.clone());
        manifest.options = self.asked.clone();
        manifest.notes = told.notes;
        manifest.leave(&told.left_out);
        manifest
    }

    /// How often files were added, this time included.
    fn addition(&self) -> u32 {
        match &self.before {
            Some(before) if self.adds => before.additions + 1,
            _ => 0,
        }
    }

    async fn begin(&mut self, partition: &str) -> Result<(), WriteError> {
        let name = self.layout.file(partition, self.addition());
        let file = self.file(name, partition, &self.maker.schema()).await?;
        self.open = Some(file);
        Ok(())
    }

    async fn file(
        &self,
        name: String,
        partition: &str,
        schema: &SchemaRef,
    ) -> Result<OpenFile, WriteError> {
        let path = self.target.path(&name);
        let is_ours =
            self.before.iter().flat_map(|before| &before.files).any(|file| file.path == name);
        if !is_ours && !self.overwrite && self.target.holds(&name).await? {
            return Err(WriteError::Foreign { path });
        }
        let encoder = Encoder::new(self.layout.encoding(), self.format, schema);
        let encoder =
            encoder.map_err(|source| WriteError::Encode { path: path.clone(), source })?;
        let body = self.target.begin(&name).await?;
        Ok(OpenFile::begin(partition, Pen { name, path, encoder, body }))
    }

    /// Has the forks encoded that are pending.
    async fn flush_forks(&mut self) -> Result<(), WriteError> {
        let pending = std::mem::take(&mut self.pending_forks);
        let Some(file) = &mut self.forks else { return Ok(()) };
        let batch = forks::batch(&pending).map_err(|error| file.unmade(error))?;
        file.write(batch, 0).await
    }

    /// Has encoded what is pending.
    async fn flush(&mut self) -> Result<(), WriteError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let bytes = self.maker.pending_bytes();
        let batch = self.maker.batch().map_err(|error| open.unmade(error))?;
        open.write(batch, bytes).await
    }

    /// Ends the file that is open.
    async fn seal(&mut self) -> Result<(), WriteError> {
        if self.open.is_none() {
            return Ok(());
        }
        self.maker.file_ended();
        if self.maker.pending_bytes() > 0 {
            self.flush().await?;
        }
        if let Some(open) = self.open.take() {
            self.sealed.push(open.end().await?);
        }
        Ok(())
    }
}

/// Whether the format and the target take what is asked for.
fn takes(options: &Options, target: &Target, layout: &Layout) -> Result<(), WriteError> {
    if options.new && options.format.is_of_groups() {
        return Err(WriteError::Pairs { format: options.format.as_str() });
    }
    let several = [
        (options.partition.is_some(), "a partitioned export"),
        (options.new, "adding what is new"),
    ];
    match several.iter().find(|(is, _)| *is && layout.is_one_file()) {
        Some((_, what)) => {
            Err(WriteError::OneFile { path: target.path(&layout.file("", 0)), what })
        }
        None => Ok(()),
    }
}

/// Whether a path of a manifest stays below the folder of the export.
fn is_below(path: &str) -> bool {
    path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests;
