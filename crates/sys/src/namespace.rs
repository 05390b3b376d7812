//! Linux namespaces (namespaces(7)).

use std::io;
use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Kind of Linux namespace that [`unshare`] creates for the calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// Users and capabilities; the process must have only one thread.
    User,
    /// Process IDs; the next child is the first process in the namespace.
    Processes,
    /// The tree of mounts.
    Mounts,
    /// Interfaces, addresses, routes and ports.
    Network,
}

/// Moves this process into a new namespace of this kind (unshare(2)).
///
/// # Errors
/// The kernel has no such namespaces, or does not permit it.
#[allow(unsafe_code, reason = "unshare has no safe wrapper")]
pub fn unshare(what: NamespaceKind) -> io::Result<()> {
    let flag = match what {
        NamespaceKind::User => UnshareFlags::NEWUSER,
        NamespaceKind::Processes => UnshareFlags::NEWPID,
        NamespaceKind::Mounts => UnshareFlags::NEWNS,
        NamespaceKind::Network => UnshareFlags::NEWNET,
    };
    // SAFETY: only CLONE_FILES, which separates the descriptor table, could break what other
    // threads assume about memory safety, and it is not among the flags.
    unsafe { rustix::thread::unshare_unsafe(flag) }.map_err(io::Error::from)
}

/// Moves the calling thread, and its future children, into the network namespace of `namespace`, an
/// open /proc/PID/ns/net (setns(2)).
///
/// # Errors
/// The descriptor is not a network namespace, or the kernel does not permit it.
pub fn enter_network(namespace: impl AsFd) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(io::Error::from)
}
