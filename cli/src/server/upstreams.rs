//! The upstreams of the options, and those of a file that is watched.

use std::fs::OpenOptions;
use std::future::Future;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use episode::Replay;
use proxy::{Config, EngineSpec, Proxy};
use rustix::fs::OFlags;
use tokio::task::{JoinSet, spawn_blocking};

use super::BackendArgs;
use super::engine::StartedBackend;
use crate::exit::Failure;

/// Longest file of upstreams, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Pause between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The upstreams that a server starts with.
pub(super) struct Upstreams {
    named: Vec<EngineSpec>,
    file: Option<UpstreamsFile>,
    /// The recording that answers calls, if one does.
    replay: Option<Replay>,
    /// True if nobody else answers any.
    is_replay_alone: bool,
}

/// The file of upstreams, as it was read last.
struct UpstreamsFile {
    path: PathBuf,
    engines: Vec<EngineSpec>,
    state: FileState,
}

/// What tells one content of a file from another.
type FileState = Option<(SystemTime, u64)>;

impl Upstreams {
    /// Reads the options and the file.
    ///
    /// # Errors
    /// [`Failure`] if the file cannot be read, or holds no upstreams.
    pub(super) fn read(backend: &BackendArgs) -> Result<Self, Failure> {
        let file = backend.upstreams_file.as_deref().map(UpstreamsFile::read).transpose()?;
        let is_replay_alone = backend.is_replay_alone();
        Ok(Self {
            named: backend.upstream.clone(),
            file,
            replay: backend.replay()?,
            is_replay_alone,
        })
    }

    fn all(&self) -> Vec<EngineSpec> {
        let filed = self.file.iter().flat_map(|file| &file.engines);
        self.named.iter().chain(filed).cloned().collect()
    }

    /// The upstreams as the backend of a server.
    ///
    /// # Errors
    /// [`Failure`] if there is none.
    pub(super) fn backend(&self) -> Result<StartedBackend, Failure> {
        if self.is_replay_alone {
            return StartedBackend::none();
        }
        let all = self.all();
        let Some(first) = all.first() else {
            let failure = Failure::new("there is no upstream");
            return Err(failure.hint("give one with --upstream, or on a line of --upstreams-file"));
        };
        let urls: Vec<String> = all.iter().map(|spec| spec.upstream.to_string()).collect();
        Ok(StartedBackend::of_user(first.upstream.clone(), urls.join(" and ")))
    }

    /// Writes the upstreams, and the recording, into the settings of a proxy.
    ///
    /// # Errors
    /// [`Failure`] if an address cannot be used.
    pub(super) fn set(&self, config: &mut Config) -> Result<(), Failure> {
        config.has_upstream = !self.is_replay_alone;
        config.replay.clone_from(&self.replay);
        config.fleet.engines = self.all();
        config.fleet.is_open = self.file.is_some();
        let has_secret = |spec: &&EngineSpec| spec.upstream.has_credentials();
        match config.fleet.engines.iter().find(has_secret) {
            None => Ok(()),
            Some(_) => Err(Failure::new("the address of an upstream holds a user or a password")),
        }
    }

    /// Watches the file until `shutdown`.
    ///
    /// # Errors
    /// [`Failure`] if its upstreams cannot be used.
    pub(super) async fn serve(
        self,
        proxy: &Arc<Proxy>,
        tasks: &mut JoinSet<()>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Failure> {
        let Some(file) = self.file else { return Ok(()) };
        proxy.set_upstreams(self.named, file.engines.clone()).await.map_err(Failure::new)?;
        // Weak, because a proxy that is held keeps the store open.
        let proxy = Arc::downgrade(proxy);
        tasks.spawn(async move {
            tokio::select! {
                () = file.watch(proxy) => {}
                () = shutdown => {}
            }
        });
        Ok(())
    }
}

impl UpstreamsFile {
    fn read(path: &Path) -> Result<Self, Failure> {
        let state = state_of(path);
        let text = text_of(path).map_err(|reason| {
            Failure::new(format!("cannot read `{}`: {reason}", path.display()))
        })?;
        let engines = EngineSpec::lines(&text)
            .map_err(|why| Failure::new(format!("`{}`: {why}", path.display())))?;
        Ok(Self { path: path.to_owned(), engines, state })
    }

    /// Reads the file again whenever it changes. One that cannot be used changes nothing.
    async fn watch(mut self, proxy: Weak<Proxy>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (path, known) = (self.path.clone(), self.state);
            // Where the file lies may be slow, or not answer at all.
            let look = move || {
                let state = state_of(&path);
                (state != known).then(|| (state, Self::read(&path)))
            };
            let Ok(Some((state, read))) = spawn_blocking(look).await else { continue };
            self.state = state;
            let Some(proxy) = proxy.upgrade() else { return };
            let changed = match read {
                Ok(read) => proxy.set_filed_upstreams(read.engines).await,
                Err(failure) => Err(failure.to_string()),
            };
            match changed {
                Ok(()) => tracing::info!("the upstreams are those of the changed file"),
                Err(reason) => tracing::warn!(reason, "the upstreams stay as they were"),
            }
        }
    }
}

/// The text of a regular file of at most [`FILE_BYTES_MAX`]. A pipe or a device is not read: it may
/// have no end.
fn text_of(path: &Path) -> Result<String, String> {
    // A pipe must not hold up the opening.
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|about| about.is_file()) {
        return Err("it is no regular file".to_owned());
    }

    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    match read.map_err(|error| error.to_string())? as u64 {
        0..=FILE_BYTES_MAX => Ok(text),
        _ => Err(format!("it has more than {FILE_BYTES_MAX} bytes")),
    }
}

fn state_of(path: &Path) -> FileState {
    let file = path.metadata().ok()?;
    Some((file.modified().ok()?, file.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_a_bounded_length_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("upstreams.txt");
        let read = || UpstreamsFile::read(&at).map(|read| read.engines.len());
        std::fs::write(&at, "http://a:1\n").unwrap();
        assert_eq!(read().unwrap(), 1);
        std::fs::write(&at, " ".repeat(1 << 20) + "\n").unwrap();
        let long = read().unwrap_err().to_string();
        assert!(long.contains("more than 1048576 bytes"), "{long}");

        std::fs::remove_file(&at).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &at).unwrap();
        let device = read().unwrap_err().to_string();
        assert!(device.contains("no regular file"), "{device}");
    }
}
