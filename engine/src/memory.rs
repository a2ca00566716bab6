//! How much memory there is.

use std::fs;

/// What is assumed where the system does not say.
const UNKNOWN: u64 = 8 << 30;

/// Bytes of memory that this process may have: those of the machine, or of the control group that
/// it runs in if that has less.
pub(crate) fn total() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine(&text));
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group = group.into_iter().find_map(|path| fs::read_to_string(path).ok());
    // A group without a limit says `max`.
    let group = group.and_then(|text| text.trim().parse().ok());
    match (machine, group) {
        (Some(machine), Some(group)) => machine.min(group),
        (machine, group) => machine.or(group).unwrap_or(UNKNOWN),
    }
}

/// The first line of `/proc/meminfo`, in bytes.
fn machine(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_in_bytes() {
        let text = "MemTotal:       24616712 kB\nMemFree:        23000000 kB\n";
        assert_eq!(machine(text), Some(24_616_712 * 1024));
        assert_eq!(machine("MemFree: 1 kB\n"), None);
        assert!(total() > 64 << 20);
    }
}
