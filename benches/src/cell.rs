//! Cells of the table: a shape of calls under a load.

use std::sync::Arc;
use std::time::Duration;

use crate::load::{self, Calls, LoadPlan};
use crate::shapes::Shape;
use crate::subject::{Kind, Programs, Subject};
use crate::upstream;

/// Time in which a subject warms up.
const WARM_UP: Duration = Duration::from_millis(500);
/// Time in which stalled readers fill every buffer.
const STALL_TIME: Duration = Duration::from_secs(4);
/// Readers that stall.
const READERS: usize = 32;

/// A load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchCell {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    connections: usize,
    rate: Option<f64>,
}

/// Every cell, in the order of the table.
pub(crate) const CELLS: &[BenchCell] = &[
    closed("small, one at a time", Shape::Small, 1),
    closed("small, 32 at once", Shape::Small, 32),
    closed("small, 1,000 at once", Shape::Small, 1000),
    open("small, 1,000 calls/s", Shape::Small, 64, 1000.0),
    closed("rollout, 32 at once", Shape::Rollout, 32),
    closed("history, 8 at once", Shape::History, 8),
    closed("burst, 32 at once", Shape::Burst, 32),
    closed("paced stream, 1,000 at once", Shape::Stream, 1000),
    closed("32 stalled readers", Shape::Stalled, READERS),
    // Some 400 at once: each takes 9.1 s. A connection calls every 10 s.
    open("storm, 44 calls/s of 9.1 s", Shape::Storm, 440, 44.0),
];

/// A load in which each connection calls again as soon as it was answered.
const fn closed(name: &'static str, shape: Shape, connections: usize) -> BenchCell {
    BenchCell { name, shape, connections, rate: None }
}

/// A load at a fixed rate, whatever the answers take.
const fn open(name: &'static str, shape: Shape, connections: usize, rate: f64) -> BenchCell {
    BenchCell { name, shape, connections, rate: Some(rate) }
}

/// The figures of one measurement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    /// Processor time of the subject for 1,000 calls, in seconds.
    pub(crate) cpu_s: f64,
    /// Calls a second.
    pub(crate) calls: f64,
    /// Events of streams a second.
    pub(crate) events: f64,
    /// Median time of a call, in milliseconds.
    pub(crate) p50_ms: f64,
    /// 99th percentile of the time of a call, in milliseconds.
    pub(crate) p99_ms: f64,
    /// Median time until the first byte, in milliseconds.
    pub(crate) first_byte_ms: f64,
    /// Growth of resident memory, in MiB.
    pub(crate) grown_mib: f64,
    /// Bytes on disk of a call.
    pub(crate) disk_bytes: f64,
    /// Calls that failed.
    pub(crate) failed: f64,
}

/// The figures of one measurement, and what was measured.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) cell: &'static BenchCell,
    pub(crate) kind: Kind,
    pub(crate) figures: Figures,
}

/// Measures a subject that is started for it.
pub(crate) async fn measure(
    cell: &'static BenchCell,
    kind: Kind,
    programs: &Programs,
    time: Duration,
) -> std::io::Result<Figures> {
    let upstream = upstream::serve(cell.shape).await?;
    let subject = Subject::start(kind, programs, upstream)?;
    let calls = Arc::new(Calls::of(cell.shape));
    let before_mib = subject.resident_mib();
    if cell.shape == Shape::Stalled {
        let lines = load::stall(subject.address, &calls, READERS).await?;
        tokio::time::sleep(STALL_TIME).await;
        let grown_mib = subject.resident_mib() - before_mib;
        drop(lines);
        return Ok(Figures { grown_mib, ..Figures::default() });
    }

    let plan = LoadPlan { connections: cell.connections, time, rate: cell.rate };
    load::run(subject.address, &calls, LoadPlan { time: WARM_UP, ..plan }).await?;
    let (cpu_before, disk_before) = (subject.cpu_s(), subject.disk_bytes());
    let outcome = load::run(subject.address, &calls, plan).await?;
    let (cpu_s, disk) = (subject.cpu_s() - cpu_before, subject.disk_bytes() - disk_before);

    let count = outcome.calls.max(1) as f64;
    let seconds = outcome.elapsed.as_secs_f64();
    Ok(Figures {
        cpu_s: cpu_s / count * 1e3,
        calls: count / seconds,
        events: outcome.events as f64 / seconds,
        p50_ms: outcome.time_ms(0.5),
        p99_ms: outcome.time_ms(0.99),
        first_byte_ms: outcome.first_byte_ms(0.5),
        grown_mib: subject.resident_mib() - before_mib,
        disk_bytes: disk as f64 / count,
        failed: outcome.failed as f64,
    })
}
