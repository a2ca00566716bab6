//! The sink of an export: rows in, files out.
//!
//! It makes records of rows, has them encoded, and publishes the files and their manifest when all
//! is written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use arrow::datatypes::SchemaRef;
use serde_json::{Value, json};

use crate::forks::Fork;
use crate::forks::table::{self, forks_schema};
use crate::formats::records::{RecordBuilder, scored_record_builder};
use crate::graph::scan::RecordedAttempt;
use crate::input::exported::{LookedAt, ShardList, StoreAttempts};
use crate::input::plan::{AttemptNumbers, Numbering, PlannedAttempt, Shard, attempt_name};
use crate::notes::Omissions;
use crate::options::Options;
use crate::options::destination::Destination;
use crate::options::encoding::Encoding;
use crate::options::format::Format;
use crate::output::card::{self, CardEntry};
use crate::output::encode::Encoder;
use crate::output::layout::Layout;
use crate::output::manifest::{FORMAT_VERSION, Manifest};
use crate::output::objects::{ObjectTarget, as_io};
use crate::output::open_file::{FileWriter, FinishedFile, OpenFile};
use crate::output::statements::STATEMENTS;
use crate::output::target::{FileTarget, WriteError, io_error};
use crate::rows::row::Row;
use crate::weigh::model_filter::ModelFilter;

/// Bytes of the records of a batch.
const BATCH_BYTES: usize = 4 << 20;
/// Columns in whose order the rows of the contract are.
static SORTED_BY: [&str; 4] = ["group_id", "episode_id", "attempt", "trajectory_index"];
/// Number of forks of a batch.
const BATCH_FORKS: usize = 4096;

/// The files of an export while they are written.
pub(crate) struct ExportSink {
    target: FileTarget,
    layout: Layout,
    format: Format,
    overwrite: bool,
    /// True where each partition has a folder.
    partitioned: bool,
    /// Options, as a manifest shows them.
    options: Value,
    /// Models whose calls are records, where records are calls.
    models: ModelFilter,

    /// The manifest that is there already.
    before: Option<Manifest>,
    /// True where only attempts that are not there yet are asked for.
    new: bool,
    /// True where this run adds to the export that is there.
    adds: bool,

    builder: Box<dyn RecordBuilder>,
    /// The file that rows go to.
    open: Option<OpenFile>,
    /// The table of forks, beside the rows of the contract.
    forks: Option<OpenFile>,
    pending_forks: Vec<Fork>,
    /// The tables of statements, where there are any.
    statements: [Option<OpenFile>; STATEMENTS.len()],
    finished: Vec<FinishedFile>,

    /// Rows of the finished files, without forks.
    rows: u64,
    episodes: BTreeSet<String>,
    numbering: Numbering,
    /// Columns in whose order rows are.
    sorted_by: &'static [&'static str],
    shard: Option<Shard>,
    /// The list that the shard is a part of.
    list: Option<ShardList>,
    looked_at: LookedAt,
    /// Files of a run that died before its manifest.
    unfinished: BTreeSet<String>,
    /// True where the attempt that is being written has a record.
    has_record: bool,
    /// True where it has a row, of which a format may make no record.
    has_row: bool,
}

/// The rows of a file.
struct FileRows<'a> {
    schema: &'a SchemaRef,
    sorted_by: &'static [&'static str],
}

impl<'a> FileRows<'a> {
    fn unsorted(schema: &'a SchemaRef) -> Self {
        Self { schema, sorted_by: &[] }
    }
}

/// The attempts that an export holds, as its manifest says.
#[derive(Debug, Default)]
pub(crate) struct HeldAttempts {
    pub(crate) names: BTreeSet<String>,
    /// By the name of the store.
    pub(crate) positions: BTreeMap<String, StoreAttempts>,
}

/// The files that were published.
#[derive(Debug, Default)]
pub(crate) struct PublishedFiles {
    /// Paths of the files, the manifest last.
    pub(crate) files: Vec<PathBuf>,
    /// See [`crate::Report::shards_of_other_lists`].
    pub(crate) shards_of_other_lists: Vec<u32>,
}

/// Parts of the manifest that come from the report.
#[derive(Debug, Default)]
pub(crate) struct ManifestNotes {
    pub(crate) notes: Value,
    pub(crate) omissions: Omissions,
}

impl ExportSink {
    /// Reads what is at the target, and makes its folder. Changes no file.
    /// Rows have scores of the names `scores`.
    pub(crate) async fn create(options: &Options, scores: &[String]) -> Result<Self, WriteError> {
        let (target, layout) = open_target(options)?;
        check_supported(options, &target, &layout)?;
        let mut sink = Self {
            format: options.format,
            overwrite: options.overwrite,
            partitioned: options.partition.is_some(),
            options: options.in_manifest(layout.encoding(), scores),
            models: options.models.clone().unwrap_or_default(),
            before: None,
            new: options.new,
            adds: false,
            builder: scored_record_builder(options.format, options.label_above, scores),
            open: None,
            forks: None,
            pending_forks: Vec::new(),
            statements: Default::default(),
            finished: Vec::new(),
            rows: 0,
            episodes: BTreeSet::new(),
            numbering: Numbering::default(),
            sorted_by: &[],
            unfinished: BTreeSet::new(),
            shard: options.shard,
            list: None,
            looked_at: LookedAt::default(),
            has_record: false,
            has_row: false,
            target,
            layout,
        };

        // Everything that can be refused is refused before a file is begun.
        sink.read_previous().await?;
        sink.continue_numbers(options)?;
        if sink.format == Format::Trajectories && !matches!(sink.target, FileTarget::Stream(_)) {
            let name = sink.layout.side_table("forks", sink.addition());
            sink.forks = Some(sink.new_file(name, "", FileRows::unsorted(&forks_schema())).await?);
        }
        Ok(sink)
    }

    /// Reads the manifest that is there, and checks that this run may replace it or add to it. The
    /// files of a run that died before its manifest may be replaced, too.
    async fn read_previous(&mut self) -> Result<(), WriteError> {
        let begun = self.target.read(&self.layout.begun()).await?;
        let names = begun.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        self.unfinished = names.unwrap_or_default();
        let path = || self.target.path(&self.layout.manifest);
        let bytes = self.target.read(&self.layout.manifest).await?;
        let Some(before) = bytes.as_deref().and_then(Manifest::read) else {
            let is_foreign = bytes.is_some() && !self.overwrite;
            return if is_foreign { Err(WriteError::Foreign { path: path() }) } else { Ok(()) };
        };

        if before.format_version > FORMAT_VERSION {
            return Err(WriteError::Newer { path: path(), version: before.format_version });
        }
        if self.new {
            let same_format = before.format == Manifest::new(self.format).format;
            if !same_format || !before.agrees_with(&self.options) {
                return Err(WriteError::OtherOptions { path: path() });
            }
            self.adds = true;
        }
        self.before = Some(before);
        Ok(())
    }

    /// Continues the numbers of the export that this run adds to.
    fn continue_numbers(&mut self, options: &Options) -> Result<(), WriteError> {
        let before = self.before.as_ref().filter(|_| self.adds);
        self.builder.continue_numbers(before.map_or(0, |before| before.rows), options.shard);
        if let Some(before) = before.filter(|_| self.format.is_numbered()) {
            let uncounted =
                || WriteError::Uncounted { path: self.target.path(&self.layout.manifest) };
            self.numbering = before.numbers.clone().ok_or_else(uncounted)?;
        }
        Ok(())
    }

    /// Returns the numbering, which gives the next numbers.
    pub(crate) fn numbering(&mut self) -> &mut Numbering {
        &mut self.numbering
    }

    /// Takes note of the attempts that come, of those that were looked at for them, and of the list
    /// that they are a part of.
    pub(crate) fn expect(
        &mut self,
        planned: &[PlannedAttempt],
        looked_at: LookedAt,
        list: Option<ShardList>,
    ) {
        (self.looked_at, self.list) = (looked_at, list);
        // Those of a group whose name was used again are in the order of their sets, which no
        // column shows.
        let has_sets = planned.iter().any(|attempt| attempt.numbers.set != 0);
        self.sorted_by = match (self.format, has_sets) {
            (Format::Trajectories, true) => &SORTED_BY[..1],
            (Format::Trajectories, false) => &SORTED_BY,
            _ => &[],
        };
    }

    /// Returns the attempts that are in the export already, where only new ones are asked for.
    pub(crate) fn exported_before(&self) -> Option<HeldAttempts> {
        let held = |before: &Manifest| HeldAttempts {
            names: before.episodes.clone(),
            positions: before.positions.clone(),
        };
        let before = self.before.as_ref().filter(|_| self.adds);
        self.new.then(|| before.map(held).unwrap_or_default())
    }

    /// Returns the error of an export that is of another store.
    pub(crate) fn other_store(&self) -> WriteError {
        WriteError::OtherStore { path: self.target.path(&self.layout.manifest) }
    }

    /// Starts an attempt, and the file for it. Takes its forks.
    pub(crate) async fn start_attempt(
        &mut self,
        episode: &RecordedAttempt,
        forks: Vec<Fork>,
        planned: &PlannedAttempt,
    ) -> Result<(), WriteError> {
        let partition = planned.partition.as_str();
        if self.open.as_ref().is_none_or(|open| open.partition != partition) {
            self.finish_file().await?;
            self.begin_file(partition).await?;
        }
        self.builder.start_attempt(planned);
        if self.format.is_of_calls() {
            self.add_calls(episode).await?;
        }
        self.add_statements(episode).await?;
        self.pending_forks.extend(forks);
        if self.pending_forks.len() >= BATCH_FORKS {
            self.flush_forks().await?;
        }
        self.has_record = self.format.is_of_calls() && !episode.calls.is_empty();
        self.has_row = false;
        Ok(())
    }

    /// Adds the calls of an attempt, and flushes between them. Each holds the whole history, and
    /// together they may be more than a batch can hold.
    async fn add_calls(&mut self, episode: &RecordedAttempt) -> Result<(), WriteError> {
        for call in &episode.calls {
            if !self.models.takes_call(call) {
                continue;
            }
            self.builder.add_call(&episode.record, call);
            if self.builder.pending().bytes() >= BATCH_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Adds a row.
    pub(crate) async fn add_row(
        &mut self,
        row: Row,
        numbers: AttemptNumbers,
    ) -> Result<(), WriteError> {
        self.has_row = true;
        self.has_record |= self.builder.add_row(row, numbers);
        self.flush_if_full().await
    }

    /// Ends an attempt.
    pub(crate) async fn end_attempt(&mut self, attempt: &PlannedAttempt) -> Result<(), WriteError> {
        self.builder.end_attempt();
        let name = attempt_name(&attempt.record);
        if self.has_record {
            self.episodes.insert(name);
        } else if !self.has_row {
            self.looked_at.without_row.insert(name);
        }
        self.flush_if_full().await
    }

    /// Ends the last file and returns the number of rows of all. `keep_empty` makes a file without
    /// records where there would be none.
    pub(crate) async fn end(&mut self, keep_empty: bool) -> Result<u64, WriteError> {
        self.finish_file().await?;
        if self.finished.is_empty() && keep_empty && !self.adds {
            self.begin_file("").await?;
            self.finish_file().await?;
        }
        self.builder.correct(&mut self.episodes);
        self.rows = self.finished.iter().map(|file| file.entry.rows).sum();

        self.flush_forks().await?;
        for table in
            self.forks.take().into_iter().chain(self.statements.iter_mut().flat_map(Option::take))
        {
            self.finished.push(table.end().await?);
        }
        Ok(self.rows)
    }

    /// Returns the rows, turns and pairs that made no record.
    pub(crate) fn omissions(&self) -> Omissions {
        self.builder.omissions()
    }

    /// Publishes all files, the manifest last.
    pub(crate) async fn publish(
        mut self,
        notes: ManifestNotes,
    ) -> Result<PublishedFiles, WriteError> {
        let manifest = self.manifest(notes);
        // What can fail is done for all files before the first one is visible.
        self.finished.iter().try_for_each(|file| self.target.prepare(&file.entry.path))?;
        // A process that dies below leaves files that the next one may replace.
        let is_stream = matches!(self.target, FileTarget::Stream(_));
        let begun = self.layout.begun();
        if !is_stream {
            self.target.put(&begun, &self.begun_files()).await?;
        }
        let mut paths = Vec::new();
        for FinishedFile { entry, file } in std::mem::take(&mut self.finished) {
            paths.push(self.target.publish(file, &entry.path).await?);
        }
        if is_stream {
            return Ok(PublishedFiles::default());
        }

        self.write_card().await?;
        let name = &self.layout.manifest;
        let bytes =
            manifest.to_bytes().map_err(|error| io_error(&self.target.path(name))(error.into()))?;
        paths.push(self.target.put(name, &bytes).await?);

        // Files of the export before that this one does not replace would be read along with it.
        let before = self.before.iter().flat_map(|before| &before.files).map(|file| &file.path);
        for old in before.chain(&self.unfinished) {
            if manifest.files.iter().all(|new| new.path != *old) && is_below(old) {
                self.target.remove(old).await?;
            }
        }
        self.target.remove(&begun).await?;
        // Of two shards that end at once, at least one finds the other's manifest.
        let shards_of_other_lists = self.shards_of_other_lists().await?;
        Ok(PublishedFiles { files: paths, shards_of_other_lists })
    }

    /// Returns the names of the files that are published, and of those that a run before this left.
    fn begun_files(&self) -> Vec<u8> {
        let own = self.finished.iter().map(|file| &file.entry.path);
        let names: BTreeSet<&String> = own.chain(&self.unfinished).collect();
        json!(names).to_string().into_bytes()
    }

    /// Returns the numbers of the shards before and after this one that are parts of another list.
    async fn shards_of_other_lists(&self) -> Result<Vec<u32>, WriteError> {
        let mut found = Vec::new();
        let shard = self.shard.filter(|_| self.list.is_some() && !self.layout.is_one_file());
        let Some(Shard { index, count }) = shard else { return Ok(found) };
        for beside in [index.checked_sub(1), index.checked_add(1)].into_iter().flatten() {
            let name = Layout::manifest_of(self.format, Shard { index: beside, count });
            let bytes = self.target.read(&name).await?;
            let other = bytes.as_deref().and_then(Manifest::read);
            if other.is_some_and(|other| other.shard_list != self.list) {
                found.push(beside);
            }
        }
        Ok(found)
    }

    /// Writes the dataset card of a folder, unless somebody else wrote one.
    async fn write_card(&self) -> Result<(), WriteError> {
        if self.layout.is_one_file() {
            return Ok(());
        }
        let before = self.target.read(card::NAME).await?;
        let entry = CardEntry {
            format: self.format,
            encoding: self.layout.encoding(),
            partitioned: self.partitioned,
        };
        if let Some(card) = card::with(before.as_deref(), entry) {
            self.target.put(card::NAME, card.as_bytes()).await?;
        }
        Ok(())
    }

    /// Deletes the files, which will never be visible. Called after the end.
    pub(crate) async fn discard(self) {
        for FinishedFile { file, .. } in self.finished {
            file.discard().await;
        }
    }

    fn manifest(&self, notes: ManifestNotes) -> Manifest {
        let mut manifest = match &self.before {
            Some(before) if self.adds => {
                Manifest { additions: before.additions + 1, ..before.clone() }
            }
            _ => Manifest::new(self.format),
        };
        manifest.files.extend(self.finished.iter().map(|file| file.entry.clone()));
        manifest.rows += self.rows;
        manifest.format_version = FORMAT_VERSION;
        manifest.episodes.extend(self.episodes.iter().cloned());
        self.looked_at.settle(&mut manifest.episodes, &mut manifest.positions);
        manifest.shard_list = self.list;
        manifest.numbers = self.format.is_numbered().then(|| self.numbering.clone());
        manifest.options = self.options.clone();
        manifest.notes = notes.notes;
        manifest.set_omissions(&notes.omissions);
        manifest
    }

    /// Returns the number of this addition; 0 for an export that adds to none.
    fn addition(&self) -> u32 {
        match &self.before {
            Some(before) if self.adds => before.additions + 1,
            _ => 0,
        }
    }

    async fn begin_file(&mut self, partition: &str) -> Result<(), WriteError> {
        let name = self.layout.file(partition, self.addition());
        let schema = self.builder.pending().schema();
        let rows = FileRows { schema: &schema, sorted_by: self.sorted_by };
        self.open = Some(self.new_file(name, partition, rows).await?);
        Ok(())
    }

    async fn new_file(
        &self,
        name: String,
        partition: &str,
        rows: FileRows<'_>,
    ) -> Result<OpenFile, WriteError> {
        let path = self.target.path(&name);
        let mut files_before = self.before.iter().flat_map(|before| &before.files);
        let is_ours = files_before.any(|file| file.path == name) || self.unfinished.contains(&name);
        if !is_ours && !self.overwrite && self.target.holds(&name).await? {
            return Err(WriteError::Foreign { path });
        }
        let encoder =
            Encoder::new(self.layout.encoding(), self.format, rows.schema, rows.sorted_by)
                .map_err(|source| WriteError::Encode { path: path.clone(), source })?;
        let body = self.target.begin(&name).await?;
        Ok(OpenFile::begin(partition, FileWriter { name, path, encoder, body }))
    }

    /// Adds what was said of an attempt to the tables, each of which is begun with the first.
    async fn add_statements(&mut self, episode: &RecordedAttempt) -> Result<(), WriteError> {
        // The table of forks is written where tables beside the rows have a place.
        let Some(forks) = &self.forks else { return Ok(()) };
        for (at, table) in STATEMENTS.iter().enumerate() {
            let batch = (table.batch)(episode).map_err(|error| forks.batch_error(error))?;
            if batch.num_rows() == 0 {
                continue;
            }
            if self.statements[at].is_none() {
                let name = self.layout.side_table(table.name, self.addition());
                let schema = (table.schema)();
                let rows = FileRows::unsorted(&schema);
                self.statements[at] = Some(self.new_file(name, "", rows).await?);
            }
            let Some(file) = &mut self.statements[at] else { continue };
            file.write(batch, 0).await?;
        }
        Ok(())
    }

    /// Has the pending forks encoded.
    async fn flush_forks(&mut self) -> Result<(), WriteError> {
        let pending = std::mem::take(&mut self.pending_forks);
        let Some(file) = &mut self.forks else { return Ok(()) };
        let batch = table::batch(&pending).map_err(|error| file.batch_error(error))?;
        file.write(batch, 0).await
    }

    async fn flush_if_full(&mut self) -> Result<(), WriteError> {
        let is_full = self.builder.pending().bytes() >= BATCH_BYTES;
        if is_full { self.flush().await } else { Ok(()) }
    }

    /// Has the pending records encoded.
    async fn flush(&mut self) -> Result<(), WriteError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let pending = self.builder.pending();
        let bytes = pending.bytes();
        let batch = pending.take_batch().map_err(|error| open.batch_error(error))?;
        open.write(batch, bytes).await
    }

    /// Ends the file that is open.
    async fn finish_file(&mut self) -> Result<(), WriteError> {
        if self.open.is_none() {
            return Ok(());
        }
        self.builder.end_file();
        while self.builder.pending().bytes() > 0 {
            self.flush().await?;
        }
        if let Some(open) = self.open.take() {
            self.finished.push(open.end().await?);
        }
        Ok(())
    }
}

/// Opens the destination, and names the files in it.
fn open_target(options: &Options) -> Result<(FileTarget, Layout), WriteError> {
    let Options { format, encoding, shard, .. } = *options;
    match &options.out {
        // A folder, or a file whose folder it is.
        Destination::Path(path) => {
            let (folder, layout) = Layout::new(path, format, encoding, shard)?;
            Ok((FileTarget::folder(folder, options.file_mode)?, layout))
        }

        Destination::Bucket(bucket) => {
            let failed = |error| io_error(&PathBuf::from(&bucket.url))(as_io(error));
            let (store, path) = bucket.open().map_err(failed)?;
            let root = bucket.root(&path);
            let (prefix, layout) = Layout::new(&path, format, encoding, shard)?;
            Ok((FileTarget::Objects(ObjectTarget::new(store, prefix, root)), layout))
        }

        Destination::Stream(stream) => {
            // Readers of a stream cannot seek, which Parquet needs.
            let default = if format.is_document() { Encoding::Jsonl } else { Encoding::Arrow };
            let name = PathBuf::from(format!("-.{}", encoding.unwrap_or(default).as_str()));
            let (_, layout) = Layout::new(&name, format, None, None)?;
            Ok((FileTarget::Stream(stream.clone()), layout))
        }
    }
}

/// Checks that the format and the target support what is asked for.
fn check_supported(
    options: &Options,
    target: &FileTarget,
    layout: &Layout,
) -> Result<(), WriteError> {
    if options.new && options.format.is_of_groups() {
        return Err(WriteError::Pairs { format: options.format.as_str() });
    }
    if options.format.is_whole() && (options.new || options.shard.is_some()) {
        return Err(WriteError::Whole { format: options.format.as_str() });
    }
    let makes_several = [
        (options.partition.is_some(), "a partitioned export"),
        (options.new, "adding what is new"),
    ];
    match makes_several.iter().find(|(asked, _)| *asked && layout.is_one_file()) {
        Some((_, what)) => {
            Err(WriteError::OneFile { path: target.path(&layout.file("", 0)), what })
        }
        None => Ok(()),
    }
}

/// Returns true where a path of a manifest stays below the folder of the export.
fn is_below(path: &str) -> bool {
    path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests;
