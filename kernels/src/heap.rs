//! The heap of the process, which belongs to a C library.

/// Has the C library use at most so many heaps, as long as there is one thread. glibc makes eight
/// for each processor, and each keeps what was freed in it; elsewhere this does nothing.
#[cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "the heap is a C library's"))]
pub fn use_at_most(heaps: usize) {
    let heaps = heaps.clamp(1, 256) as core::ffi::c_int;
    // SAFETY: the number is one that it takes.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, heaps)
    };
    #[cfg(not(target_env = "gnu"))]
    let _ = heaps;
}

/// Has the C library give back the pages that nobody uses. glibc keeps them by itself, in a heap
/// for each thread that ever freed a large block; elsewhere this does nothing.
#[cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "the heap is a C library's"))]
pub fn give_back() {
    // SAFETY: it takes any number of bytes to keep, and other threads may allocate meanwhile.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}
