//! Namespaces of Linux (namespaces(7)).

use std::io;
use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// What a process can have of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Users and capabilities; the process must have one thread only.
    User,
    /// Process numbers; the next child is the first process in it.
    Processes,
    /// The tree of mounts.
    Mounts,
    /// Interfaces, addresses, routes and ports.
    Network,
}

/// Gives this process a new namespace of this kind (unshare(2)).
///
/// # Errors
/// The kernel has none, or does not grant it.
#[allow(unsafe_code, reason = "unshare has no safe wrapper")]
pub fn unshare(what: Namespace) -> io::Result<()> {
    let flag = match what {
        Namespace::User => UnshareFlags::NEWUSER,
        Namespace::Processes => UnshareFlags::NEWPID,
        Namespace::Mounts => UnshareFlags::NEWNS,
        Namespace::Network => UnshareFlags::NEWNET,
    };
    // SAFETY: only CLONE_FILES, which parts the table of descriptors, can break memory safety's
    // assumptions of other threads, and it is not among the flags.
    unsafe { rustix::thread::unshare_unsafe(flag) }.map_err(io::Error::from)
}

/// Moves the calling thread into the network namespace behind `namespace`, an open
/// /proc/PID/ns/net (setns(2)). Children started from now on are in it.
///
/// # Errors
/// It is something else, or the kernel does not grant it.
pub fn enter_network(namespace: impl AsFd) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(io::Error::from)
}
