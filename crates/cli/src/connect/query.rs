use transfer::config::{AddressFamily, HostConfigQuery};
use transfer::operand::SshDestination;

use crate::flags::low::{AddressFamilyArg, CopyArgs, TerminalSetting};

/// The query to ssh_config for a host: its operand, and the flags that override the files.
pub(super) fn query(flags: &CopyArgs, host: &SshDestination) -> HostConfigQuery {
    HostConfigQuery {
        host: host.host.clone(),
        user: host.user.clone(),
        port: host.port,
        file: flags.config.clone(),
        options: flags.options.clone(),
        identities: flags.identities.clone(),
        jump: flags.jump.clone(),
        cipher: flags.ciphers.clone(),
        compression: flags.compress == Some(TerminalSetting::Always),
        family: match flags.family {
            AddressFamilyArg::Any => AddressFamily::Any,
            AddressFamilyArg::V4 => AddressFamily::Inet,
            AddressFamilyArg::V6 => AddressFamily::Inet6,
        },
        forward_agent: flags.forward_agent,
        batch: flags.batch,
        quiet: flags.quiet,
        ssh: None,
    }
}

/// The query to ssh_config for a ProxyJump host: only the file counts, as for `ssh -J`.
pub(super) fn hop(flags: &CopyArgs, host: &SshDestination) -> HostConfigQuery {
    HostConfigQuery {
        host: host.host.clone(),
        user: host.user.clone(),
        port: host.port,
        file: flags.config.clone(),
        batch: flags.batch,
        quiet: flags.quiet,
        ..HostConfigQuery::default()
    }
}
