//! NCCL with one GPU: whether the library takes our calls, and lets go of a group.
//!
//! A GPU alone shows the interface, the kind of group that does not block, and its end. It does not
//! show bytes that cross.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use kernels::cuda::{Device, Memory};
use kernels::nccl::{self, Member, NcclError};

/// The time that all of it may take: a library that hangs must not keep the rest from being told.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the one member of a group of two waits before it gives up.
const ALONE: Duration = Duration::from_millis(500);
/// Bytes that are broadcast.
const BYTES: usize = 1 << 20;

/// The outcome of the NCCL check.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupReport {
    /// There is no library; why.
    Absent(String),
    /// Something did not go as it should.
    Failed(String),
    /// All went well.
    Well {
        /// As the library says it: 22809 is 2.28.9.
        version: i32,
        /// What was done, with its seconds.
        steps: Vec<(&'static str, f64)>,
    },
}

impl GroupReport {
    /// Looks, on a thread that is left alone if it does not come back.
    pub(super) fn new(device: &Device) -> GroupReport {
        let (said, answer) = mpsc::sync_channel(1);
        let device = device.clone();
        thread::spawn(move || {
            // Whoever waited too long is gone.
            let _ = said.send(look(&device));
        });
        match answer.recv_timeout(PATIENCE) {
            Ok(report) => report,
            Err(RecvTimeoutError::Timeout) => {
                GroupReport::Failed(format!("no answer after {} s", PATIENCE.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                GroupReport::Failed("the thread that asked is gone".to_owned())
            }
        }
    }

    /// Whether it is there and does not work.
    pub fn is_wrong(&self) -> bool {
        matches!(self, GroupReport::Failed(_))
    }
}

fn look(device: &Device) -> GroupReport {
    let version = match nccl::version() {
        Ok(version) => version,
        Err(absent) => return GroupReport::Absent(absent.to_string()),
    };
    let mut steps = Vec::new();
    match run(device, &mut steps) {
        Ok(()) => GroupReport::Well { version, steps },
        Err(reason) => {
            let done: Vec<&str> = steps.iter().map(|step| step.0).collect();
            GroupReport::Failed(format!("{reason} (version {version}, done before: {done:?})"))
        }
    }
}

/// A group of one joins, adds up, broadcasts and is aborted; then one of two whose other member
/// never comes is given up.
fn run(device: &Device, steps: &mut Vec<(&'static str, f64)>) -> Result<(), String> {
    let mut begun = Instant::now();
    let mut done = |step| {
        steps.push((step, begun.elapsed().as_secs_f64()));
        begun = Instant::now();
    };
    let text = |error: NcclError| error.to_string();
    let id = nccl::new_id().map_err(text)?;
    let mut member = Member::join(device, &id, (0, 1), &mut || false).map_err(text)?;
    done("join");
    let numbers = [1.5_f32, -2.0, 1e-30];
    let memory = Memory::of(device, &numbers).map_err(|error| error.to_string())?;
    member.add_up(&memory, &mut || false).map_err(text)?;
    unchanged("all-reduce", &memory, &numbers)?;
    done("all-reduce");
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 % 251) as u8).collect();
    let memory = Memory::of(device, &bytes).map_err(|error| error.to_string())?;
    member.receive(&memory, &mut || false).map_err(text)?;
    unchanged("broadcast", &memory, &bytes)?;
    done("broadcast");
    drop(member);
    done("abort");
    let id = nccl::new_id().map_err(text)?;
    let until = Instant::now() + ALONE;
    match Member::join(device, &id, (0, 2), &mut || Instant::now() > until) {
        Err(NcclError::GivenUp(_)) => done("abort of a group whose other member never came"),
        Err(other) => return Err(text(other)),
        Ok(_) => return Err("a group of two formed with one member".to_owned()),
    }
    // The device must still do what it is asked for.
    unchanged("the device after an abort", &memory, &bytes)
}

/// A group of one leaves numbers as they are.
fn unchanged<T: kernels::cuda::Plain + PartialEq>(
    what: &str,
    memory: &Memory,
    expected: &[T],
) -> Result<(), String> {
    let found = memory.to_vec::<T>().map_err(|error| format!("{what}: {error}"))?;
    if found == expected { Ok(()) } else { Err(format!("{what}: other bytes came back")) }
}

#[cfg(test)]
mod tests {
    use kernels::cuda::DeviceOptions;

    use super::*;
    use crate::double::turn;

    #[test]
    fn a_group_of_one_joins_works_and_ends_on_cuda() {
        let double = turn();
        let device = Device::open(&DeviceOptions::default()).unwrap();
        let faults = double.get("faults");
        let GroupReport::Well { version, steps } = GroupReport::new(&device) else {
            panic!("{:?}", GroupReport::new(&device));
        };
        assert!(version >= 20_000);
        let names: Vec<&str> = steps.iter().map(|step| step.0).collect();
        let late = "abort of a group whose other member never came";
        assert_eq!(names, ["join", "all-reduce", "broadcast", "abort", late]);
        assert!(steps[4].1 >= ALONE.as_secs_f64(), "{steps:?}");
        assert_eq!(double.get("faults"), faults);
    }

    #[test]
    fn a_device_that_fails_is_told_on_cuda() {
        let double = turn();
        let device = Device::open(&DeviceOptions::default()).unwrap();
        double.fail_allocation(2);
        let report = GroupReport::new(&device);
        assert!(report.is_wrong(), "{report:?}");
        let GroupReport::Failed(reason) = report else { panic!("{report:?}") };
        assert!(reason.contains("no memory") && reason.ends_with("[\"join\"])"), "{reason}");
    }
}
