//! Causes of a slow path, and who can change what about each.

use std::fmt;

use serde::Serialize;

/// Cause that limits a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitCause {
    /// Large packets vanish on the way.
    MtuBlackHole,
    /// Something on the way resets or drops established connections.
    Middlebox,
    /// The server's SSH channel window.
    ChannelWindow,
    /// The server's TCP receive buffer.
    FarReceiveBuffer,
    /// A TCP receive buffer of the server, or of a relay there, that does not grow.
    FixedReceiveBuffer,
    /// This machine's TCP send buffer.
    SendBuffer,
    /// The server's TCP send buffer.
    FarSendBuffer,
    /// This machine's TCP receive buffer.
    ReceiveBuffer,
    /// TCP window scaling was removed on the way.
    NoWindowScaling,
    /// Selective acknowledgements were removed on the way, and packets are lost.
    NoSack,
    /// Random packet loss.
    Loss,
    /// Other traffic fills the path.
    Congestion,
    /// A policer drops what exceeds a rate.
    Policer,
    /// A policer drops what exceeds a rate of each connection.
    FlowPolicer,
    /// A shaper that slows down after a burst.
    Shaper,
    /// The network slows down a DSCP class.
    MarkedClass,
    /// Packets overtake each other.
    Reordering,
    /// The network limits each connection.
    FlowCap,
    /// The server's disk.
    FarDisk,
    /// This machine's disk.
    LocalDisk,
    /// The server's processor.
    FarCpu,
    /// This machine's processor.
    LocalCpu,
    /// The cipher is slow because AES is not offered.
    SlowCipher,
    /// The server's cgroup or virtual machine is throttled.
    FarThrottled,
    /// This machine's cgroup or virtual machine is throttled.
    Throttled,
    /// The path is slower than the user expects.
    BelowExpectation,
    /// Each small file waits for round trips.
    SmallFiles,
    /// The SFTP server answers slowly.
    SlowAnswers,
    /// The server admits one channel on a connection.
    OneChannel,
    /// The server refuses parallel logins.
    LoginLimit,
    /// A step of the login is slow.
    SlowLogin,
    /// A queue on the path delays everything else.
    Bufferbloat,
    /// The return path has no room for acknowledgements.
    ReturnPath,
    /// TCP timestamps were removed on the way.
    NoTimestamps,
    /// Segments are smaller than Ethernet's.
    SmallSegments,
}

/// The person who can apply a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RemedyActor {
    /// The user of longhaul.
    Longhaul,
    /// The user of OpenSSH's programs.
    OpenSsh,
    /// The administrator of this machine.
    Here,
    /// The administrator of the server.
    Server,
    /// The operator of the network.
    Network,
}

/// Change that removes a cause, and who can make it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// The person who can apply it.
    pub by: RemedyActor,
    /// The change, an imperative clause.
    pub text: String,
}

/// Text, and the default remedies, of each cause.
type CauseRow = (
    LimitCause,
    &'static str,
    &'static [(RemedyActor, &'static str)],
);

use RemedyActor::{Here, Longhaul, Network, OpenSsh, Server};

const MORE: (RemedyActor, &str) = (
    Longhaul,
    "use longhaul cp, which opens as many connections as pay",
);

const ROWS: &[CauseRow] = &[
    (
        LimitCause::MtuBlackHole,
        "large packets vanish on the way (path MTU black hole)",
        &[
            (Here, "sysctl -w net.ipv4.tcp_mtu_probing=1"),
            (
                Network,
                "let ICMP \"fragmentation needed\" pass, or clamp the MSS to the tunnel's MTU",
            ),
        ],
    ),
    (
        LimitCause::Middlebox,
        "something on the way breaks established connections",
        &[
            (
                OpenSsh,
                "set ServerAliveInterval 15 for this host in ~/.ssh/config",
            ),
            (
                Network,
                "look for a firewall or NAT with a short timeout or a byte limit",
            ),
        ],
    ),
    (
        LimitCause::ChannelWindow,
        "the server's SSH channel window",
        &[
            (
                Longhaul,
                "use longhaul cp, which opens several channels; a longhaul at the server has larger windows",
            ),
            (
                OpenSsh,
                "run several scp or sftp at once; one cannot exceed a window per round trip",
            ),
        ],
    ),
    (
        LimitCause::FarReceiveBuffer,
        "the server's TCP receive buffer",
        &[MORE],
    ),
    (
        LimitCause::FixedReceiveBuffer,
        "a TCP receive buffer of fixed size at the server",
        &[
            MORE,
            (
                Server,
                "remove the fixed SO_RCVBUF of the program or relay that accepts the connection, so that the kernel adapts the buffer",
            ),
        ],
    ),
    (
        LimitCause::SendBuffer,
        "this machine's TCP send buffer",
        &[MORE],
    ),
    (
        LimitCause::FarSendBuffer,
        "the server's TCP send buffer",
        &[MORE],
    ),
    (
        LimitCause::ReceiveBuffer,
        "this machine's TCP receive buffer",
        &[MORE],
    ),
    (
        LimitCause::NoWindowScaling,
        "missing TCP window scaling, which leaves 64 KiB per round trip",
        &[
            MORE,
            (
                Network,
                "find the device that removes TCP's window scale option from SYN packets",
            ),
            (Server, "check that net.ipv4.tcp_window_scaling is 1"),
        ],
    ),
    (
        LimitCause::NoSack,
        "packet loss without selective acknowledgements",
        &[
            MORE,
            (
                Network,
                "find the device that removes TCP's SACK option from SYN packets",
            ),
            (Server, "check that net.ipv4.tcp_sack is 1"),
        ],
    ),
    (
        LimitCause::Loss,
        "random packet loss",
        &[
            MORE,
            (
                Here,
                "sysctl -w net.ipv4.tcp_congestion_control=bbr for uploads",
            ),
            (
                Server,
                "sysctl -w net.ipv4.tcp_congestion_control=bbr for downloads",
            ),
            (Network, "look for the link that loses packets"),
        ],
    ),
    (
        LimitCause::Congestion,
        "other traffic on the path",
        &[(
            Network,
            "find the traffic that shares the link, or give this transfer a share of it",
        )],
    ),
    (
        LimitCause::Policer,
        "a policer that drops packets above its rate",
        &[(
            Network,
            "ask for the policer's rate and burst, and for a shaper in place of it",
        )],
    ),
    (
        LimitCause::FlowPolicer,
        "a policer for each connection, which drops packets above its rate",
        &[
            MORE,
            (
                Network,
                "ask for the policer's rate per flow, and for a shaper in place of it",
            ),
        ],
    ),
    (
        LimitCause::Shaper,
        "a shaper that slows down after a burst",
        &[(Network, "ask for the shaper's rate and burst")],
    ),
    (
        LimitCause::MarkedClass,
        "a DSCP class that the network slows down",
        &[
            (
                OpenSsh,
                "set IPQoS none in ssh_config, and in sshd_config for downloads",
            ),
            (
                Longhaul,
                "longhaul sends unmarked packets: leave --dscp off",
            ),
            (Network, "stop policing this class, or clear the mark"),
        ],
    ),
    (
        LimitCause::Reordering,
        "packets that overtake each other on the way",
        &[MORE, (Network, "balance load by flow and not by packet")],
    ),
    (
        LimitCause::FlowCap,
        "the network limits each connection",
        &[MORE, (Network, "ask for the limit per flow")],
    ),
    (
        LimitCause::FarDisk,
        "the server's disk",
        &[(Server, "look at the disk's utilization (iostat -x 1)")],
    ),
    (
        LimitCause::LocalDisk,
        "this machine's disk",
        &[(Here, "look at the disk's utilization (iostat -x 1)")],
    ),
    (
        LimitCause::FarCpu,
        "the server's processor",
        &[
            MORE,
            (
                OpenSsh,
                "set Ciphers aes128-gcm@openssh.com and Compression no for this host in \
                 ~/.ssh/config",
            ),
            (Server, "look for other load on the server (top)"),
        ],
    ),
    (
        LimitCause::LocalCpu,
        "this machine's processor",
        &[
            MORE,
            (
                OpenSsh,
                "set Ciphers aes128-gcm@openssh.com and Compression no for this host in \
                 ~/.ssh/config",
            ),
        ],
    ),
    (
        LimitCause::SlowCipher,
        "the cipher",
        &[
            (Longhaul, "longhaul bench HOST finds the fastest cipher"),
            (
                OpenSsh,
                "set Ciphers aes128-gcm@openssh.com,aes128-ctr for this host in ~/.ssh/config",
            ),
            (
                Server,
                "allow aes128-gcm@openssh.com in sshd_config (Ciphers)",
            ),
        ],
    ),
    (
        LimitCause::FarThrottled,
        "the processor quota of the server",
        &[(
            Server,
            "raise the processor quota of sshd's cgroup or of the virtual machine",
        )],
    ),
    (
        LimitCause::Throttled,
        "the processor quota of this machine",
        &[(
            Here,
            "raise the processor quota of this cgroup or virtual machine",
        )],
    ),
    (
        LimitCause::BelowExpectation,
        "a path that carries less than expected",
        &[(Network, "ask which link or contract has this rate")],
    ),
    (
        LimitCause::SmallFiles,
        "each small file waits for round trips",
        &[
            (Longhaul, "use longhaul cp, which sends many files at once"),
            (OpenSsh, "send one archive: tar c DIR | ssh HOST tar x"),
        ],
    ),
    (
        LimitCause::SlowAnswers,
        "the SFTP server answers slowly",
        &[
            MORE,
            (
                Server,
                "look at the file system of the target (NFS, quota, antivirus)",
            ),
        ],
    ),
    (
        LimitCause::OneChannel,
        "the server admits one channel per connection",
        &[(Server, "raise MaxSessions in sshd_config")],
    ),
    (
        LimitCause::LoginLimit,
        "the server refuses parallel logins",
        &[
            (
                Longhaul,
                "give --connections with the number that is admitted",
            ),
            (
                Server,
                "raise MaxStartups and PerSourceMaxStartups in sshd_config",
            ),
        ],
    ),
    (
        LimitCause::SlowLogin,
        "a slow step of the login",
        &[
            (
                Server,
                "look at UseDNS, GSSAPIAuthentication, PAM modules and the shell's start-up files",
            ),
            (
                OpenSsh,
                "set GSSAPIAuthentication no for this host in ~/.ssh/config",
            ),
        ],
    ),
    (
        LimitCause::Bufferbloat,
        "a queue on the path that delays everything else",
        &[
            (Longhaul, "use longhaul cp --background"),
            (Network, "use FQ-CoDel or CAKE at the bottleneck"),
        ],
    ),
    (
        LimitCause::ReturnPath,
        "a return path without room for acknowledgements",
        &[
            (
                Network,
                "find what fills the opposite direction, or give acknowledgements priority there",
            ),
            (
                Longhaul,
                "use longhaul cp --background for transfers in the opposite direction",
            ),
        ],
    ),
    (
        LimitCause::NoTimestamps,
        "missing TCP timestamps, without which TCP measures round trips less often",
        &[
            (
                Network,
                "find the device that removes TCP's timestamp option from SYN packets",
            ),
            (Server, "check that net.ipv4.tcp_timestamps is 1"),
        ],
    ),
    (
        LimitCause::SmallSegments,
        "segments that are smaller than Ethernet's, as in a tunnel",
        &[(
            Network,
            "no change is needed: a tunnel costs a few percent of the rate",
        )],
    ),
];

impl fmt::Display for LimitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().map_or("", |row| row.1))
    }
}

impl LimitCause {
    /// Returns all causes, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.0)
    }

    /// Returns true for a property of the path that a healthy one may have.
    pub fn is_note(self) -> bool {
        matches!(
            self,
            Self::NoTimestamps | Self::SmallSegments | Self::SmallFiles
        )
    }

    /// Returns the settings of ssh_config that remove or soften the cause for OpenSSH's programs.
    pub fn ssh_config(self) -> &'static [&'static str] {
        match self {
            Self::MarkedClass => &["IPQoS none"],
            Self::Middlebox => &["ServerAliveInterval 15", "TCPKeepAlive yes"],
            Self::SlowCipher => &["Ciphers ^aes128-gcm@openssh.com"],
            Self::FarCpu | Self::LocalCpu | Self::Throttled | Self::FarThrottled => {
                &["Ciphers ^aes128-gcm@openssh.com", "Compression no"]
            }
            Self::SlowLogin => &["GSSAPIAuthentication no"],
            _ => &[],
        }
    }

    fn row(self) -> Option<&'static CauseRow> {
        ROWS.iter().find(|row| row.0 == self)
    }

    /// Returns the remedies that do not depend on figures.
    pub fn remedies(self) -> Vec<Remedy> {
        let rows = self.row().map_or(&[][..], |row| row.2);
        rows.iter()
            .map(|(by, text)| Remedy {
                by: *by,
                text: (*text).to_owned(),
            })
            .collect()
    }
}

impl RemedyActor {
    /// Returns the heading for remedies of this kind.
    pub fn heading(self) -> &'static str {
        match self {
            Longhaul => "longhaul",
            OpenSsh => "OpenSSH",
            Here => "this machine",
            Server => "server",
            Network => "network",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_text_and_a_remedy() {
        for cause in LimitCause::all() {
            assert!(!cause.to_string().is_empty() && !cause.remedies().is_empty());
        }
        // The enum's last variant is a row, so that the table is not shorter than the enum.
        assert_eq!(
            LimitCause::all().count(),
            LimitCause::SmallSegments as usize + 1
        );
    }
}
