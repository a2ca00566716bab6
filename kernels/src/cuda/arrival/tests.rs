//! Tensors that arrived on the emulated device are taken in, move to the host, and become matrices.

use half::{bf16, f16};

use super::intake::{ArrivedTensor, ArrivingType, Intake, IntakeOrder};
use super::*;
use crate::bf16::narrow;
use crate::cuda::Device;
use crate::cuda::emulated::tests::device;
use crate::cuda::tensor::CudaMatrix;
use crate::op::{MatrixPart, Values};
use crate::random::Random;

/// A broadcast with tensors of all types, odd numbers of elements, and the orders for it.
fn broadcast() -> (Vec<u8>, Vec<IntakeOrder>) {
    use ArrivingType::{Bf16, F16, F32};
    let mut random = Random::new(3);
    let (mut bytes, mut orders) = (Vec::new(), Vec::new());
    for (index, (from, to, count)) in [
        (Bf16, ElementType::Bf16, 1),
        (F32, ElementType::Bf16, 1027),
        (F16, ElementType::Bf16, 513),
        (F32, ElementType::F32, 96),
        (F16, ElementType::F32, 33),
        (Bf16, ElementType::F32, 257),
        (Bf16, ElementType::Bf16, 0),
        (Bf16, ElementType::Bf16, 4096),
    ]
    .into_iter()
    .enumerate()
    {
        let start = bytes.len();
        for value in random.floats(count, 3.0) {
            match from {
                F32 => bytes.extend(value.to_le_bytes()),
                Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
                F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            }
        }
        let head = format!("tensor {index}\n").into_bytes();
        orders.push(IntakeOrder { bytes: start..bytes.len(), from, to, head });
    }
    (bytes, orders)
}

/// The elements of an order as the host converts them.
fn on_host(bytes: &[u8], order: &IntakeOrder) -> HostValues {
    let bytes = &bytes[order.bytes.clone()];
    let halves = || bytes.as_chunks().0.iter().map(|half| u16::from_le_bytes(*half));
    let wide: Vec<f32> = match order.from {
        ArrivingType::F32 => {
            bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        }
        ArrivingType::Bf16 => halves().map(|half| bf16::from_bits(half).to_f32()).collect(),
        ArrivingType::F16 => halves().map(|half| f16::from_bits(half).to_f32()).collect(),
    };
    match order.to {
        ElementType::F32 => HostValues::F32(wide),
        ElementType::Bf16 => HostValues::Bf16(wide.into_iter().map(narrow).collect()),
    }
}

/// BLAKE3 of the head and the elements, by the crate.
fn digest(order: &IntakeOrder, values: &HostValues) -> [u8; 32] {
    let bytes: Vec<u8> = match values {
        HostValues::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        HostValues::Bf16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    *blake3::Hasher::new().update(&order.head).update(&bytes).finalize().as_bytes()
}

fn taken_in(device: &Device, bytes: &[u8], orders: &[IntakeOrder]) -> Vec<ArrivedTensor> {
    let mut intake = Intake::new(device).unwrap();
    let memory = Memory::of(device, bytes).unwrap();
    intake.take(&memory, orders).unwrap().keep(memory)
}

#[test]
fn tensors_of_all_types_are_what_the_host_makes_of_them() {
    let (_guard, emulated, device) = device();
    let before = emulated.get("used");
    let (bytes, orders) = broadcast();
    let tensors = taken_in(&device, &bytes, &orders);
    assert_eq!(tensors.len(), orders.len());
    for turn in ["on the device", "on the host"] {
        for (order, tensor) in orders.iter().zip(&tensors) {
            let expected = on_host(&bytes, order);
            assert_eq!(tensor.values.read().unwrap(), expected, "{turn}: {order:?}");
            assert_eq!((tensor.is_finite, tensor.hash), (true, digest(order, &expected)));
        }
        let moved: usize =
            tensors.iter().map(|tensor| tensor.values.arrival().move_to_host().unwrap()).sum();
        // What arrived, and what was converted, each at once.
        assert_eq!(moved > bytes.len(), turn == "on the device");
        assert_eq!(tensors[0].values.arrival().device_bytes(), 0);
    }
    assert_eq!(emulated.get("used"), before);
    assert_eq!(emulated.get("faults"), 0);
}

#[test]
fn one_element_that_is_not_finite_is_told_of_its_tensor_alone() {
    let (_guard, _, device) = device();
    let (mut bytes, orders) = broadcast();
    for wrong in [1, 2, 5] {
        let order = &orders[wrong];
        let last = order.bytes.end;
        bytes[last - 2..last].copy_from_slice(&[0x80, 0x7F]);
        let found = taken_in(&device, &bytes, &orders);
        let blamed: Vec<usize> = (0..orders.len()).filter(|at| !found[*at].is_finite).collect();
        assert_eq!(blamed, [wrong]);
        bytes[last - 2..last].copy_from_slice(&[0, 0]);
    }
}

#[test]
fn an_order_beyond_the_memory_is_refused() {
    let (_guard, _, device) = device();
    let mut intake = Intake::new(&device).unwrap();
    let memory = Memory::of(&device, &[0_u8; 64]).unwrap();
    let order = |bytes: Range<usize>| IntakeOrder {
        bytes,
        from: ArrivingType::F32,
        to: ElementType::Bf16,
        head: Vec::new(),
    };
    for wrong in [60..68, 3..7, 0..6] {
        let refused = intake.take(&memory, &[order(0..4), order(wrong)]);
        assert!(matches!(refused, Err(CudaError::Bounds { .. })));
    }
    assert!(intake.take(&memory, &[order(2..62)]).is_ok());
}

/// A matrix of parts in both memories, as the device has it.
fn matrix(device: &Device, tensors: &[ArrivedTensor], host: &[f32], spill: bool) -> CudaMatrix {
    let runs: Vec<ArrivedValues> = tensors[7].values.runs(1024).step_by(2).collect();
    let parts = [
        MatrixPart::Device(&runs[0]),
        MatrixPart::Host(Values::F32(host)),
        MatrixPart::Device(&runs[1]),
    ];
    CudaMatrix::new(device, &parts, 3, 1024, spill).unwrap()
}

#[test]
fn arrived_parts_become_a_matrix_without_the_host_if_they_fit() {
    let (_guard, emulated, device) = device();
    let (bytes, orders) = broadcast();
    let HostValues::Bf16(values) = on_host(&bytes, &orders[7]) else { panic!("they are bf16") };
    let host = Random::new(4).floats(1024, 1.0);
    let narrowed: Vec<u16> = host.iter().map(|value| narrow(*value)).collect();
    let expected = [&values[..1024], &narrowed, &values[2048..3072]].concat();

    let tensors = taken_in(&device, &bytes, &orders);
    let before = emulated.get("bytes_to_host");
    let made = matrix(&device, &tensors, &host, false);
    assert_eq!(emulated.get("bytes_to_host"), before);
    assert_eq!(made.storage.memory().to_vec::<u16>().unwrap(), expected);

    // Without room for both, what arrived goes to the host first.
    emulated.set("fail_allocation", 1);
    let made = matrix(&device, &tensors, &host, true);
    assert_eq!(tensors[7].values.arrival().device_bytes(), 0);
    assert_eq!(made.storage.memory().to_vec::<u16>().unwrap(), expected);
    // And then the matrix itself.
    emulated.set("fail_allocation", 1);
    let made = matrix(&device, &tensors, &host, true);
    let kept: Vec<u8> = expected.iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert_eq!(made.storage.offloaded(), Some(&*kept));
    assert_eq!(emulated.get("faults"), 0);
}
