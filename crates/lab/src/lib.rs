//! An emulated long path on this machine: two network namespaces connected by TUN devices, with a
//! process between them that delays, limits and loses packets as configured.
//!
//! [`path`] describes the path, [`emulator`] implements it, [`packet`] has the memory and headers
//! of its packets, and [`figures`] counts. These four are pure: time is an argument, and randomness
//! comes from the path's seed.
//!
//! The rest requires Linux. A lab consists of three processes of the same program: [`run`] is the
//! one that users start, [`inside`] is the first process of the lab's namespaces, with which all
//! others end, and [`emulate`] carries packets between the two sides.

pub mod emulator;
pub mod figures;
pub mod packet;
pub mod path;

mod error;
#[cfg(target_os = "linux")]
mod files;
mod lab;
#[cfg(target_os = "linux")]
mod outside;
#[cfg(target_os = "linux")]
mod privilege;
#[cfg(target_os = "linux")]
mod pump;
#[cfg(target_os = "linux")]
mod scratch;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod sshd;
#[cfg(target_os = "linux")]
mod world;

pub use emulator::Emulator;
pub use error::LabError;
pub use figures::PathStatistics;
pub use lab::{CANNOT_RUN, FAILED, LabSpec, NOT_FOUND};
#[cfg(target_os = "linux")]
pub use outside::{WORLD, run};
pub use packet::{MAX_FRAME, TunFrame};
pub use path::{NetworkPathError, NetworkPathSpec, PacketDirection};
#[cfg(target_os = "linux")]
pub use pump::emulate;
#[cfg(target_os = "linux")]
pub use sshd::KEY;
#[cfg(target_os = "linux")]
pub use world::{EMULATOR, inside};
