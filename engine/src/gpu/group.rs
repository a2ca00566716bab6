//! A check of NCCL with one GPU: the library's interface, and the end of a group.
//!
//! One GPU tests the calls, groups in non-blocking mode, and their abort. It does not test
//! transfers between GPUs.

use std::fmt::Display;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use kernels::cuda::{Device, Memory};
use kernels::nccl::{self, Communicator, NcclError};

/// The timeout of the whole check: a library that hangs must not hold up the rest of the report.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// The time after which the only member of a group of two gives up.
const JOIN_TIMEOUT: Duration = Duration::from_millis(500);
/// The bytes of the broadcast.
const BROADCAST_BYTES: usize = 1 << 20;

/// The outcome of the NCCL check.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupReport {
    /// The library was not found, for this reason.
    Absent(String),
    /// A step failed, for this reason.
    Failed(String),
    /// All steps succeeded.
    Well {
        /// The version in the library's encoding: 22809 is 2.28.9.
        version: i32,
        /// The steps with their seconds.
        steps: Vec<(&'static str, f64)>,
    },
}

impl GroupReport {
    /// Runs the check on a thread of its own, which is abandoned after the timeout.
    pub(super) fn new(device: &Device) -> GroupReport {
        let (sender, report) = mpsc::sync_channel(1);
        let device = device.clone();
        thread::spawn(move || {
            // After the timeout nobody receives this.
            let _ = sender.send(check(&device));
        });
        match report.recv_timeout(CHECK_TIMEOUT) {
            Ok(report) => report,
            Err(RecvTimeoutError::Timeout) => {
                GroupReport::Failed(format!("no answer after {} s", CHECK_TIMEOUT.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                GroupReport::Failed("the thread that asked is gone".to_owned())
            }
        }
    }

    /// Returns true if the library was found and does not work.
    pub fn is_wrong(&self) -> bool {
        matches!(self, GroupReport::Failed(_))
    }
}

fn check(device: &Device) -> GroupReport {
    let version = match nccl::version() {
        Ok(version) => version,
        Err(absent) => return GroupReport::Absent(absent.to_string()),
    };
    let mut steps = Steps { done: Vec::new(), start: Instant::now() };
    match run_steps(device, &mut steps) {
        Ok(()) => GroupReport::Well { version, steps: steps.done },
        Err(reason) => {
            let done: Vec<&str> = steps.done.iter().map(|step| step.0).collect();
            GroupReport::Failed(format!("{reason} (version {version}, done before: {done:?})"))
        }
    }
}

/// The steps that succeeded, with their seconds.
struct Steps {
    done: Vec<(&'static str, f64)>,
    /// The start of the current step.
    start: Instant,
}

impl Steps {
    fn finish(&mut self, step: &'static str) {
        self.done.push((step, self.start.elapsed().as_secs_f64()));
        self.start = Instant::now();
    }
}

/// Runs a group of one through a join, a sum, a broadcast and an abort. Then gives up a group of
/// two whose other member never comes.
fn run_steps(device: &Device, steps: &mut Steps) -> Result<(), String> {
    let id = nccl::unique_id().map_err(text)?;
    let mut member = Communicator::new(device, &id, 0, 1, &mut || false).map_err(text)?;
    steps.finish("join");

    let numbers = [1.5_f32, -2.0, 1e-30];
    let summed = Memory::of(device, &numbers).map_err(text)?;
    member.all_reduce(&summed, &mut || false).map_err(text)?;
    check_unchanged("all-reduce", &summed, &numbers)?;
    steps.finish("all-reduce");

    let bytes: Vec<u8> = (0..BROADCAST_BYTES).map(|at| (at * 31 % 251) as u8).collect();
    let received = Memory::of(device, &bytes).map_err(text)?;
    member.broadcast(&received, &mut || false).map_err(text)?;
    check_unchanged("broadcast", &received, &bytes)?;
    steps.finish("broadcast");

    drop(member);
    steps.finish("abort");

    let id_of_two = nccl::unique_id().map_err(text)?;
    let deadline = Instant::now() + JOIN_TIMEOUT;
    match Communicator::new(device, &id_of_two, 0, 2, &mut || Instant::now() > deadline) {
        Err(NcclError::GivenUp(_)) => {
            steps.finish("abort of a group whose other member never came");
        }
        Err(other) => return Err(text(other)),
        Ok(_) => return Err("a group of two formed with one member".to_owned()),
    }

    // The device must still work after an abort.
    check_unchanged("the device after an abort", &received, &bytes)
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Checks that a group of one left numbers unchanged.
fn check_unchanged<T: kernels::cuda::Pod + PartialEq>(
    step: &str,
    memory: &Memory,
    expected: &[T],
) -> Result<(), String> {
    let found = memory.to_vec::<T>().map_err(|error| format!("{step}: {error}"))?;
    if found == expected { Ok(()) } else { Err(format!("{step}: other bytes came back")) }
}

#[cfg(feature = "emulated")]
#[cfg(test)]
mod tests;
