//! URLs of sockets in the file system.
//!
//! The path of a socket is the host of its URL, in hexadecimal digits, before an ending that no
//! name of the network has.

use std::io;
use std::path::PathBuf;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use crate::path::escapes::decoded;

/// The ending of a host that is a path.
const ENDING: &str = ".unix";

/// The URL of a socket: `http://HEX.unix`.
pub fn url_of(path: &str) -> String {
    let digits: String = path.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("http://{digits}{ENDING}")
}

/// The path that a URL of [`url_of`] names.
pub fn path_of(url: &Uri) -> Option<PathBuf> {
    let digits = url.host()?.strip_suffix(ENDING)?.as_bytes();
    let escapes: String =
        digits.chunks(2).map(|pair| format!("%{}", pair.escape_ascii())).collect();
    let bytes = decoded(&escapes).map(|(byte, is_escaped)| is_escaped.then_some(byte));
    String::from_utf8(bytes.collect::<Option<_>>()?).ok().map(PathBuf::from)
}

/// Connects to the socket of a URL.
pub(super) async fn connect(url: Uri) -> io::Result<TokioIo<UnixStream>> {
    let path = path_of(&url).ok_or(io::ErrorKind::InvalidInput)?;
    UnixStream::connect(path).await.map(TokioIo::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_socket_s_url_is_its_path() {
        let page = format!("{}/episodes?a=1", url_of("/run/é b.sock"));
        assert_eq!(path_of(&page.parse().unwrap()), Some(PathBuf::from("/run/é b.sock")));
        for other in ["http://h/x", "http://zz.unix/", "http://2f2.unix/", "http://2f+1.unix/"] {
            assert_eq!(path_of(&other.parse().unwrap()), None, "{other}");
        }
    }
}
