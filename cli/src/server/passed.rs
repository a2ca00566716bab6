//! Sockets of a supervisor such as systemd: those to listen on, and one to report to.

use std::io;
use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::exit::Failure;

/// The variable with the names of the passed sockets, separated by colons.
const NAMES: &str = "LISTEN_FDNAMES";

/// Listening sockets that were open before this process began.
#[derive(Debug, Default)]
pub(crate) struct PassedSockets {
    pub(crate) data: Option<TcpListener>,
    pub(crate) control: Option<TcpListener>,
}

impl PassedSockets {
    /// Takes the sockets of `LISTEN_FDS`. Without names the first one is the data listener, the
    /// second one the control listener.
    ///
    /// # Errors
    /// [`Failure`] if a socket is not TCP, or its name is not known.
    pub(crate) fn take() -> Result<Self, Failure> {
        let names = std::env::var(NAMES).unwrap_or_default();
        let names: Vec<&str> = names.split(':').filter(|name| !name.is_empty()).collect();
        let mut from = ListenFd::from_env();
        let mut passed = Self::default();
        for index in 0..from.len() {
            let name = names.get(index).copied().or(["data", "control"].get(index).copied());
            let socket = from.take_tcp_listener(index).map_err(|error| {
                Failure::of(&error).context("a socket that was passed cannot be used")
            })?;
            *passed.place(name.unwrap_or(""))? = socket;
        }
        Ok(passed)
    }

    fn place(&mut self, name: &str) -> Result<&mut Option<TcpListener>, Failure> {
        let place = match name {
            "data" => &mut self.data,
            "control" => &mut self.control,
            _ => {
                return Err(Failure::new(format!("a socket was passed as `{name}`"))
                    .hint("name sockets data or control: FileDescriptorName= in a socket unit"));
            }
        };
        match place {
            Some(_) => Err(Failure::new(format!("two sockets were passed as `{name}`"))),
            None => Ok(place),
        }
    }

    /// The address of the data socket.
    pub(crate) fn data_address(&self) -> io::Result<Option<SocketAddr>> {
        self.data.as_ref().map(TcpListener::local_addr).transpose()
    }

    /// The address of a passed control listener.
    pub(crate) fn control_address(&self) -> io::Result<Option<SocketAddr>> {
        self.control.as_ref().map(TcpListener::local_addr).transpose()
    }
}

/// Tells the supervisor that calls are served.
pub(crate) fn report_ready() {
    report(NotifyState::Ready);
}

/// Tells the supervisor that the server is about to stop.
pub(crate) fn report_stopping() {
    report(NotifyState::Stopping);
}

/// Sends a state to `NOTIFY_SOCKET`, if it is set.
fn report(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the supervisor could not be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_one_of_two_names_and_no_other_has_it() {
        let mut passed = PassedSockets::default();
        *passed.place("data").unwrap() = Some(TcpListener::bind("127.0.0.1:0").unwrap());
        assert!(passed.place("data").is_err());
        assert!(passed.place("engine").is_err());
        assert!(passed.place("control").unwrap().is_none());
    }
}
