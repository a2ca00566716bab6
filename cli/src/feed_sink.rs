//! Where rows of the feed go: a file, or stdout, which may be a pipe that is read slowly or no
//! more.
//!
//! A pipe is written to only while it has room, so that no signal waits for a reader.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use tokio::time::sleep;

use crate::exit::Failure;

/// What a pipe with room takes at once.
const PIPE_BYTES: usize = 4096;
/// Pauses before a pipe is looked at again; each is twice the one before.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(32)];

/// Where rows go.
pub(crate) struct Sink {
    file: File,
    kind: Kind,
    /// What was put last, and how much of it is written.
    last: Vec<u8>,
    done: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pipe,
    /// On a disk.
    Stored,
    Other,
}

impl Sink {
    /// The file of this path, made anew; stdout for `-`.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = match path == Path::new("-") {
            true => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            false => File::create(path),
        };
        let made = file.and_then(Self::new);
        let failed = |error| Failure::new(format!("cannot write `{}`: {error}", path.display()));
        made.map_err(failed)
    }

    fn new(file: File) -> io::Result<Self> {
        let kind = file.metadata()?.file_type();
        let kind = match (kind.is_fifo(), kind.is_file()) {
            (true, _) => Kind::Pipe,
            (_, true) => Kind::Stored,
            _ => Kind::Other,
        };
        Ok(Self { file, kind, last: Vec::new(), done: 0 })
    }

    /// Writes these bytes. Who gives up on that may go on with [`Sink::flush`].
    pub(crate) async fn put(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        (self.last, self.done) = (bytes, 0);
        self.flush().await
    }

    /// Writes what is left of what was put last.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        let mut pause = PAUSES[0];
        while self.done < self.last.len() {
            let mut left = &self.last[self.done..];
            if self.kind == Kind::Pipe {
                left = &left[..left.len().min(PIPE_BYTES)];
                if !self.has_room()? {
                    rest(&mut pause).await;
                    continue;
                }
            }
            match self.file.write(left) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => (self.done, pause) = (self.done + written, PAUSES[0]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => rest(&mut pause).await,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until what was written is on the disk; where it was written to a pipe and is to be
    /// `acked`, until it was read.
    ///
    /// # Errors
    /// `BrokenPipe` when nobody reads it any more.
    pub(crate) async fn arrive(&self, acked: bool) -> io::Result<()> {
        let mut pause = PAUSES[0];
        match self.kind {
            Kind::Stored => self.file.sync_data(),
            Kind::Pipe if acked => {
                while ioctl_fionread(&self.file)? > 0 {
                    // Says so when the reader has left.
                    self.has_room()?;
                    rest(&mut pause).await;
                }
                Ok(())
            }
            Kind::Pipe | Kind::Other => Ok(()),
        }
    }

    /// Whether a pipe takes more.
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

async fn rest(pause: &mut Duration) {
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

    fn pipe() -> (File, Sink) {
        let (reader, writer) = io::pipe().unwrap();
        let sink = Sink::new(File::from(OwnedFd::from(writer))).unwrap();
        (File::from(OwnedFd::from(reader)), sink)
    }

    #[tokio::test]
    async fn what_a_pipe_holds_has_not_arrived() {
        let (mut reader, mut sink) = pipe();
        sink.put(b"rows".to_vec()).await.unwrap();
        assert!(timeout(SHORT, sink.arrive(true)).await.is_err(), "nobody has read it");
        timeout(LONG, sink.arrive(false)).await.unwrap().unwrap();
        let mut read = [0; 4];
        reader.read_exact(&mut read).unwrap();
        drop(reader);
        timeout(LONG, sink.arrive(true)).await.unwrap().unwrap();
        let closed = sink.put(b"more".to_vec()).await.unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::BrokenPipe);
        let (reader, mut sink) = pipe();
        sink.put(b"rows".to_vec()).await.unwrap();
        drop(reader);
        let lost = timeout(LONG, sink.arrive(true)).await.unwrap().unwrap_err();
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
