//! The library that `longhaul wrap` has a program load before all others (LD_PRELOAD), and the
//! rules by which it acts.
//!
//! It stands before some functions of the C library, and hands every call on as it is. What it
//! does beside that ([`watch`]) is setsockopt() on a socket that was connected, and at connect()
//! another address where a rule says so. It holds no descriptor, thread or lock, allocates
//! nothing, keeps errno, and leaves alone what it does not know: docs/design/0015-wrap.md.
//!
//! As a crate of the workspace this is an ordinary library, which the program links for [`rules`]
//! and the tests for the rest. The preloaded library is made of the same files by the build script
//! of `longhaul`, with `--cfg longhaul_preload`: only then are the hooks named as what they stand
//! before. It links nothing, so that no version of a C library is asked for.

#![no_std]

#[cfg(test)]
extern crate std;

#[path = "../../sys/src/distance.rs"]
pub mod distance;
#[cfg(target_os = "linux")]
mod epolls;
pub mod ipc;
pub mod line;
mod memory;
#[cfg(not(longhaul_preload))]
pub mod program;
pub mod rules;
pub mod socks;
mod table;
pub mod waits;
mod watch;

#[cfg(target_os = "linux")]
mod c;
#[cfg(target_os = "linux")]
mod carrier;
#[cfg(target_os = "linux")]
mod connecting;
#[cfg(target_os = "linux")]
mod filter;
#[cfg(target_os = "linux")]
pub mod hooks;
#[cfg(target_os = "linux")]
mod init;
#[cfg(target_os = "linux")]
mod real;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
mod waiting;

/// Nothing here panics; whoever finds a way ends the program at once rather than go on half done.
#[cfg(longhaul_preload)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    c::give_up()
}
