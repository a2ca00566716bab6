//! The output of `rolltape feed`: a file, or stdout, which may be a pipe with a slow reader or with
//! none.
//!
//! A pipe is written to only while it has room. So a write never blocks, and a signal is handled at
//! once.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ioctl_fionread};
use tokio::time::sleep;

use crate::exit::Failure;
use crate::terminal;

/// Bytes that a pipe with room takes at once (POSIX guarantees PIPE_BUF).
const PIPE_BYTES: usize = 4096;
/// The first and the longest pause before a pipe is polled again; each is twice the one before.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(32)];

/// An output that rows are written to.
pub(crate) struct FeedOutput {
    file: File,
    kind: OutputKind,
    /// The bytes of the last [`FeedOutput::put`].
    last: Vec<u8>,
    /// The number of them that are written.
    written: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputKind {
    Pipe,
    /// A file on a disk.
    File,
    Terminal,
    Other,
}

impl FeedOutput {
    /// Creates or truncates the file at `path`, which nobody but its owner may read if it is new;
    /// `-` is stdout.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = match path == Path::new("-") {
            true => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            false => create(path),
        };
        file.and_then(Self::new)
            .map_err(|error| Failure::new(format!("cannot write `{}`: {error}", path.display())))
    }

    fn new(file: File) -> io::Result<Self> {
        let file_type = file.metadata()?.file_type();
        let kind = match (file_type.is_fifo(), file_type.is_file()) {
            (true, _) => OutputKind::Pipe,
            (_, true) => OutputKind::File,
            _ if file.is_terminal() => OutputKind::Terminal,
            _ => OutputKind::Other,
        };
        Ok(Self { file, kind, last: Vec::new(), written: 0 })
    }

    /// Writes these bytes. Cancel safe: [`FeedOutput::flush`] writes what is left.
    pub(crate) async fn put(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let bytes = if self.kind == OutputKind::Terminal { terminal::shown(&bytes) } else { bytes };
        (self.last, self.written) = (bytes, 0);
        self.flush().await
    }

    /// Writes what is left of the last [`FeedOutput::put`].
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        let mut pause = PAUSES[0];
        while self.written < self.last.len() {
            let mut left = &self.last[self.written..];
            if self.kind == OutputKind::Pipe {
                left = &left[..left.len().min(PIPE_BYTES)];
                if !self.has_room()? {
                    wait(&mut pause).await;
                    continue;
                }
            }

            match self.file.write(left) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => (self.written, pause) = (self.written + count, PAUSES[0]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait(&mut pause).await,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until a file's bytes are on the disk, and, if they are to be `acked`, until a pipe's
    /// bytes are read.
    ///
    /// # Errors
    /// `BrokenPipe` if the pipe's reader has left.
    pub(crate) async fn settle(&self, acked: bool) -> io::Result<()> {
        let mut pause = PAUSES[0];
        match self.kind {
            OutputKind::File => self.file.sync_data(),
            OutputKind::Pipe if acked => {
                while ioctl_fionread(&self.file)? > 0 {
                    // Fails if the reader has left.
                    self.has_room()?;
                    wait(&mut pause).await;
                }
                Ok(())
            }
            OutputKind::Pipe | OutputKind::Terminal | OutputKind::Other => Ok(()),
        }
    }

    /// True if the pipe takes [`PIPE_BYTES`] more.
    fn has_room(&self) -> io::Result<bool> {
        let mut pipe = [PollFd::new(&self.file, PollFlags::OUT)];
        poll(&mut pipe, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let found = pipe[0].revents();
        match found.contains(PollFlags::ERR) {
            true => Err(ErrorKind::BrokenPipe.into()),
            false => Ok(found.contains(PollFlags::OUT)),
        }
    }
}

/// Opens a file to write. A link is not followed to a file, which whoever made the link could
/// choose; one to a pipe or a device is, such as a shell's `/dev/fd/63`.
fn create(path: &Path) -> io::Result<File> {
    let is_special = path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
    let flags = match is_special {
        true => OFlags::WRONLY,
        false => OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW,
    };
    let file = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    file.map(File::from).map_err(|error| match error {
        Errno::LOOP => {
            io::Error::new(ErrorKind::InvalidInput, "it is a link; name the file itself")
        }
        _ => error.into(),
    })
}

async fn wait(pause: &mut Duration) {
    sleep(*pause).await;
    *pause = (*pause * 2).min(PAUSES[1]);
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(200);

    fn pipe() -> (File, FeedOutput) {
        let (reader, writer) = io::pipe().unwrap();
        let sink = FeedOutput::new(File::from(OwnedFd::from(writer))).unwrap();
        (File::from(OwnedFd::from(reader)), sink)
    }

    #[tokio::test]
    async fn what_a_pipe_holds_has_not_arrived() {
        let (mut reader, mut sink) = pipe();
        sink.put(b"rows".to_vec()).await.unwrap();
        assert!(timeout(SHORT, sink.settle(true)).await.is_err(), "nobody has read it");
        timeout(LONG, sink.settle(false)).await.unwrap().unwrap();
        let mut read = [0; 4];
        reader.read_exact(&mut read).unwrap();
        drop(reader);
        timeout(LONG, sink.settle(true)).await.unwrap().unwrap();
        let closed = sink.put(b"more".to_vec()).await.unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::BrokenPipe);
        let (reader, mut sink) = pipe();
        sink.put(b"rows".to_vec()).await.unwrap();
        drop(reader);
        let lost = timeout(LONG, sink.settle(true)).await.unwrap().unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_full_pipe_keeps_nobody_and_loses_nothing() {
        let (mut reader, mut sink) = pipe();
        let rows: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
        assert!(timeout(SHORT, sink.put(rows.clone())).await.is_err(), "nobody reads");
        let all = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        timeout(LONG, sink.flush()).await.unwrap().unwrap();
        drop(sink);
        assert!(all.join().unwrap().unwrap() == rows);
    }
}
