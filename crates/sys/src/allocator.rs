//! Returns free heap memory to the system.

/// Returns the free memory of glibc's allocator to the system (malloc_trim(3)). By itself glibc
/// returns only the end of the heap. The call walks every arena, which takes milliseconds after a
/// large allocation was freed.
#[allow(unsafe_code, reason = "malloc_trim has no safe wrapper")]
pub fn give_back_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes the allocator's locks and touches only memory that is not
    // allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}
