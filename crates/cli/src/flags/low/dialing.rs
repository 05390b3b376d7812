//! The arguments of `longhaul dial` and `longhaul ssh-config`.

use std::ffi::OsString;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use lab::path::Dscp;

use super::{AddressFamilyArg, OPERANDS, TerminalSetting, UsageError, from_rows, usage_of};
use crate::flags::argument_error::ArgumentError;
use crate::flags::table::{dial_rows, ssh_config_rows};

/// The flags of `longhaul dial`, with host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DialArgs {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) fdpass: TerminalSetting,
    pub(crate) family: AddressFamilyArg,
    pub(crate) bind: Option<IpAddr>,
    pub(crate) timeout: Duration,
    pub(crate) attempts: u32,
    pub(crate) dscp: Dscp,
    pub(crate) congestion: Option<String>,
    /// Hosts on the way, on which relays are started.
    pub(crate) via: Option<String>,
    /// Address of the peer relay.
    pub(crate) pair: Option<String>,
    pub(crate) ssh_config: Option<PathBuf>,
}

impl Default for DialArgs {
    fn default() -> Self {
        Self {
            host: String::new(),
            port: 0,
            fdpass: TerminalSetting::Auto,
            family: AddressFamilyArg::Any,
            bind: None,
            timeout: Duration::from_secs(20),
            attempts: 1,
            dscp: Dscp::default(),
            congestion: None,
            via: None,
            pair: None,
            ssh_config: None,
        }
    }
}

/// The flags of `longhaul ssh-config`, and the hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SshConfigArgs {
    pub(crate) hosts: Vec<String>,
    pub(crate) write: bool,
    pub(crate) yes: bool,
    pub(crate) file: Option<PathBuf>,
}

pub(super) fn dial(matches: &ArgMatches) -> Result<DialArgs, UsageError> {
    let mut args: DialArgs = from_rows(dial_rows(), matches).map_err(|what| wrong(&what))?;
    let words = operands(matches).map_err(|what| wrong(&what))?;
    let [host, port] = words.as_slice() else {
        return Err(wrong(
            "no host and port given, such as: longhaul dial host 22",
        ));
    };
    if host.is_empty() {
        return Err(wrong("the host name is empty: longhaul dial HOST PORT"));
    }
    args.host.clone_from(host);
    args.port = match port.parse() {
        Ok(port) if port > 0 => port,
        _ => {
            let port = wire::escape::name(port.as_bytes());
            return Err(wrong(format!("'{port}' is not a port from 1 to 65535")));
        }
    };
    if args.via.is_some() && args.pair.is_some() {
        return Err(wrong("--via cannot be combined with --pair"));
    }
    if args.ssh_config.is_some() && args.via.is_none() {
        return Err(wrong("--ssh-config needs --via"));
    }
    Ok(args)
}

pub(super) fn ssh_config(matches: &ArgMatches) -> Result<SshConfigArgs, UsageError> {
    let usage = |what: &dyn Display| usage_of("ssh-config", "[flags] [HOST...]", what);
    let mut args: SshConfigArgs =
        from_rows(ssh_config_rows(), matches).map_err(|what| usage(&what))?;
    args.hosts = operands(matches).map_err(|what| usage(&what))?;
    // Hosts become words of a line, which quotes, a comment or a newline would end.
    let bad = |host: &&String| {
        host.is_empty()
            || host
                .chars()
                .any(|c| c.is_whitespace() || c.is_control() || "\"'#\\".contains(c))
    };
    if let Some(host) = args.hosts.iter().find(bad) {
        let host = wire::escape::name(host.as_bytes());
        return Err(usage(&format!(
            "'{host}' is not a host name or a pattern of host names"
        )));
    }
    if args.yes && !args.write {
        return Err(usage(&"--yes needs --write"));
    }
    Ok(args)
}

fn operands(matches: &ArgMatches) -> Result<Vec<String>, ArgumentError> {
    let words = matches.get_many::<OsString>(OPERANDS).unwrap_or_default();
    let text = |word: &OsString| word.clone().into_string();
    words
        .map(text)
        .collect::<Result<_, _>>()
        .map_err(|_| "an operand is not valid UTF-8".into())
}

/// A usage error of `longhaul dial`.
fn wrong(what: impl Display) -> UsageError {
    usage_of("dial", "[flags] HOST PORT", what)
}

#[cfg(test)]
mod tests {
    use super::super::{ParsedCommandLine, parse, parse_line as read};
    use super::*;

    #[test]
    fn a_host_and_a_port_with_flags_before_them() {
        let Ok(ParsedCommandLine::Dial(args)) =
            read("longhaul dial -6 --attempts 3 --fdpass never ::1 22")
        else {
            panic!("it is right")
        };
        assert_eq!((args.host.as_str(), args.port), ("::1", 22));
        assert_eq!((args.family, args.attempts), (AddressFamilyArg::V6, 3));
        assert_eq!(
            (args.fdpass, args.timeout.as_secs()),
            (TerminalSetting::Never, 20)
        );
    }

    #[test]
    fn what_is_missing_or_no_port_is_said() {
        for (line, says) in [
            ("longhaul dial host", "no host and port given"),
            ("longhaul dial host 22 23", "no host and port given"),
            ("longhaul dial host 0", "'0' is not a port"),
            ("longhaul dial host 65536", "'65536' is not a port"),
            ("longhaul dial --bind here host 22", "--bind: 'here'"),
            (
                "longhaul dial --via a --pair b:1 host 22",
                "--via cannot be combined with --pair",
            ),
            ("longhaul dial -F none host 22", "needs --via"),
            (
                "longhaul dial --connect-timeout 0 host 22",
                "--connect-timeout: '0'",
            ),
        ] {
            let why = read(line).expect_err(line);
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn a_pattern_that_would_end_its_line_is_refused() {
        for host in ["a\nProxyCommand=x", "a\"b", "", "#x"] {
            let words = ["longhaul", "ssh-config", "--", host].map(OsString::from);
            assert!(parse(words, clap::ColorChoice::Never).is_err(), "{host:?}");
        }
        assert!(matches!(
            read("longhaul ssh-config *.example !bad.example"),
            Ok(ParsedCommandLine::SshConfig(_))
        ));
        assert!(read("longhaul ssh-config --yes host").is_err());
    }
}
