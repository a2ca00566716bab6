//! A slice whose parts are written by many threads.
#![expect(unsafe_code, reason = "parts that do not overlap, handed out through a shared reference")]

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that is handed out in parts to several threads.
#[derive(Clone, Copy)]
pub(super) struct SharedSlice<'a> {
    start: *mut f32,
    len: usize,
    whole: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a mutable slice of numbers; callers of `part` promise that parts do not overlap.
unsafe impl Send for SharedSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedSlice<'_> {}

impl<'a> SharedSlice<'a> {
    pub(super) fn new(whole: &'a mut [f32]) -> SharedSlice<'a> {
        SharedSlice { start: whole.as_mut_ptr(), len: whole.len(), whole: PhantomData }
    }

    /// Returns one part.
    ///
    /// # Safety
    /// No two parts that exist at the same time may overlap.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the caller promises that parts do not overlap")]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "a part of the whole");
        // SAFETY: it lies within the slice, checked above, which outlives `self`; nobody else has
        // it, which is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Returns one part to read.
    ///
    /// # Safety
    /// No part from [`SharedSlice::part`] that exists at the same time may overlap.
    #[inline(always)]
    pub(super) unsafe fn read(&self, range: Range<usize>) -> &[f32] {
        assert!(range.start <= range.end && range.end <= self.len, "a part of the whole");
        // SAFETY: it lies within the slice, checked above, which outlives `self`; nobody writes it,
        // which is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}
