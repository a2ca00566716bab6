//! A PostgreSQL server for tests: the installed version, on a free port, with its data in a
//! temporary folder. It ends with the test process, however that ends.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "what was skipped")]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The variable that makes a missing server an error, so that no test is skipped.
const REQUIRED: &str = "ROLLTAPE_TEST_POSTGRES";

/// Runs a server until its standard input ends. `$1` is the folder of PostgreSQL's programs, `$2`
/// the port, `$3` whether commits are synced.
const SCRIPT: &str = r#"
set -u
data=$(mktemp -d /tmp/rolltape-postgres-XXXXXX) || exit 1
cd "$data"
"$1/initdb" -D "$data/db" -U test -A trust -E UTF8 --locale=C --no-sync >"$data/log" 2>&1 ||
  { cat "$data/log" >&2; rm -rf "$data"; exit 1; }
start() {
  "$1/postgres" -D "$data/db" -p "$2" -k "$data" -c listen_addresses=127.0.0.1 -c fsync="$3" \
    -c max_connections=200 >>"$data/log" 2>&1 &
  pid=$!
  tries=0
  until "$1/pg_isready" -q -h 127.0.0.1 -p "$2"; do
    kill -0 $pid 2>/dev/null || return 1
    tries=$((tries + 1)); [ $tries -lt 300 ] || return 1
    sleep 0.1
  done
}
start "$@" || { cat "$data/log" >&2; rm -rf "$data"; exit 1; }
echo ready
# Processes of a server that was killed hold its memory for a moment.
start_again() {
  again=0
  until start "$@"; do
    again=$((again + 1)); [ $again -lt 60 ] || { cat "$data/log" >&2; return 1; }
    sleep 0.5
  done
}
while read -r word; do
  case $word in
    kill) kill -9 $(head -1 "$data/db/postmaster.pid"); wait $pid 2>/dev/null; echo done ;;
    start) start_again "$@" && echo done || echo failed ;;
  esac
done
kill -QUIT $pid 2>/dev/null; wait $pid 2>/dev/null
rm -rf "$data"
"#;

/// A running server.
#[derive(Debug)]
pub struct Server {
    port: u16,
    databases: AtomicU32,
    programs: PathBuf,
    pipes: Mutex<Pipes>,
}

#[derive(Debug)]
struct Pipes {
    commands: Option<ChildStdin>,
    answers: BufReader<std::process::ChildStdout>,
    child: Child,
}

impl Server {
    /// Starts a server that syncs nothing, for tests that kill processes, not machines. Returns
    /// `None` and prints a line where PostgreSQL is not installed.
    ///
    /// # Panics
    /// When it is installed and does not start, or when it is not and must be.
    #[must_use]
    pub fn start() -> Option<Self> {
        Self::start_with("off")
    }

    /// Starts a server that syncs each commit, for measurements.
    ///
    /// # Panics
    /// As [`Server::start`].
    #[must_use]
    pub fn start_synced() -> Option<Self> {
        Self::start_with("on")
    }

    fn start_with(fsync: &str) -> Option<Self> {
        let Some(programs) = programs() else {
            assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set: install PostgreSQL");
            println!("SKIPPED: PostgreSQL is not installed (Debian: apt install postgresql)");
            return None;
        };
        // A port that was free may be another's by the time that the server takes it.
        let started = (0..3).find_map(|_| {
            let port = free_port();
            let mut pipes = Pipes::to_server(&programs, port, fsync);
            (pipes.answer() == "ready").then_some((port, pipes))
        });
        let (port, pipes) = started.expect("PostgreSQL started");
        let (databases, pipes) = (AtomicU32::new(0), Mutex::new(pipes));
        Some(Self { port, databases, programs, pipes })
    }

    /// The server that the tests of a process share, if there is one.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Server>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// The URL of a new, empty database.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn database(&self) -> String {
        self.copy("template1")
    }

    /// The URL of a new database that is like another one, to which nobody is connected.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn copy(&self, other: &str) -> String {
        let name = format!("t{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let done = Command::new(self.programs.join("createdb"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "test", "-T", other])
            .arg(&name)
            .status();
        assert!(done.expect("createdb starts").success(), "a database is made");
        self.url(&name)
    }

    /// The URL of a database.
    #[must_use]
    pub fn url(&self, name: &str) -> String {
        format!("postgres://test@127.0.0.1:{}/{name}", self.port)
    }

    /// Kills the server as a crash would.
    pub fn kill(&self) {
        self.send("kill");
    }

    /// Starts it again.
    pub fn restart(&self) {
        self.send("start");
    }

    fn send(&self, command: &str) {
        use std::io::Write;
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let commands = pipes.commands.as_mut().expect("it is open until it is dropped");
        writeln!(commands, "{command}").expect("the shell reads");
        assert_eq!(pipes.answer(), "done");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        pipes.commands = None;
        // Its last output is of no use.
        let _ = pipes.answers.read_to_end(&mut Vec::new());
        let _ = pipes.child.wait();
    }
}

impl Pipes {
    /// Starts a server, which says `ready` once it is.
    fn to_server(programs: &Path, port: u16, fsync: &str) -> Self {
        let mut child = as_unprivileged_user()
            .args(["sh", "-c", SCRIPT, "sh"])
            .args([programs.as_os_str(), port.to_string().as_ref(), fsync.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it was piped"));
        Self { commands, answers, child }
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the shell answers");
        line.trim_end().to_owned()
    }
}

/// The folder of the newest version's programs.
fn programs() -> Option<PathBuf> {
    let number = |path: &Path| {
        let version = path.parent()?.file_name()?.to_str()?;
        version.parse::<u32>().ok()
    };
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = debian.map(|entry| entry.path().join("bin")).collect();
    found.sort_by_key(|path| number(path));
    let path = std::env::var_os("PATH").unwrap_or_default();
    found.splice(0..0, std::env::split_paths(&path));
    found.into_iter().rev().find(|folder| folder.join("initdb").exists())
}

/// A command that runs as another user than root: PostgreSQL refuses to run as root, and Debian's
/// package has a user for it.
fn as_unprivileged_user() -> Command {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    if !is_root {
        return Command::new("env");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "env"]);
    command
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}
