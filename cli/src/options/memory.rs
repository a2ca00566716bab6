//! The memory that calls may take, by default half of the machine's.

use std::path::Path;

/// The ceiling if the machine does not tell its memory, in bytes.
const UNKNOWN_MACHINE_BYTES: u64 = 4 << 30;
/// The share of the memory that calls may take: one half.
const DIVISOR: u64 = 2;

/// Half of the memory of the machine, or of the container if that has less, in bytes.
pub(crate) fn half_of_memory() -> u64 {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).ok();
    let machine = read("/proc/meminfo").as_deref().and_then(of_meminfo);
    // Version 2 of cgroups, then version 1. Without a limit there is the word `max`, or a number
    // beyond any machine.
    let container = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .into_iter()
        .filter_map(|path| read(path)?.trim().parse().ok())
        .next();
    half_of(machine, container)
}

fn half_of(machine: Option<u64>, container: Option<u64>) -> u64 {
    let whole = machine.into_iter().chain(container).min();
    whole.map_or(UNKNOWN_MACHINE_BYTES, |bytes| bytes / DIVISOR)
}

/// The bytes in the line `MemTotal: N kB`.
fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_machine_and_container_counts() {
        let machine = of_meminfo("MemFree: 1 kB\nMemTotal:       16384 kB\n");
        assert_eq!(machine, Some(16 << 20));
        assert_eq!(half_of(machine, Some(4 << 20)), 2 << 20);
        assert_eq!(half_of(machine, Some(u64::MAX)), 8 << 20);
        assert_eq!(half_of(None, None), UNKNOWN_MACHINE_BYTES);
        assert_eq!(of_meminfo("MemTotal: many kB"), None);
    }
}
