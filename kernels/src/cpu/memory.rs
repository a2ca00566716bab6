//! Memory for what is large: weights, keys and values, states.
#![expect(unsafe_code, reason = "memory that is zero without being touched")]

use std::alloc::{Layout, alloc_zeroed};

use super::simd::tile::Element;
use crate::op::OpError;

/// Bytes from which on memory is asked for in huge pages. Below, it would hardly fill one.
#[cfg(target_os = "linux")]
const HUGE_PAGES_MIN: usize = 1 << 20;

/// Allocates zeros for `op`, which take memory only when they are written.
///
/// # Errors
/// [`OpError::Memory`] if there is not enough.
pub(super) fn zeros<T: Element>(op: &'static str, len: usize) -> Result<Vec<T>, OpError> {
    let bytes = len.saturating_mul(size_of::<T>());
    let layout = Layout::array::<T>(len).map_err(|_| OpError::Memory { op, bytes })?;
    if layout.size() == 0 {
        return Ok(Vec::new());
    }

    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(OpError::Memory { op, bytes });
    }
    #[cfg(target_os = "linux")]
    ask_for_huge_pages(start, bytes);

    // SAFETY: the global allocator gave `len` numbers with the layout of an array of them, and
    // bytes of zeros are numbers, of which `Element` has only `f32` and `u16`.
    Ok(unsafe { Vec::from_raw_parts(start.cast(), len, len) })
}

/// Asks for huge pages in memory that nothing has written yet. With pages of 4 KiB a processor that
/// reads weights as fast as it can waits for their addresses, too. A system without huge pages
/// refuses, which changes nothing.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: *mut u8, bytes: usize) {
    let page = rustix::param::page_size();
    let before = start.align_offset(page);
    if bytes < HUGE_PAGES_MIN || before >= bytes {
        return;
    }
    let len = (bytes - before) / page * page;
    let advice = rustix::mm::Advice::LinuxHugepage;
    // SAFETY: these are whole pages of the allocation, and the advice leaves their contents alone.
    let _ = unsafe { rustix::mm::madvise(start.add(before).cast(), len, advice) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_that_which_no_system_has_is_refused() {
        for len in [0, 1, 3 << 20] {
            let numbers = zeros::<u16>("test", len).unwrap();
            assert!(numbers.len() == len && numbers.iter().all(|number| *number == 0));
        }
        for len in [1 << 60, usize::MAX] {
            let refused = zeros::<f32>("test", len).unwrap_err();
            assert!(matches!(refused, OpError::Memory { op: "test", .. }), "{refused}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn large_memory_is_in_huge_pages_where_the_system_has_them() {
        let allowed = "/sys/kernel/mm/transparent_hugepage/enabled";
        let is_allowed = std::fs::read_to_string(allowed).is_ok_and(|on| !on.contains("[never]"));
        let mut numbers = zeros::<f32>("test", HUGE_PAGES_MIN).unwrap();
        numbers.fill(1.0);
        let held = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = numbers.as_ptr().addr();
        assert!(!is_allowed || asks_for_huge_pages(&held, start), "{held}");
    }

    /// True if the mapping around `address` has the flag `hg`.
    #[cfg(target_os = "linux")]
    fn asks_for_huge_pages(mappings: &str, address: usize) -> bool {
        let mut is_around = false;
        for line in mappings.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let ends = range.map(|(from, to)| [from, to].map(|end| usize::from_str_radix(end, 16)));
            if let Some([Ok(from), Ok(to)]) = ends {
                // The first bytes of an allocation are on a page that is its allocator's.
                is_around = (from..to).contains(&(address + (1 << 16)));
            } else if is_around && line.starts_with("VmFlags:") {
                return line.split(' ').any(|flag| flag == "hg");
            }
        }
        false
    }
}
