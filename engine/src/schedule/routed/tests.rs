//! Experts by pages, and the forms in which they are sent.

use super::*;
use crate::config::experts::ExpertConfig;
use kernels::ExpertChoice;

fn config(experts: usize) -> ExpertConfig {
    let choice = ExpertChoice { experts, chosen: 2, normed: true };
    ExpertConfig { choice, intermediate: 8, shared: None, is_mixture: vec![false, true, true] }
}

/// A sequence of `len` tokens in two pages.
fn cache(len: usize) -> SequenceCache {
    SequenceCache { pages: vec![3, 1], len, ..SequenceCache::default() }
}

/// The slots of positions of such a sequence.
fn slots(positions: Range<usize>) -> Vec<usize> {
    positions.filter_map(|position| cache(0).slot(position)).collect()
}

#[test]
fn experts_are_found_by_the_pages_that_hold_them() {
    let mut pages = RoutedPages::new(4, &config(300));
    let experts: Vec<u16> = (0..20 * 6).collect();
    pages.record(&slots(0..7), &experts[..7 * 6]);
    pages.record(&slots(7..20), &experts[7 * 6..]);
    let found = pages.of(&cache(20), 19).unwrap();
    assert_eq!((found.shape, &found.values[..]), ([19, 3, 2], &experts[..19 * 6]));
    // Another sequence has the same first page.
    let shared = SequenceCache { pages: vec![3], len: 16, ..SequenceCache::default() };
    assert_eq!(pages.of(&shared, 16).unwrap().values, experts[..16 * 6]);
    assert_eq!(pages.of(&cache(18), 19), None, "the last ones were not computed");
    pages.clear();
    assert_eq!(pages.of(&cache(20), 19), None);
}

#[test]
fn the_forms_are_those_that_the_recorder_reads() {
    for (experts, top) in [(256, 255_u16), (257, 256)] {
        let mut pages = RoutedPages::new(4, &config(experts));
        pages.record(&slots(0..2), &[0, 1, top, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let found = pages.of(&cache(2), 2).unwrap();
        let file = BASE64_STANDARD.decode(found.numpy(0)).unwrap();
        let width = if experts == 256 { 1 } else { 2 };
        assert_eq!((file.len() - 12 * width) % NUMPY_ALIGN, 0);
        assert_eq!(file[file.len() - 12 * width - 1], b'\n');

        let bytes = BASE64_STANDARD.decode(found.integers(1)).unwrap();
        assert_eq!(bytes[..8], [6, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(bytes.len(), 6 * 4);
        assert_eq!(found.integers(2), "");
    }
}
