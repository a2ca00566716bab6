//! The memory of the machine.

use std::fs;

/// Bytes assumed where the system does not tell.
const UNKNOWN: u64 = 8 << 30;

/// Files with the memory limit of the control group, of versions 2 and 1.
const GROUP_LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Bytes of memory that this process may use: those of the machine, or the limit of its control
/// group if that is lower.
pub(crate) fn total() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_total(&text));
    let group = GROUP_LIMITS
        .into_iter()
        .find_map(|path| fs::read_to_string(path).ok())
        // A group without a limit says `max`.
        .and_then(|text| text.trim().parse().ok());
    match (machine, group) {
        (Some(machine), Some(group)) => machine.min(group),
        (machine, group) => machine.or(group).unwrap_or(UNKNOWN),
    }
}

/// Parses the first line of `/proc/meminfo`, in bytes.
fn machine_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// A number of bytes as people read it, such as `5.8 GiB`.
pub(crate) fn in_words(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let (unit, bits) = UNITS.into_iter().find(|(_, bits)| bytes >> bits > 0).unwrap_or(UNITS[2]);
    format!("{:.1} {unit}", bytes as f64 / f64::from(1_u32 << bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_in_the_largest_unit_that_fits() {
        let told = [512, 1 << 10, 3 << 19, 5 << 30, 6_227_702_579].map(in_words);
        assert_eq!(told, ["0.5 KiB", "1.0 KiB", "1.5 MiB", "5.0 GiB", "5.8 GiB"]);
    }

    #[test]
    fn the_total_is_read_in_bytes() {
        let text = "MemTotal:       24616712 kB\nMemFree:        23000000 kB\n";
        assert_eq!(machine_total(text), Some(24_616_712 * 1024));
        assert_eq!(machine_total("MemFree: 1 kB\n"), None);
        assert!(total() > 64 << 20);
    }
}
