//! The cost of recording, beside that of plain proxies: `just bench`.
//!
//! A scripted upstream and a load generator run on one core, each subject on another, in one run.
//! Read processor time a call first: it depends least on what else the machine does.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark")]

mod cell;
mod floor;
mod load;
mod report;
mod shapes;
mod subject;
mod upstream;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::cell::{CELLS, Measured};
use crate::shapes::Shape;
use crate::subject::{Kind, Programs};

/// Measure rolltape beside plain proxies
#[derive(Debug, Parser)]
struct Args {
    /// The rolltape to measure
    #[arg(long, default_value = "target/release/rolltape", env = "ROLLTAPE_BIN")]
    rolltape: PathBuf,
    /// Another build of rolltape, to compare with
    #[arg(long)]
    other: Option<PathBuf>,
    /// Programs to measure; all that are there unless given
    #[arg(long, value_enum, value_delimiter = ',')]
    subjects: Vec<Kind>,
    /// Shapes of calls; all unless given
    #[arg(long, value_enum, value_delimiter = ',')]
    shapes: Vec<Shape>,
    /// Rounds, whose median is printed
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a measurement
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Cores of the subject, as `taskset -c` takes them; the load runs on core 1
    #[arg(long, default_value = "0")]
    cores: String,
    /// File for the figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,

    /// Serve as a floor before this upstream, and measure nothing
    #[arg(long, hide = true, requires = "listen")]
    floor: Option<SocketAddr>,
    #[arg(long, hide = true)]
    listen: Option<SocketAddr>,
    #[arg(long, hide = true)]
    store: Option<PathBuf>,
}

fn main() -> std::io::Result<()> {
    let args = Args::parse();
    if let (Some(upstream), Some(listen)) = (args.floor, args.listen) {
        return floor::serve(listen, upstream, args.store);
    }

    let is_pinned = std::process::Command::new("taskset")
        .args(["-cp", "1", &std::process::id().to_string()])
        .stdout(std::process::Stdio::null())
        .status()?;
    if !is_pinned.success() {
        eprintln!("the load runs on any core: a second core is missing");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(measure(&args))?;
    println!("{}", report::table(&measured));
    if let Some(path) = &args.json {
        std::fs::write(path, report::json(&measured).to_string())?;
    }
    Ok(())
}

/// Measures every cell with every subject, in rounds, so that a loud minute meets all alike.
async fn measure(args: &Args) -> std::io::Result<Vec<Measured>> {
    let programs = Programs {
        rolltape: args.rolltape.clone(),
        other: args.other.clone(),
        cores: args.cores.clone(),
    };
    let mut measured = Vec::new();
    for round in 0..args.rounds {
        for cell in CELLS.iter().filter(|cell| is_chosen(&args.shapes, cell.shape)) {
            for kind in subjects(args) {
                let time = Duration::from_secs_f64(args.seconds);
                let figures = cell::measure(cell, kind, &programs, time).await?;
                eprintln!("round {round}: {}, {}", cell.name, kind.name());
                measured.push(Measured { cell, kind, figures });
            }
        }
    }
    Ok(measured)
}

fn is_chosen(chosen: &[Shape], shape: Shape) -> bool {
    chosen.is_empty() || chosen.contains(&shape)
}

/// The subjects that were asked for, or that are there.
fn subjects(args: &Args) -> Vec<Kind> {
    if !args.subjects.is_empty() {
        return args.subjects.clone();
    }
    let is_there = |kind: &Kind| match kind {
        Kind::Nginx => std::process::Command::new("nginx").arg("-v").output().is_ok(),
        Kind::Other => args.other.is_some(),
        _ => true,
    };
    Kind::value_variants().iter().copied().filter(is_there).collect()
}
