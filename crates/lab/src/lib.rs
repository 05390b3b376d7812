//! An emulated long path on this machine: two network namespaces joined by TUN devices, with a
//! process between them that delays, limits and loses packets as asked.
