//! Tools of the race: name, origin, and command for a scenario.

mod commands;

use std::path::{Path, PathBuf};

use measure::CopyDirection;
use testkit::Run;

use self::commands::*;
use crate::job::ServerKind;
use crate::settings::Settings;

/// Task for a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) way: CopyDirection,
    /// Copies one file rather than a tree.
    pub(crate) file: bool,
    /// Too small for a meaningful rate.
    pub(crate) tiny: bool,
    /// Name in $SRC, and then in $DST: `file` or `tree`.
    pub(crate) name: &'static str,
    pub(crate) compress: bool,
    /// DSCP class for the packets.
    pub(crate) dscp: Option<&'static str>,
    /// Flags that limit longhaul.
    pub(crate) held: &'static [&'static str],
    /// Tools to compare; empty for all that can run the task.
    pub(crate) among: &'static [&'static str],
    /// The path is emulated.
    pub(crate) path: bool,
    /// Congestion control of iperf3's streams, if it is not the default.
    pub(crate) reference_cc: Option<&'static str>,
    /// `longhaul serve` takes part.
    pub(crate) served: bool,
    /// A longhaul at the far end takes part.
    pub(crate) both_ends: bool,
    /// `longhaul dial` takes part.
    pub(crate) dialed: bool,
    /// `longhaul wrap` takes part.
    pub(crate) wrapped: bool,
    /// First arguments of ssh.
    pub(crate) through: &'static [&'static str],
    /// Cipher, instead of each tool's own choice.
    pub(crate) cipher: Option<&'static str>,
    /// Data is neither encrypted nor authenticated.
    pub(crate) plain: bool,
}

/// Command with placeholders (see [`crate::job::Job`]), or the reason why there is none.
type Words = Result<Vec<String>, &'static str>;

/// One tool.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// Programs that it needs; the version of the first one is reported.
    programs: &'static [&'static str],
    /// Arguments with which the first program prints its version.
    version: &'static [&'static str],
    /// Origin of the tool.
    from: &'static str,
    pub(crate) server: ServerKind,
    /// The tool is part of the quick preset.
    pub(crate) quick: bool,
    command: fn(&Ask) -> Words,
    /// Flags of this variant, after the first two words.
    more: &'static [&'static str],
}

/// All tools.
pub(crate) const TOOLS: &[Tool] = &[
    LONGHAUL,
    Tool {
        name: "scp",
        programs: &["scp", "ssh"],
        version: &["ssh", "-V"],
        from: "Debian: openssh-client",
        server: ServerKind::Stock,
        quick: true,
        command: scp,
        more: &[],
    },
    Tool {
        name: "sftp",
        programs: &["sftp", "ssh"],
        version: &["ssh", "-V"],
        from: "Debian: openssh-client",
        server: ServerKind::Stock,
        quick: false,
        command: sftp,
        more: &[],
    },
    Tool {
        name: "rsync",
        programs: &["rsync"],
        version: &["--version"],
        from: "Debian: rsync",
        server: ServerKind::Stock,
        quick: true,
        command: rsync,
        more: &[],
    },
    Tool {
        name: "tar",
        programs: &["tar", "ssh"],
        version: &["--version"],
        from: "Debian: tar openssh-client",
        server: ServerKind::Stock,
        quick: true,
        command: tar,
        more: &[],
    },
    Tool {
        name: "rclone",
        programs: &["rclone"],
        version: &["version"],
        from: "Debian: rclone",
        server: ServerKind::Stock,
        quick: false,
        command: |ask| rclone(ask, &[]),
        more: &[],
    },
    Tool {
        name: "rclone tuned",
        programs: &["rclone"],
        version: &["version"],
        from: "Debian: rclone",
        server: ServerKind::Stock,
        quick: false,
        // OpenSSH accepts requests of 255 KiB; 64 of them fill a long path once many files or
        // streams are under way. rclone's checks and hashes before and after cost round trips.
        command: |ask| {
            rclone(
                ask,
                &[
                    "--transfers=16",
                    "--checkers=16",
                    "--sftp-chunk-size=255Ki",
                    "--sftp-concurrency=256",
                    "--sftp-disable-hashcheck",
                    "--no-check-dest",
                    "--multi-thread-streams=8",
                    "--multi-thread-cutoff=32Mi",
                ],
            )
        },
        more: &[],
    },
    Tool {
        name: "lftp",
        programs: &["lftp", "ssh"],
        version: &["--version"],
        from: "Debian: lftp",
        server: ServerKind::Stock,
        quick: false,
        command: lftp,
        more: &[],
    },
    Tool {
        name: "hpnscp",
        programs: &["hpnscp", "hpnssh"],
        version: &["hpnssh", "-V"],
        from: "HPN-SSH, in LONGHAUL_PEERS/hpn-ssh",
        server: ServerKind::Stock,
        quick: false,
        command: hpnscp,
        more: &[],
    },
    Tool {
        name: "hpnscp to hpnsshd",
        programs: &["hpnscp", "hpnssh", "hpnsshd"],
        version: &["hpnssh", "-V"],
        from: "HPN-SSH, in LONGHAUL_PEERS/hpn-ssh",
        server: ServerKind::Hpn,
        quick: false,
        command: hpnscp,
        more: &[],
    },
    Tool {
        name: "hpnscp to hpnsshd, AES",
        programs: &["hpnscp", "hpnssh", "hpnsshd"],
        version: &["hpnssh", "-V"],
        from: "HPN-SSH, in LONGHAUL_PEERS/hpn-ssh",
        server: ServerKind::Hpn,
        quick: false,
        // The default is ChaCha20 on threads; this is AES-CTR on threads.
        command: |ask| {
            if !ask.served || ask.cipher.is_some() || ask.plain {
                return Err("its default is raced here");
            }
            hpnscp(&Ask {
                cipher: Some("aes128-ctr"),
                ..*ask
            })
        },
        more: &[],
    },
    Tool {
        name: "longhaul exec",
        server: ServerKind::BothEnds,
        command: |ask| with_far_end(ask, "exec"),
        ..LONGHAUL
    },
    Tool {
        // longhaul with its own choice.
        name: "longhaul auto",
        server: ServerKind::BothEnds,
        quick: false,
        command: |ask| with_far_end(ask, "auto"),
        ..LONGHAUL
    },
    Tool {
        name: "longhaul direct",
        server: ServerKind::BothEnds,
        quick: false,
        command: |ask| with_far_end(ask, "direct"),
        ..LONGHAUL
    },
    Tool {
        name: "longhaul to serve",
        server: ServerKind::Serve,
        quick: false,
        command: |ask| beside_serve(ask, longhaul),
        ..LONGHAUL
    },
    Tool {
        name: "longhaul to serve, encrypted",
        server: ServerKind::Serve,
        quick: false,
        command: |ask| match ask.plain {
            true => longhaul(&Ask {
                plain: false,
                ..*ask
            }),
            false => Err("it is where nothing else is"),
        },
        ..LONGHAUL
    },
    Tool {
        name: "scp to serve",
        programs: &["scp", "ssh"],
        version: &["ssh", "-V"],
        from: "Debian: openssh-client",
        server: ServerKind::Serve,
        quick: false,
        command: |ask| beside_serve(ask, scp),
        more: &[],
    },
    Tool {
        name: "scp by dial",
        programs: &["scp", "ssh", "longhaul"],
        version: &["ssh", "-V"],
        from: "Debian: openssh-client",
        server: ServerKind::Stock,
        quick: false,
        command: |ask| by_dial(ask, HANDED, scp),
        more: &[],
    },
    Tool {
        name: "scp by dial, carried",
        programs: &["scp", "ssh", "longhaul"],
        version: &["ssh", "-V"],
        from: "Debian: openssh-client",
        server: ServerKind::Stock,
        quick: false,
        command: |ask| by_dial(ask, CARRIED, scp),
        more: &[],
    },
    Tool {
        name: "scp by relay",
        programs: &["scp", "ssh", "longhaul"],
        version: &["ssh", "-V"],
        from: "Debian: openssh-client",
        server: ServerKind::Stock,
        quick: false,
        command: |ask| by_dial(ask, RELAYED, scp),
        more: &[],
    },
    Tool {
        name: "rsync by dial",
        programs: &["rsync", "ssh", "longhaul"],
        version: &["--version"],
        from: "Debian: rsync",
        server: ServerKind::Stock,
        quick: false,
        command: |ask| by_dial(ask, HANDED, rsync),
        more: &[],
    },
    Tool {
        name: "scp wrapped",
        programs: &["scp", "ssh", "longhaul"],
        version: &["ssh", "-V"],
        from: "Debian: openssh-client",
        server: ServerKind::Stock,
        quick: false,
        command: wrapped,
        more: &[],
    },
    Tool {
        name: "mscp",
        programs: &["mscp"],
        version: &["-h"],
        from: "mscp, in LONGHAUL_PEERS/mscp",
        server: ServerKind::Stock,
        quick: false,
        command: |ask| mscp(ask, &[]),
        more: &[],
    },
    Tool {
        name: "mscp -n 16",
        programs: &["mscp"],
        version: &["-h"],
        from: "mscp, in LONGHAUL_PEERS/mscp",
        server: ServerKind::Stock,
        quick: true,
        command: |ask| mscp(ask, &["-n", "16"]),
        more: &[],
    },
    Tool {
        name: "iperf3 -P 8",
        programs: &["iperf3"],
        version: &["--version"],
        from: "Debian: iperf3",
        server: ServerKind::Iperf,
        quick: false,
        command: iperf3,
        more: &[],
    },
];

/// First entry of [`TOOLS`].
const LONGHAUL: Tool = Tool {
    name: "longhaul",
    programs: &["longhaul"],
    version: &["--version"],
    from: "cargo build --release",
    server: ServerKind::Stock,
    quick: true,
    command: longhaul,
    more: &[],
};

/// longhaul with its own choice, and with fixed numbers of connections and channels.
macro_rules! sweep {
    ($($connections:literal x $channels:literal),*) => {
        &[LONGHAUL, $(Tool {
            name: concat!($connections, " x ", $channels),
            more: &[
                "--connections", stringify!($connections), "--channels", stringify!($channels)
            ],
            ..LONGHAUL
        }),*]
    };
}

/// Fixed settings against which longhaul's own choice is compared.
pub(crate) const SWEEP: &[Tool] = sweep![
    1 x 1, 1 x 2, 1 x 4, 2 x 1, 2 x 2, 2 x 4, 4 x 1, 4 x 2, 4 x 4, 8 x 1, 8 x 2, 8 x 4, 12 x 1,
    12 x 2, 12 x 4
];

/// Returns the folders that are searched before PATH.
pub(crate) fn folders(settings: &Settings) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let longhaul = longhaul_tests::longhaul();
    folders.extend(longhaul.parent().map(Path::to_owned));
    if let Some(peers) = &settings.peers {
        for inside in ["hpn-ssh/bin", "hpn-ssh/sbin", "mscp/bin"] {
            folders.push(peers.join(inside));
        }
    }
    folders
}

/// Finds a program in those folders, or on PATH.
pub(crate) fn find(folders: &[PathBuf], program: &str) -> Option<PathBuf> {
    folders
        .iter()
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .or_else(|| testkit::missing::find_program(program))
}

impl Tool {
    /// Returns the tool's command for a task.
    pub(crate) fn command(&self, ask: &Ask) -> Words {
        let mut words = (self.command)(ask)?;
        let at = words.len().min(2);
        words.splice(at..at, self.more.iter().map(|word| (*word).to_owned()));
        Ok(words)
    }

    /// Describes the tool for the report: its version, or what is missing.
    pub(crate) fn described(&self, folders: &[PathBuf]) -> measure::BenchmarkProgram {
        let absent = self
            .programs
            .iter()
            .find(|program| find(folders, program).is_none());
        let missing = absent.map(|program| format!("{program} is not installed ({})", self.from));
        let version = missing.is_none().then(|| self.said_version(folders));
        measure::BenchmarkProgram {
            name: self.name.to_owned(),
            version: version.flatten(),
            missing,
        }
    }

    fn said_version(&self, folders: &[PathBuf]) -> Option<String> {
        let (program, arguments) = match self.version {
            [program, arguments @ ..] if !arguments.is_empty() => (*program, arguments),
            arguments => (*self.programs.first()?, arguments),
        };
        let outcome = Run::new(find(folders, program)?).args(arguments).run();
        let text = format!("{}\n{}", outcome.out(), outcome.err());
        let line = text.lines().find(|line| !line.trim().is_empty())?;
        let line = line.split(": copy files").next().unwrap_or(line);
        Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::all;

    #[test]
    fn each_scenario_has_a_command_of_each_tool_or_a_reason() {
        for scenario in all() {
            for way in scenario.ways {
                let ask = scenario.ask(*way);
                for tool in TOOLS.iter().chain(SWEEP) {
                    match tool.command(&ask) {
                        Err(reason) => assert!(!reason.is_empty()),
                        Ok(words) => {
                            let text = words.join(" ");
                            assert!(!words.iter().any(String::is_empty), "{}: {text}", tool.name);
                            if tool.server != ServerKind::Iperf {
                                assert!(text.contains("$SRC") && text.contains("$DST"), "{text}");
                            }
                            // The -C of tar takes a folder, the -C of ssh has no argument.
                            let flags = text.replace("tar -C", "tar").replace("-C bbr", "");
                            let compresses = flags.contains(" -C") || flags.contains(" -z");
                            assert_eq!(ask.compress, compresses, "{}: {text}", tool.name);
                            let by_ssh_config = text.contains("-oIPQoS=none");
                            if ask.dscp.is_some() && !by_ssh_config {
                                assert!(text.to_lowercase().contains("cs1"), "{text}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn fixed_settings_are_flags_of_the_copy() {
        let ask = all().next().expect("a scenario").ask(CopyDirection::Up);
        let commands: Vec<String> = SWEEP
            .iter()
            .filter_map(|tool| Some(tool.command(&ask).ok()?.join(" ")))
            .collect();
        assert_eq!(commands.len(), 16);
        assert!(commands[0].starts_with("longhaul cp -q"), "{}", commands[0]);
        let last = &commands[15];
        let flags = "longhaul cp --connections 12 --channels 4 -q";
        assert!(last.starts_with(flags), "{last}");
    }

    #[test]
    fn names_are_their_own() {
        for (number, tool) in TOOLS.iter().enumerate() {
            assert!(
                TOOLS
                    .iter()
                    .skip(number + 1)
                    .all(|other| other.name != tool.name)
            );
        }
        assert_eq!(TOOLS.first().map(|tool| tool.name), Some("longhaul"));
    }
}
