//! A client of PyTorch's `TCPStore`, in which members of a group read what the first one has
//! written.
//!
//! A request is one byte for the operation, then its operands. Numbers are little-endian, and a
//! text follows its length in 64 bits.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::Duration;

use crate::bounds::STORE_VALUE_BYTES_MAX;
use crate::update::wait::TrainerWait;

/// The number with which a client introduces itself.
const MAGIC: u32 = 0x3C85_F7CE;

const VALIDATE: u8 = 0;
const GET: u8 = 3;
const ADD: u8 = 4;
const WAIT: u8 = 6;
const PING: u8 = 13;

/// The answer to [`WAIT`].
const STOP_WAITING: u8 = 0;

/// The key that counts the members. Keys that members write begin with a slash.
const MEMBERS: &str = "init/";

/// The time between attempts to connect, and between looks at the wait.
const RETRY: Duration = Duration::from_millis(100);

/// The timeout of one attempt to connect, and of sending a request.
const ATTEMPT: Duration = Duration::from_secs(2);

/// A connection to a store.
#[derive(Debug)]
pub(super) struct TcpStore {
    stream: TcpStream,
}

impl TcpStore {
    /// Joins the members of a store that may not listen yet. Returns soon after `wait` is over.
    pub(super) fn join(host: &str, port: u16, wait: &TrainerWait) -> io::Result<TcpStore> {
        let mut store = TcpStore { stream: connect_until(host, port, wait)? };
        store.stream.set_nodelay(true)?;
        // A short timeout, so that a read looks often whether the wait is over.
        store.stream.set_read_timeout(Some(RETRY))?;
        store.stream.set_write_timeout(Some(ATTEMPT))?;
        store.greet(wait)?;
        store.add(MEMBERS, 1, wait)?;
        Ok(store)
    }

    fn greet(&mut self, wait: &TrainerWait) -> io::Result<()> {
        let nonce = std::process::id();
        let mut request = vec![VALIDATE];
        request.extend(MAGIC.to_le_bytes());
        request.push(PING);
        request.extend(nonce.to_le_bytes());
        self.stream.write_all(&request)?;
        let echo = u32::from_le_bytes(self.read(wait)?);
        if echo == nonce {
            return Ok(());
        }
        Err(garbled("it does not answer like a TCPStore"))
    }

    /// Adds to a number and returns the sum.
    fn add(&mut self, key: &str, amount: i64, wait: &TrainerWait) -> io::Result<i64> {
        let mut request = vec![ADD];
        push_text(&mut request, key);
        request.extend(amount.to_le_bytes());
        self.stream.write_all(&request)?;
        Ok(i64::from_le_bytes(self.read(wait)?))
    }

    /// Waits until a member has written a key, and returns the value.
    pub(super) fn get(&mut self, key: &str, wait: &TrainerWait) -> io::Result<Vec<u8>> {
        let key = format!("/{key}");
        let mut wait_request = vec![WAIT];
        wait_request.extend(1_u64.to_le_bytes());
        push_text(&mut wait_request, &key);
        self.stream.write_all(&wait_request)?;
        if self.read::<1>(wait)? != [STOP_WAITING] {
            return Err(garbled("the store stopped waiting"));
        }

        let mut get_request = vec![GET];
        push_text(&mut get_request, &key);
        self.stream.write_all(&get_request)?;
        let length = u64::from_le_bytes(self.read(wait)?);
        if length > STORE_VALUE_BYTES_MAX {
            return Err(garbled("the value is larger than any group's id"));
        }
        let mut value = vec![0; length as usize];
        self.fill(&mut value, wait)?;
        Ok(value)
    }

    fn read<const N: usize>(&mut self, wait: &TrainerWait) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, wait)?;
        Ok(bytes)
    }

    /// Reads until `bytes` are full.
    fn fill(&mut self, bytes: &mut [u8], wait: &TrainerWait) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.stream.read(&mut bytes[done..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut if !wait.is_over() => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }
}

fn garbled(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

fn push_text(request: &mut Vec<u8>, text: &str) {
    request.extend((text.len() as u64).to_le_bytes());
    request.extend(text.as_bytes());
}

/// Connects, again and again until the store listens or the wait is over.
fn connect_until(host: &str, port: u16, wait: &TrainerWait) -> io::Result<TcpStream> {
    loop {
        let failed = match connect_to_any(host, port) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if wait.is_over() {
            return Err(failed);
        }
        sleep(RETRY);
    }
}

/// Connects to the first address of a host that answers.
fn connect_to_any(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = garbled("the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ATTEMPT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
