//! The command line resolved against the environment: sources, target, hosts and output.

use std::ffi::OsString;
use std::path::PathBuf;

use schedule::TempDir;
use tracing::level_filters::LevelFilter;
use transfer::copy::{CopyLocation, CopyOptions, CopyRequest, HostId, TargetDirectory};
use transfer::operand::{CopyOperand, SshDestination};
use transfer::report::EscapedName;

use crate::flags::low::{CopyArgs, TerminalSetting, UsageError};
use crate::output::ticker::ProgressMode;
use crate::several::MultiHostCopy;

/// Terminals, environment variables and user of this process, as far as they change the meaning of
/// the command line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Environment {
    pub(crate) stdout_is_terminal: bool,
    pub(crate) stderr_is_terminal: bool,
    /// NO_COLOR is set and not empty.
    pub(crate) no_color: bool,
    /// TERM=dumb.
    pub(crate) dumb: bool,
    /// This process runs as root.
    pub(crate) is_root: bool,
}

/// Arguments of a copy, resolved against files, environment and terminal: all that a run needs
/// before it connects.
pub(crate) struct ResolvedCopyArgs {
    pub(crate) request: CopyRequest,
    /// Hosts, indexed by [`HostId`].
    pub(crate) hosts: Vec<SshDestination>,
    /// The flags for reaching hosts.
    pub(crate) flags: CopyArgs,
    /// The operands as given, for the `start` event.
    pub(crate) sources: Vec<EscapedName>,
    pub(crate) target: EscapedName,
    /// Set if the copy is made from or to several hosts at once.
    pub(crate) several: Option<MultiHostCopy>,
    /// The operands after the expansion of braces and files of hosts.
    pub(crate) typed: CommandLineOperands,
    pub(crate) show: ProgressMode,
    pub(crate) colors: bool,
    pub(crate) level: LevelFilter,
}

/// Operands of a copy request as they can be typed, in the order of the request's places.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandLineOperands {
    pub(crate) sources: Vec<OsString>,
    /// The target, or all targets of a fan-out.
    pub(crate) targets: Vec<OsString>,
}

impl Environment {
    /// Colors of help and usage errors, before flags are parsed.
    pub(crate) fn help_colors(&self) -> clap::ColorChoice {
        if self.stdout_is_terminal && self.stderr_is_terminal && !self.no_color && !self.dumb {
            clap::ColorChoice::Always
        } else {
            clap::ColorChoice::Never
        }
    }

    fn colors(&self, when: TerminalSetting) -> bool {
        match when {
            TerminalSetting::Always => true,
            TerminalSetting::Never => false,
            TerminalSetting::Auto => self.stderr_is_terminal && !self.no_color && !self.dumb,
        }
    }

    fn show(&self, args: &CopyArgs) -> ProgressMode {
        if args.json {
            return ProgressMode::Events;
        }
        let bar = self.stderr_is_terminal && !self.dumb;
        match args.progress {
            _ if args.quiet => ProgressMode::Nothing,
            TerminalSetting::Never => ProgressMode::Nothing,
            TerminalSetting::Auto | TerminalSetting::Always if bar => ProgressMode::Bar,
            TerminalSetting::Always => ProgressMode::Lines,
            TerminalSetting::Auto => ProgressMode::Nothing,
        }
    }
}

impl ResolvedCopyArgs {
    /// Parses the operands and decides everything that depends on the environment.
    ///
    /// # Errors
    /// An operand is invalid.
    pub(crate) fn resolve(args: CopyArgs, world: &Environment) -> Result<Self, UsageError> {
        let mut hosts = Vec::new();
        let mut places = Vec::new();
        for operand in args.sources.iter().chain([&args.destination]) {
            let operand = CopyOperand::parse(operand)
                .map_err(|error| UsageError(format!("error: {error}\n")))?;
            places.push(place(operand, args.port, &mut hosts));
        }
        let target = places
            .pop()
            .unwrap_or_else(|| CopyLocation::Local(PathBuf::new()));
        let name = |operand: &OsString| EscapedName(operand.as_encoded_bytes().to_vec());
        Ok(Self {
            request: CopyRequest {
                sources: places,
                target,
                options: options(&args, &hosts, world),
            },
            hosts,
            sources: args.sources.iter().map(name).collect(),
            target: name(&args.destination),
            several: None,
            typed: CommandLineOperands {
                sources: args.sources.clone(),
                targets: vec![args.destination.clone()],
            },
            show: world.show(&args),
            colors: world.colors(args.color),
            level: match args.verbose {
                0 | 1 => LevelFilter::OFF,
                2 => LevelFilter::DEBUG,
                _ => LevelFilter::TRACE,
            },
            flags: args,
        })
    }
}

/// Resolves an operand. Operands with the same destination share a connection.
pub(crate) fn place(
    operand: CopyOperand,
    port: Option<u16>,
    hosts: &mut Vec<SshDestination>,
) -> CopyLocation {
    match operand {
        CopyOperand::Local(path) => CopyLocation::Local(path),
        CopyOperand::Remote(remote) => {
            let mut destination = remote.destination;
            destination.port = destination.port.or(port);
            let known = hosts.iter().position(|host| *host == destination);
            let host = HostId(known.unwrap_or(hosts.len()));
            if known.is_none() {
                hosts.push(destination);
            }
            CopyLocation::Remote {
                host,
                path: remote.path.0,
            }
        }
    }
}

fn options(args: &CopyArgs, hosts: &[SshDestination], world: &Environment) -> CopyOptions {
    let by_name = args.archive && !args.numeric_ids && as_root(hosts, world);
    CopyOptions {
        recursive: args.recursive || args.archive,
        preserve: args.preserve || args.archive || args.acls,
        archive: args.archive,
        inplace: args.inplace,
        temp_dir: args
            .temp_dir
            .as_ref()
            .map(|dir| TempDir::new(dir.as_encoded_bytes())),
        fsync: args.fsync,
        journal: true,
        journal_folder: None,
        afresh: args.no_resume,
        delta: args.delta,
        verify: args.verify,
        manifest: args.manifest.clone(),
        numeric_ids: args.numeric_ids,
        xattrs: args.xattrs,
        acls: args.acls,
        hard_links: args.hard_links,
        sparse: args.sparse,
        keep_dirlinks: args.keep_dirlinks,
        safe_links: args.safe_links,
        preserve_setuid: args.preserve_setuid,
        filter: None,
        settle: args.wants_longhaul() || by_name,
        may_fan_out: false,
        target_directory: TargetDirectory::default(),
        part: 0,
    }
}

/// Estimates if the receiving end may set arbitrary owners: root runs here or logs in there.
fn as_root(hosts: &[SshDestination], world: &Environment) -> bool {
    let named = |host: &SshDestination| host.user.as_deref() == Some("root");
    world.is_root || hosts.iter().any(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(sources: &[&str], destination: &str) -> CopyArgs {
        CopyArgs {
            sources: sources.iter().map(Into::into).collect(),
            destination: destination.into(),
            ..CopyArgs::default()
        }
    }

    fn resolve(args: CopyArgs) -> ResolvedCopyArgs {
        ResolvedCopyArgs::resolve(args, &Environment::default())
            .map_err(|error| error.0)
            .unwrap()
    }

    #[test]
    fn a_host_that_is_named_twice_is_one() {
        let mut args = args(&["h:a", "u@h:b", "scp://h:22/c", "d"], "h:x");
        args.port = Some(2222);
        let high = resolve(args);
        let shown: Vec<String> = high.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["h:2222", "u@h:2222", "h:22"]);
        assert_eq!(
            high.request.target,
            CopyLocation::Remote {
                host: HostId(0),
                path: b"x".to_vec()
            }
        );
        assert_eq!(high.request.sources[3], CopyLocation::Local("d".into()));
    }

    #[test]
    fn archive_is_recursive_and_preserves() {
        let high = resolve(CopyArgs {
            archive: true,
            ..args(&["a"], "h:")
        });
        let options = high.request.options;
        assert!(options.recursive && options.preserve && options.archive && !options.inplace);
    }

    #[test]
    fn progress_depends_on_terminal_and_flags() {
        let terminal = Environment {
            stderr_is_terminal: true,
            ..Environment::default()
        };
        let piped = Environment::default();
        let with = |progress| CopyArgs {
            progress,
            ..CopyArgs::default()
        };
        assert_eq!(
            terminal.show(&with(TerminalSetting::Auto)),
            ProgressMode::Bar
        );
        assert_eq!(
            terminal.show(&with(TerminalSetting::Never)),
            ProgressMode::Nothing
        );
        assert_eq!(
            piped.show(&with(TerminalSetting::Auto)),
            ProgressMode::Nothing
        );
        assert_eq!(
            piped.show(&with(TerminalSetting::Always)),
            ProgressMode::Lines
        );
        let dumb = Environment {
            dumb: true,
            ..terminal
        };
        assert_eq!(
            dumb.show(&with(TerminalSetting::Auto)),
            ProgressMode::Nothing
        );
        assert_eq!(
            dumb.show(&with(TerminalSetting::Always)),
            ProgressMode::Lines
        );
        let quiet = CopyArgs {
            quiet: true,
            ..with(TerminalSetting::Always)
        };
        assert_eq!(terminal.show(&quiet), ProgressMode::Nothing);
        let json = CopyArgs {
            json: true,
            ..quiet
        };
        assert_eq!(terminal.show(&json), ProgressMode::Events);
    }

    #[test]
    fn colors_follow_terminal_environment_and_flag() {
        let terminal = Environment {
            stderr_is_terminal: true,
            ..Environment::default()
        };
        assert!(terminal.colors(TerminalSetting::Auto));
        assert!(
            !Environment {
                no_color: true,
                ..terminal
            }
            .colors(TerminalSetting::Auto)
        );
        assert!(
            Environment {
                no_color: true,
                ..terminal
            }
            .colors(TerminalSetting::Always)
        );
        assert!(!terminal.colors(TerminalSetting::Never));
        assert!(!Environment::default().colors(TerminalSetting::Auto));
    }

    #[test]
    fn an_operand_that_cannot_be_is_a_usage_error() {
        let Err(error) =
            ResolvedCopyArgs::resolve(args(&["a"], "-oProxyCommand=x:b"), &Environment::default())
        else {
            panic!("accepted")
        };
        assert!(
            error.0.starts_with("error: -oProxyCommand=x:b: "),
            "{}",
            error.0
        );
    }
}
