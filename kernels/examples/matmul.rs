//! Prints what the matrix product reaches on this machine, at every instruction set.

use std::time::Instant;

use kernels::cpu::Level;
use kernels::{Cpu, OpError, Ops, Values};

fn main() -> Result<(), OpError> {
    let mut report = String::new();
    for level in Level::available() {
        let cpu = Cpu::with_level(level);
        for (depth, columns) in [(96, 288), (1024, 3072)] {
            for rows in [1, 8, 32, 128] {
                let speed = measure(&cpu, [rows, depth, columns])?;
                report += &format!("{level:?} x[{rows},{depth}] w[{columns},{depth}]: ");
                report += &format!("{speed:.1} GFLOP/s\n");
            }
        }
    }
    std::io::Write::write_all(&mut std::io::stdout(), report.as_bytes()).ok();
    Ok(())
}

/// Floating point operations a nanosecond, over at least a tenth of a second.
fn measure(cpu: &Cpu, [rows, depth, columns]: [usize; 3]) -> Result<f64, OpError> {
    let matrix = cpu.matrix(&[Values::F32(&vec![0.5; columns * depth])], columns, depth)?;
    let (x, mut out) = (vec![0.25; rows * depth], Vec::new());
    let start = Instant::now();
    let mut runs = 0;
    while start.elapsed().as_secs_f64() < 0.1 {
        cpu.matmul(&x, &matrix, &mut out)?;
        runs += 1;
    }
    let operations = 2.0 * (rows * depth * columns) as f64 * f64::from(runs);
    Ok(operations / start.elapsed().as_nanos() as f64)
}
