//! The allocator's memory.

/// Gives the system back what the allocator keeps free, where it is glibc's: that would give back
/// no more than the end of the heap by itself. Every arena is walked, which takes milliseconds
/// where there was much.
#[allow(unsafe_code, reason = "malloc_trim has no safe wrapper")]
pub fn give_back_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's locks, and touches only what nobody has allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}
