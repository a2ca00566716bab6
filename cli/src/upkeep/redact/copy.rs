//! A copy of a store, written record by record.

use std::path::{Path, PathBuf};

use episode::{Annotation, AttemptId, Call, Comment, Reward, Tag};
use store::{Announcement, AttemptRecord, Budget, Durability, Store, VersionRecord, Writer};
use tempfile::TempDir;

use crate::exit::Failure;

/// An attempt with all that is said of it.
pub(super) struct WholeAttempt {
    pub(super) record: AttemptRecord,
    pub(super) group_size: Option<u32>,
    pub(super) calls: Vec<Call>,
    pub(super) rewards: Vec<Reward>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) comments: Vec<Comment>,
}

/// A store that is being written. It gets its name when it is whole.
pub(super) struct StoreCopy {
    store: Store,
    writer: Writer,
    folder: TempDir,
    to: PathBuf,
}

/// The name of the store in its temporary folder.
const NAME: &str = "copy.db";

impl StoreCopy {
    /// Begins a store that will be at `to`.
    ///
    /// # Errors
    /// [`Failure`] when there is something at `to`, or its folder cannot be written to.
    pub(super) async fn begin(to: &Path) -> Result<Self, Failure> {
        let wal = PathBuf::from(format!("{}-wal", to.display()));
        if to.symlink_metadata().is_ok() || wal.symlink_metadata().is_ok() {
            return Err(Failure::new(format!("`{}` exists already", to.display()))
                .hint("what is there is never overwritten; give another --to"));
        }
        let parent = match to.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let folder = tempfile::Builder::new()
            .prefix(".redact-")
            .tempdir_in(parent)
            .map_err(|e| Failure::of(&e).context(&format!("cannot write `{}`", to.display())))?;
        // It is synced as a whole at its end.
        let opened = Store::open(folder.path().join(NAME), Durability::Process).await;
        let (store, writer) = opened.map_err(|e| Failure::of(&e))?;
        Ok(Self { store, writer, folder, to: to.to_owned() })
    }

    /// Writes a version of the weights.
    pub(super) async fn version(&self, version: VersionRecord) -> Result<(), Failure> {
        Ok(self.store.version(version).await?)
    }

    /// Writes an attempt. What it spent, its limits and its keys are not copied.
    pub(super) async fn attempt(&self, whole: WholeAttempt) -> Result<(), Failure> {
        let record = &whole.record;
        let tag = record.tag();
        let attempt = AttemptId::from(&tag);
        let announcement = Announcement {
            tag: tag.clone(),
            at: record.opened_at,
            force: record.force_sampling.clone(),
            continues: record.continues.clone(),
            replay: record.replay.clone(),
            group_size: whole.group_size,
            budget: Budget::default(),
        };
        self.store.announce(announcement).await?;

        self.calls(&tag, whole.calls).await?;
        for reward in whole.rewards {
            self.store.reward(attempt.clone(), reward).await?;
        }
        if !whole.annotations.is_empty() {
            self.store.annotate(whole.annotations).await?;
        }
        if !whole.comments.is_empty() {
            let of_attempt = whole.comments.into_iter().map(|one| (attempt.clone(), one));
            self.store.comment(of_attempt.collect()).await?;
        }
        if record.may_lack_calls {
            self.store.note_missing_calls(attempt.clone()).await?;
        }
        match record.closed_at {
            Some(at) => Ok(self.store.close(attempt, at, record.status.clone()).await?),
            None => Ok(()),
        }
    }

    async fn calls(&self, tag: &Tag, calls: Vec<Call>) -> Result<(), Failure> {
        let mut written = Vec::with_capacity(2 * calls.len());
        for call in calls {
            let mut begun = call.begun;
            begun.tag = tag.clone();
            written.push(self.store.begin(begun).await);
            if let Some(ended) = call.ended {
                written.push(self.store.end(ended).await);
            }
        }
        for ack in written {
            ack.done().await?;
        }
        Ok(())
    }

    /// Checks the store, and gives it its name. Returns its length in bytes.
    ///
    /// # Errors
    /// [`Failure`] when it is not whole; then there is none.
    pub(super) async fn finish(self) -> Result<u64, Failure> {
        drop(self.store);
        self.writer.finish().await;
        let file = self.folder.path().join(NAME);
        let report = store::verify(file.as_path()).await?;
        if !report.is_clean() {
            return Err(Failure::new(
                "the copy does not pass `rolltape verify`, so it is not kept",
            ));
        }

        let bytes = std::fs::metadata(&file)?.len();
        std::fs::File::open(&file)?.sync_all()?;
        // Of two that write to one name the second fails.
        std::fs::hard_link(&file, &self.to).map_err(|e| {
            Failure::of(&e).context(&format!("cannot write `{}`", self.to.display()))
        })?;
        let parent = self.folder.path().parent().unwrap_or(Path::new("."));
        std::fs::File::open(parent)?.sync_all()?;
        Ok(bytes)
    }
}
