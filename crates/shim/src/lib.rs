//! The library that `longhaul wrap` preloads into a program (LD_PRELOAD), and the rules that
//! control it.
//!
//! The library hooks some functions of the C library and passes every call on unchanged. In
//! addition ([`watch`]) it calls setsockopt() on connected sockets, and connects to another address
//! if a rule says so. It keeps no descriptor, thread or lock, allocates nothing, preserves errno,
//! and does not touch unknown sockets: docs/design/0015-wrap.md.
//!
//! In the workspace this crate is an ordinary library, which the program uses for [`rules`] and the
//! tests for the rest. The build script of `longhaul` compiles the same files with `--cfg
//! longhaul_preload` to the preloaded library; only then do the hooks have the names of the
//! functions they replace. It links nothing, so it requires no particular version of a C library.

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

/// Aborts at a panic, of which no way is known, rather than continue in a broken state.
#[cfg(longhaul_preload)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    c::give_up()
}
