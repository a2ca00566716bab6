//! A client of PyTorch's `TCPStore`: how members of a group that do not know each other yet find
//! what the first of them has written down.
//!
//! A request is a byte that says which and then its operands; numbers are little-endian, and texts
//! come after their length in 64 bits.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::Duration;

use crate::update::Wait;

/// What a client says first, so that nobody takes the store for something else.
const MAGIC: u32 = 0x3C85_F7CE;

const VALIDATE: u8 = 0;
const GET: u8 = 3;
const ADD: u8 = 4;
const WAIT: u8 = 6;
const PING: u8 = 13;

/// The answer to [`WAIT`].
const STOP_WAITING: u8 = 0;

/// Counts the members that are there; what members write themselves begins with a slash.
const MEMBERS: &str = "init/";

/// How long to wait before the store is asked for again.
const RETRY: Duration = Duration::from_millis(100);

/// How long one attempt to reach it, or a request on its way, may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Bytes of the largest value that is read.
const VALUE_MAX: u64 = 1 << 20;

/// A connection to a store.
#[derive(Debug)]
pub(super) struct Store {
    stream: TcpStream,
}

impl Store {
    /// Joins the members of the store at an address, which may not be there yet; nothing takes
    /// much longer than until `wait` is over.
    pub(super) fn join(address: (&str, u16), wait: &Wait) -> io::Result<Store> {
        let mut store = Store { stream: reach(address, wait)? };
        store.stream.set_nodelay(true)?;
        // So often somebody looks whether the wait is over.
        store.stream.set_read_timeout(Some(RETRY))?;
        store.stream.set_write_timeout(Some(ATTEMPT))?;
        store.greet(wait)?;
        store.add(MEMBERS, 1, wait)?;
        Ok(store)
    }

    fn greet(&mut self, wait: &Wait) -> io::Result<()> {
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
        Err(garbled("it does not answer as a TCPStore does"))
    }

    /// Adds to a number and returns the sum.
    fn add(&mut self, key: &str, amount: i64, wait: &Wait) -> io::Result<i64> {
        let mut request = vec![ADD];
        push_text(&mut request, key);
        request.extend(amount.to_le_bytes());
        self.stream.write_all(&request)?;
        Ok(i64::from_le_bytes(self.read(wait)?))
    }

    /// What a member wrote under a key, as soon as it has.
    pub(super) fn get(&mut self, key: &str, wait: &Wait) -> io::Result<Vec<u8>> {
        let key = format!("/{key}");
        let mut request = vec![WAIT];
        request.extend(1_u64.to_le_bytes());
        push_text(&mut request, &key);
        self.stream.write_all(&request)?;
        if self.read::<1>(wait)? != [STOP_WAITING] {
            return Err(garbled("it gave up waiting"));
        }
        let mut request = vec![GET];
        push_text(&mut request, &key);
        self.stream.write_all(&request)?;
        let length = u64::from_le_bytes(self.read(wait)?);
        if length > VALUE_MAX {
            return Err(garbled("a value is larger than any group's name"));
        }
        let mut value = vec![0; length as usize];
        self.fill(&mut value, wait)?;
        Ok(value)
    }

    fn read<const N: usize>(&mut self, wait: &Wait) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, wait)?;
        Ok(bytes)
    }

    /// Reads until `bytes` are full.
    fn fill(&mut self, bytes: &mut [u8], wait: &Wait) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.stream.read(&mut bytes[done..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut if wait.over().is_none() => {}
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

/// Tries until somebody listens.
fn reach(address: (&str, u16), wait: &Wait) -> io::Result<TcpStream> {
    loop {
        let failed = match try_all(address) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if wait.over().is_some() {
            return Err(failed);
        }
        sleep(RETRY);
    }
}

fn try_all(address: (&str, u16)) -> io::Result<TcpStream> {
    let mut failed = garbled("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ATTEMPT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
