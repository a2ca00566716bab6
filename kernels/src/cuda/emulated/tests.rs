//! The emulated libraries keep the promises of the real ones, and nothing else.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::cuda::check::{CHECKS, Checker};
use crate::cuda::error::CudaError;
use crate::cuda::program::source::KernelText;
use crate::cuda::{Arg, Device, DeviceOptions, FAMILIES, Grid, Kernels, Memory, Pinned};

/// Opens the emulated device. Tests run one at a time, because they share it and its settings.
pub(crate) fn device() -> (MutexGuard<'static, ()>, &'static EmulatedGpu, Device) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let emulated = load().unwrap();
    // Some tests provoke faults, and each counts its own.
    assert!(emulated.set("faults", 0));
    let device = Device::open(&DeviceOptions::default()).unwrap();
    (guard, emulated, device)
}

#[test]
fn a_device_is_opened_and_has_memory() {
    let (_guard, emulated, device) = device();
    assert_eq!((device.driver(), device.capability()), ((13, 0), (9, 0)));
    let (free, total) = device.memory().unwrap();
    let memory = Memory::of(&device, &[1_i32, 2, 3]).unwrap();
    assert_eq!(memory.to_vec::<i32>().unwrap(), [1, 2, 3]);
    assert_eq!(device.memory().unwrap(), (free - 256, total));
    drop(memory);
    assert_eq!(device.memory().unwrap().0, free);
    assert_eq!(emulated.get("faults"), 0);
}

#[test]
fn memory_runs_out() {
    let (_guard, emulated, device) = device();
    let (_, total) = device.memory().unwrap();
    assert!(Memory::new(&device, total + 1).is_err());
    assert!(emulated.set("fail_allocation", 2));
    assert!(Memory::new(&device, 16).is_ok());
    assert!(Memory::new(&device, 16).is_err());
    assert!(Memory::new(&device, 16).is_ok());
}

#[test]
fn pinned_memory_is_read_when_the_stream_is_there() {
    let (_guard, _, device) = device();
    let mut from = Pinned::<i32>::new(&device, 4).unwrap();
    let memory = Memory::new(&device, 16).unwrap();
    from.copy_from_slice(&[1, 2, 3, 4]);
    // SAFETY: this breaks the promise not to change it, which is what is tested.
    unsafe { memory.write_later(&from, 4).unwrap() };
    from[0] = 9;
    assert_eq!(memory.to_vec::<i32>().unwrap(), [9, 2, 3, 4]);
    let mut to = Pinned::<i32>::new(&device, 4).unwrap();
    // SAFETY: as above, for reading it.
    unsafe { memory.read_later(&mut to, 4).unwrap() };
    assert_ne!(to[1], 2);
    device.synchronize().unwrap();
    assert_eq!(*to, [9, 2, 3, 4]);
}

#[test]
fn kernels_are_launched_and_watched() {
    let (_guard, emulated, device) = device();
    let text = [
        include_str!("../../../cuda/base.cu"),
        include_str!("../../../cuda/gate.cu"),
        include_str!("../../../cuda/elementwise.cu"),
    ];
    let text = KernelText { family: "elementwise", text: text.join("\n"), head_dim: 64 };
    let kernels = Kernels::of(&device, &[text]).unwrap();
    let table = Memory::of(&device, &[0x3f80_u16; 64]).unwrap();
    let ids = Memory::of(&device, &[0_i32, -1]).unwrap();
    let feedback = Memory::of(&device, &[-1_i32, -1]).unwrap();
    let sampled = Memory::of(&device, &[0_i32]).unwrap();
    let out = Memory::new(&device, 2 * 64 * 2).unwrap();
    let launch = |out: &Memory, hidden: i32| {
        let args = [
            Arg::from(out),
            Arg::from(&table),
            Arg::from(&ids),
            Arg::from(&feedback),
            Arg::from(&sampled),
            Arg::Int(hidden),
        ];
        // SAFETY: the emulated driver checks every access.
        unsafe { kernels.launch("embed", Grid::line(2, 128), &args) }
    };
    launch(&out, 64).unwrap();
    let values = out.to_vec::<u16>().unwrap();
    assert!(values[..64].iter().all(|value| *value == 0x3f80));
    assert!(values[64..].iter().all(|value| *value == 0));
    // A write past the end of a memory: the context is lost, as on a device.
    let before = emulated.get("faults");
    launch(&ids, 64).unwrap();
    assert!(device.synchronize().is_err());
    assert_eq!(emulated.get("faults"), before + 1);
    assert!(Memory::new(&device, 16).is_err());
}

/// Launches `kernel` on eight elements three times, each time early if that is possible. Returns
/// the number of early launches, and the error of the device.
fn launch_thrice(
    device: &Device,
    emulated: &EmulatedGpu,
    kernel: &str,
) -> (i64, Result<(), CudaError>) {
    let kernels = Kernels::load(device, FAMILIES, 64).unwrap();
    let x = Memory::of(device, &[0x3f80_u16; 8]).unwrap();
    let other = Memory::of(device, &[0x3f80_u16; 16]).unwrap();
    let args = match kernel {
        "copy_rows" => [Arg::from(&x), Arg::from(&other), Arg::Long(8)],
        _ => [Arg::from(&x), Arg::from(&other), Arg::Int(8)],
    };
    let before = emulated.get("early_launches");
    for _ in 0..3 {
        // SAFETY: the emulated driver checks every access.
        unsafe { kernels.launch_early(kernel, Grid::line(1, 256), &args) }.unwrap();
    }
    let ended = device.synchronize();
    (emulated.get("early_launches") - before, ended)
}

#[test]
fn kernels_begin_early_behind_kernels_only() {
    let (_guard, emulated, device) = device();
    let (early, ended) = launch_thrice(&device, emulated, "sigmoid_mul");
    ended.unwrap();
    // A copy is in front of the first one.
    assert_eq!(early, 2);
    // Older drivers cannot record such launches.
    assert!(emulated.set("driver", 12_020));
    let older = Device::open(&DeviceOptions::default()).unwrap();
    let (early, ended) = launch_thrice(&older, emulated, "sigmoid_mul");
    emulated.set("driver", 13_000);
    assert!(early == 0 && ended.is_ok());
}

#[test]
fn a_kernel_without_the_wait_of_an_early_launch_is_found() {
    let (_guard, emulated, device) = device();
    let before = emulated.get("faults");
    // It runs before a step only, so it has no wait.
    let (early, ended) = launch_thrice(&device, emulated, "copy_rows");
    assert!(early > 0 && ended.is_err());
    assert_eq!(emulated.get("faults"), before + 1);
}

#[test]
fn what_is_built_in_needs_no_compiler() {
    let (_guard, _, _device) = device();
    let empty = tempfile::tempdir().unwrap();
    let libraries = Some(empty.path().to_owned());
    let device = Device::open(&DeviceOptions { libraries, ..DeviceOptions::default() }).unwrap();
    assert_eq!((&device.libraries().nvrtc, &device.libraries().cublaslt), (&None, &None));
    for head_dim in [64, 128, 256] {
        let made = Kernels::load(&device, FAMILIES, head_dim).unwrap().load_summary();
        assert_eq!((made.built_in, made.kept, made.compiled), (FAMILIES.len(), 0, 0));
    }
    let error = Kernels::load(&device, FAMILIES, 48).unwrap_err().to_string();
    let told = "heads of 48 is not built in, and libnvrtc.so.13, which would compile it, was not";
    assert!(error.contains(told), "{error}");
}

#[test]
fn texts_of_a_folder_are_compiled_in_place_of_what_is_built_in() {
    let (_guard, _, _device) = device();
    let folder = tempfile::tempdir().unwrap();
    let texts = Some(folder.path().to_owned());
    let device = Device::open(&DeviceOptions { texts, ..DeviceOptions::default() }).unwrap();
    let made = || Kernels::load(&device, FAMILIES, 64).map(|kernels| kernels.load_summary());
    let error = made().unwrap_err().to_string();
    assert!(error.contains("has no text of a kernel"), "{error}");
    let change = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), format!("{text}\n// a variant\n")).unwrap();
    };
    change("gemm_small.cu", include_str!("../../../cuda/gemm_small.cu"));
    let found = made().unwrap();
    assert_eq!((found.built_in, found.compiled), (FAMILIES.len() - 1, 1));
    change("base.cu", include_str!("../../../cuda/base.cu"));
    let found = made().unwrap();
    assert_eq!((found.built_in, found.compiled), (0, FAMILIES.len()));
}

/// Every kernel against its reference, in several orders of threads and blocks.
#[test]
fn kernels_agree_with_their_references() {
    // Of the largest size, those whose kernels differ by the size.
    let differs = |name: &str| name.starts_with("attention") || name.starts_with("rope_write");
    check_kernels(&[(64, 0), (128, 1), (16, 2), (256, 3)], |name, head_dim| {
        !LONG.contains(&name) && !is_fp8(name) && (head_dim < 256 || differs(name))
    });
}

#[test]
fn kernels_of_fp8_pages_agree_with_their_references() {
    check_kernels(&[(64, 0), (128, 1), (16, 2), (256, 3)], |name, _| {
        !LONG.contains(&name) && is_fp8(name)
    });
}

fn is_fp8(name: &str) -> bool {
    name.ends_with("_fp8")
}

#[test]
fn attention_agrees_behind_thousands_of_positions() {
    check_kernels(&[(64, 4), (128, 5), (256, 6)], |name, head_dim| {
        // Of FP8, which differs in how tiles are loaded, one size.
        name == LONG[0] || (name == LONG[1] && head_dim == 128)
    });
}

/// The checks of attention behind thousands of positions.
const LONG: [&str; 2] = ["attention_long", "attention_long_fp8"];

/// Runs those checks that are `wanted`, for sizes of heads, each with a seed.
fn check_kernels(sizes: &[(usize, i64)], wanted: impl Fn(&str, usize) -> bool) {
    let (_guard, emulated, device) = device();
    let mut wrong = Vec::new();
    for &(head_dim, seed) in sizes {
        assert!(emulated.set("seed", seed));
        let kernels = Kernels::load(&device, FAMILIES, head_dim).unwrap();
        for (name, check) in CHECKS.iter().filter(|(name, _)| wanted(name, head_dim)) {
            let mut checker = Checker::new(&kernels, head_dim, seed as u64);
            match check(&mut checker) {
                Err(error) => wrong.push(format!("{name}, heads of {head_dim}: {error}")),
                Ok(()) if checker.findings.is_empty() => {
                    wrong.push(format!("{name}: nothing done"))
                }
                Ok(()) => {
                    wrong.extend(checker.findings.iter().filter(|one| one.worst > 1.0).map(|one| {
                        format!("{name}, heads of {head_dim}: {} {}", one.what, one.worst)
                    }))
                }
            }
        }
    }
    emulated.set("seed", 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
