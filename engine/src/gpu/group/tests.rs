//! Groups of one, on an emulated GPU.

use kernels::cuda::DeviceOptions;

use super::*;
use crate::emulated::exclusive_gpu;

#[test]
fn a_group_of_one_joins_works_and_ends() {
    let emulated = exclusive_gpu();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let faults = emulated.get("faults");
    let GroupReport::Well { version, steps } = GroupReport::new(&device) else {
        panic!("{:?}", GroupReport::new(&device));
    };
    assert!(version >= 20_000);
    let names: Vec<&str> = steps.iter().map(|step| step.0).collect();
    let late = "abort of a group whose other member never came";
    assert_eq!(names, ["join", "all-reduce", "broadcast", "abort", late]);
    assert!(steps[4].1 >= JOIN_TIMEOUT.as_secs_f64(), "{steps:?}");
    assert_eq!(emulated.get("faults"), faults);
}

#[test]
fn a_device_that_fails_is_told() {
    let emulated = exclusive_gpu();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    emulated.fail_allocation(2);
    let report = GroupReport::new(&device);
    assert!(report.is_wrong(), "{report:?}");
    let GroupReport::Failed(reason) = report else { panic!("{report:?}") };
    assert!(reason.contains("no memory") && reason.ends_with("[\"join\"])"), "{reason}");
}
