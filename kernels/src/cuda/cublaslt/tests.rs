//! The choice of an algorithm, on the emulated library.

use super::*;
use crate::bf16::widen;
use crate::cuda::emulated::tests::device;
use crate::random::Random;

#[test]
fn a_product_is_that_of_plain_sums_and_its_algorithm_stays() {
    let (_guard, _, device) = device();
    let (m, n, k) = (20, 24, 64);
    let mut random = Random::new(3);
    let (x, w) = (random.halves(m * k, 1.0), random.halves(n * k, 1.0));
    let (x_memory, w_memory) = (Memory::of(&device, &x).unwrap(), Memory::of(&device, &w).unwrap());
    let out = Memory::new(&device, m * n * 4).unwrap();
    let addresses =
        ProductAddresses { x: x_memory.address(), w: w_memory.address(), out: out.address() };
    let shape = ProductShape { m, n, k, f32_out: true };

    let mut library = CublasLt::new(&device).unwrap();
    let expected: Vec<f32> = (0..m * n)
        .map(|at| {
            let (x, w) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
            x.iter().zip(w).map(|(x, w)| widen(*x) * widen(*w)).sum()
        })
        .collect();
    for _ in 0..2 {
        out.fill(0xFF).unwrap();
        // SAFETY: the matrices are of the shape.
        assert!(unsafe { library.multiply(shape, addresses) }.unwrap());
        let found = out.to_vec::<f32>().unwrap();
        let near = |(found, expected): (&f32, &f32)| (found - expected).abs() < 1e-4;
        assert!(found.iter().zip(&expected).all(near));
    }
    assert_eq!(library.algorithms.len(), 1);
}

#[test]
fn shapes_that_the_library_does_not_support_have_no_algorithm() {
    let (_guard, _, device) = device();
    let memory = Memory::new(&device, 1 << 12).unwrap();
    let address = memory.address();
    let addresses = ProductAddresses { x: address, w: address, out: address };
    let mut library = CublasLt::new(&device).unwrap();
    // Rows of seven numbers are not at borders of 16 bytes.
    let shape = ProductShape { m: 4, n: 7, k: 8, f32_out: false };
    // SAFETY: the memory is larger than each of the matrices.
    assert!(!unsafe { library.multiply(shape, addresses) }.unwrap());
}
