//! A recorder in a process of its own, so that it can be killed or run out of disk. The process is
//! this binary, started again for the one test below.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use proxy::{Config, Proxy};
use store::{Durability, Location, Store};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Environment variables that configure the process.
const STORE: &str = "ROLLTAPE_TEST_RECORDER_STORE";
const MODE: &str = "ROLLTAPE_TEST_RECORDER_MODE";
const UPSTREAM: &str = "ROLLTAPE_TEST_RECORDER_UPSTREAM";
/// The word before its addresses that says that it is ready.
const READY: &str = "recorder at ";
/// The word before the number of its tasks, its answer to a line.
const TASKS: &str = "recorder has tasks ";

/// The process, killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    child: Child,
    /// Kept open, since the process writes to it once more when it ends.
    out: BufReader<ChildStdout>,
    /// The address for agents.
    pub(crate) data: SocketAddr,
    /// The address for trainers.
    pub(crate) control: SocketAddr,
}

impl Recorder {
    /// Starts a recorder into `store`, in front of `upstream`.
    pub(crate) fn start(
        store: &(impl AsRef<OsStr> + ?Sized),
        mode: &str,
        upstream: SocketAddr,
    ) -> Self {
        Self::start_under("", (store, mode), upstream).unwrap_or_else(|said| panic!("{said}"))
    }

    /// Starts one in a shell that has run `setup`. The error is its output if it could not start.
    pub(crate) fn start_under(
        setup: &str,
        (store, mode): (&(impl AsRef<OsStr> + ?Sized), &str),
        upstream: SocketAddr,
    ) -> Result<Self, String> {
        let this = std::env::current_exe().unwrap();
        let script =
            format!("{setup}\nexec \"$0\" recorder::process --exact --ignored --nocapture");
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .arg(this)
            .envs([(MODE, mode), (UPSTREAM, &upstream.to_string())])
            .env(STORE, store)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (mut line, mut said) = (String::new(), String::new());

        while out.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            if let Some((data, control)) = line.split_once(READY).and_then(|l| l.1.split_once(' '))
            {
                let [data, control] = [data, control].map(|at| at.trim().parse().unwrap());
                return Ok(Self { child, out, data, control });
            }
            said += &line;
            line.clear();
        }

        let _ = child.stderr.take().unwrap().read_to_string(&mut said);
        let _ = child.wait();
        Err(said)
    }

    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The number of tasks that it runs.
    pub(crate) fn tasks(&mut self) -> usize {
        writeln!(self.child.stdin.as_ref().unwrap()).unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the recorder is gone");
            if let Some(number) = line.strip_prefix(TASKS) {
                return number.trim().parse().unwrap();
            }
        }
    }

    /// The number of descriptors that it has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A clean stop.
    pub(crate) fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process itself. It answers a line with the number of its tasks, and ends cleanly when its
/// input does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by other tests"]
async fn process() {
    let variable = |name| std::env::var(name).ok();
    let (Some(store), Some(mode)) = (variable(STORE), variable(MODE)) else { return };
    let Some(upstream) = variable(UPSTREAM) else { return };
    let mode = match mode.as_str() {
        "process" => Durability::Process,
        "relaxed" => Durability::Relaxed,
        _ => Durability::Power,
    };
    let at: Location = store.parse().unwrap();
    let (store, writer) = Store::open(at.with_readers(4), mode).await.unwrap();

    let config = Config::new(format!("http://{upstream}").parse().unwrap());
    let settings = kit::settings(&config, &store);
    let proxy = Arc::new(Proxy::start(config, store).await.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("\n{READY}{} {}", listener.local_addr().unwrap(), socket.local_addr().unwrap());

    // The end of the input stops both listeners.
    let (stop, mut stopped) = watch::channel(());
    let tasks = tokio::runtime::Handle::current().metrics();
    let input = tokio::task::spawn_blocking(move || {
        for _ in std::io::stdin().lines() {
            println!("{TASKS}{}", tasks.num_alive_tasks());
        }
    });
    let ended = async move {
        drop(input.await);
        drop(stop);
    };
    let stopped = async move { drop(stopped.changed().await) };
    tokio::join!(
        proxy::serve_data(Arc::clone(&proxy), listener, ended),
        control::serve_control(proxy::Recorder::new(proxy), settings, socket, stopped),
    );
    writer.finish().await;
}
