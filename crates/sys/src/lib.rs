//! Every system call that needs `unsafe`, each behind one safe function; also socket tuning,
//! receive memory and the threads that help with encryption.

mod allocator;
mod beneath;
#[cfg(target_os = "linux")]
mod descriptors;
pub mod distance;
mod exit;
mod file_id;
#[cfg(target_os = "linux")]
mod fork;
mod holes;
mod ignored;
mod mapped;
#[cfg(target_os = "linux")]
mod namespace;
mod os_words;
mod own_addresses;
mod own_machine;
mod owner;
#[cfg(target_os = "linux")]
mod priority;
mod receive;
mod segments;
mod sigbus;
mod source_block;
#[cfg(target_os = "linux")]
mod splice;
mod tcp_info;
mod terminal;
mod threads;
#[cfg(target_os = "linux")]
mod tun;
mod tune;
mod umask;
mod unix_socket;
mod usage;
mod workers;
mod xattr;

pub use allocator::give_back_memory;
pub use beneath::{SymlinkPolicy, open_beneath};
#[cfg(target_os = "linux")]
pub use descriptors::{handed_on, keep_descriptors};
pub use exit::exit_at_once;
#[cfg(target_os = "linux")]
pub use file_id::file_id;
pub use fork::{ForkSide, forget_children, fork};
pub use holes::{is_sparse, next_data, next_hole, punch_hole};
pub use ignored::ignored_signals;
pub use mapped::{IOV_MAX, MappedFileWindows, is_in_memory, send_parts, write_parts};
#[cfg(target_os = "linux")]
pub use namespace::{NamespaceKind, enter_network, unshare};
pub use os_words::{ListenAddressKind, listen_words, lookup_words, os_words};
pub use own_addresses::own_addresses;
pub use own_machine::{is_delivered_here, is_own, is_special};
pub use owner::chown_ids;
#[cfg(target_os = "linux")]
pub use priority::{after_others, before_others};
pub use receive::{append_at, read_spare};
pub use segments::ReceiveBuffers;
pub use source_block::{SourcePrefixLengths, SourcePrefixLengthsError};
#[cfg(target_os = "linux")]
pub use splice::SplicePipe;
pub use tcp_info::{TcpInfo, tcp_info};
pub use terminal::take_back_terminal;
pub use threads::{ThreadPool, ThreadWork};
#[cfg(target_os = "linux")]
pub use tun::open_tun;
pub use tune::{
    Keepalive, KeepaliveProbes, SocketBufferSizes, SocketTuning, close_orderly, connect_with_data,
    may_control_congestion, may_mark, original_destination, set_congestion_control,
    steer_newcomers,
};
pub use umask::umask;
pub use unix_socket::{connect_own_unix, listen_unix};
pub use usage::{ChildrenUsage, children_usage};
pub use workers::{HelperThreads, is_one_machine};
pub use xattr::{XattrTarget, add_xattrs, default_acl_bits, read_xattrs, replace_xattrs};
