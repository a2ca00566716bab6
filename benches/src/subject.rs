//! The programs that are measured, each a process on a core of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a program to listen.
const START_WAIT: Duration = Duration::from_secs(20);

/// A program under measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// The upstream itself, without a proxy.
    Direct,
    /// nginx, if it is installed.
    Nginx,
    /// A bare hyper pass-through.
    Pass,
    /// The same with one SQLite writer, committed before the last frame.
    Tee,
    /// rolltape.
    Rolltape,
    /// Another build of rolltape, of `--other`.
    Other,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Pass => "hyper pass-through",
            Self::Tee => "recording floor",
            Self::Rolltape => "rolltape",
            Self::Other => "other rolltape",
        }
    }
}

/// The programs' places.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) rolltape: PathBuf,
    pub(crate) other: Option<PathBuf>,
    /// The list of cores that a subject runs on, as `taskset -c` takes it.
    pub(crate) cores: String,
}

/// A running subject.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) address: SocketAddr,
    /// None for the upstream itself.
    child: Option<Child>,
    folder: tempfile::TempDir,
}

impl Subject {
    /// Starts a subject before `upstream`.
    pub(crate) fn start(
        kind: Kind,
        programs: &Programs,
        upstream: SocketAddr,
    ) -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        if kind == Kind::Direct {
            return Ok(Self { address: upstream, child: None, folder });
        }

        let address = free_address()?;
        let mut command = Command::new("taskset");
        command.args(["-c", &programs.cores]);
        match kind {
            Kind::Direct => {}
            Kind::Nginx => nginx(&mut command, folder.path(), address, upstream)?,
            Kind::Pass | Kind::Tee => {
                command.arg(std::env::current_exe()?).args(["--floor", &upstream.to_string()]);
                command.args(["--listen", &address.to_string()]);
                if kind == Kind::Tee {
                    command.arg("--store").arg(folder.path().join("tee.db"));
                }
            }
            Kind::Rolltape => {
                rolltape(&mut command, &programs.rolltape, &folder, address, upstream)?
            }
            Kind::Other => {
                let program = programs.other.as_ref().ok_or_else(|| missing("--other"))?;
                rolltape(&mut command, program, &folder, address, upstream)?;
            }
        }

        let log = std::fs::File::create(folder.path().join("log"))?;
        let child = command.stdout(Stdio::null()).stderr(log).spawn()?;
        let mut subject = Self { address, child: Some(child), folder };
        subject.await_listening()?;
        Ok(subject)
    }

    fn await_listening(&mut self) -> std::io::Result<()> {
        let until = Instant::now() + START_WAIT;
        while std::net::TcpStream::connect(self.address).is_err() {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || Instant::now() > until {
                let log = std::fs::read_to_string(self.folder.path().join("log"))?;
                return Err(std::io::Error::other(format!("a subject did not start: {log}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The processor time so far of the process and of those it started, in seconds.
    pub(crate) fn cpu_s(&self) -> f64 {
        self.processes().into_iter().filter_map(cpu_s).sum()
    }

    /// Resident memory now, in MiB.
    pub(crate) fn resident_mib(&self) -> f64 {
        self.processes().into_iter().filter_map(resident_mib).sum()
    }

    /// Bytes in the subject's folder: its store and its log.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let Ok(entries) = std::fs::read_dir(self.folder.path()) else { return 0 };
        entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
    }

    /// The process and its children: nginx serves from one.
    fn processes(&self) -> Vec<u32> {
        let Some(child) = &self.child else { return Vec::new() };
        let id = child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().filter_map(|id| id.parse().ok());
        std::iter::once(id).chain(children).collect()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // nginx ends its worker only when it is asked to end.
            let asked = Command::new("kill").arg(child.id().to_string()).status();
            if asked.is_ok() {
                let _ = child.wait();
            }
        }
    }
}

fn rolltape(
    command: &mut Command,
    program: &Path,
    folder: &tempfile::TempDir,
    address: SocketAddr,
    upstream: SocketAddr,
) -> std::io::Result<()> {
    command.arg(program).args(["serve", "--dialect", "vllm"]);
    command.args(["--upstream", &format!("http://{upstream}")]);
    command.args(["--listen", &address.to_string(), "--control", &free_address()?.to_string()]);
    command.arg("--store").arg(folder.path().join("recorded.db"));
    Ok(())
}

fn nginx(
    command: &mut Command,
    folder: &Path,
    address: SocketAddr,
    upstream: SocketAddr,
) -> std::io::Result<()> {
    let config = folder.join("nginx.conf");
    std::fs::write(
        &config,
        format!(
            "daemon off; worker_processes 1; pid nginx.pid; error_log stderr error;
             events {{ worker_connections 8192; }}
             http {{
               access_log off; client_body_temp_path body; proxy_temp_path proxy;
               fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
               client_max_body_size 64m; client_body_buffer_size 1m;
               keepalive_requests 1000000000;
               upstream up {{ server {upstream}; keepalive 1024; keepalive_requests 1000000000; }}
               server {{
                 listen {address} backlog=1024;
                 location / {{
                   proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection \"\";
                   proxy_buffering off;
                 }}
               }}
             }}"
        ),
    )?;

    command.args(["nginx", "-p"]).arg(folder).arg("-c").arg(config);
    Ok(())
}

fn missing(option: &str) -> std::io::Error {
    std::io::Error::other(format!("{option} is missing"))
}

fn free_address() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// User and system time of a process, in seconds.
fn cpu_s(id: u32) -> Option<f64> {
    /// Ticks of a second, which is 100 on every Linux that Debian runs on.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    Some(ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS)
}

fn resident_mib(id: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib / 1024.0)
}
