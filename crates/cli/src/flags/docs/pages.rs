//! Contents of the man pages, besides the flags.

use crate::exit;

/// A man page: the sections behind the flags.
pub(super) struct ManPage {
    /// Name of the subcommand.
    pub name: &'static str,
    pub lists_subcommands: bool,
    before_examples: Option<ManPageSection>,
    examples: CommandExamples,
    behind_examples: Option<ManPageSection>,
    exit_status: ManPageSection,
    environment: Option<ManPageSection>,
    /// Content of the last section.
    pub see_also: &'static str,
}

/// A section of a man page behind the list of flags, in the order of the page's table.
#[derive(Clone, Copy)]
pub(super) enum ManPageSection {
    /// Differences of `longhaul cp` from scp.
    Scp,
    /// Named paths of the lab.
    NamedPaths,
    Examples(CommandExamples),
    /// Commands that create certificates.
    Certificates,
    /// Exit codes of transfers.
    ExitStatus,
    /// Exit codes of a subcommand with its own.
    ExitStatusOf(&'static [(&'static str, &'static str)]),
    /// Environment variables of transfers.
    Environment,
    LabEnvironment,
    WrapEnvironment,
}

impl ManPage {
    const fn begins_with(mut self, section: ManPageSection) -> Self {
        self.before_examples = Some(section);
        self
    }

    const fn explains(mut self, section: ManPageSection) -> Self {
        self.behind_examples = Some(section);
        self
    }

    /// Replaces the exit codes and environment variables of transfers by these exit codes.
    const fn exits(mut self, codes: &'static [(&'static str, &'static str)]) -> Self {
        self.exit_status = ManPageSection::ExitStatusOf(codes);
        self.environment = None;
        self
    }

    const fn has(mut self, environment: ManPageSection) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Sections behind the flags, in their order.
    pub(super) fn sections(&self) -> impl Iterator<Item = ManPageSection> {
        let examples = (!self.examples.is_empty()).then_some(self.examples);
        [
            self.before_examples,
            examples.map(ManPageSection::Examples),
            self.behind_examples,
            Some(self.exit_status),
            self.environment,
        ]
        .into_iter()
        .flatten()
    }
}

/// The page of the program itself.
pub(super) const LONGHAUL: ManPage = ManPage {
    lists_subcommands: true,
    ..page(
        "",
        &[],
        "longhaul-cp(1), longhaul-sync(1), longhaul-plan(1), longhaul-bench(1), \
         longhaul-doctor(1), longhaul-lab(1), longhaul-relay(1), longhaul-serve(1), \
         longhaul-dial(1), longhaul-ssh-config(1), longhaul-wrap(1), scp(1), ssh(1), ssh_config(5)",
    )
};

/// The page of a subcommand with the exit codes and environment variables of transfers.
const fn page(name: &'static str, examples: CommandExamples, see_also: &'static str) -> ManPage {
    ManPage {
        name,
        lists_subcommands: false,
        before_examples: None,
        examples,
        behind_examples: None,
        exit_status: ManPageSection::ExitStatus,
        environment: Some(ManPageSection::Environment),
        see_also,
    }
}

/// The pages of subcommands.
pub(super) const SUBCOMMANDS: &[ManPage] = &[
    page(
        "cp",
        CP_EXAMPLES,
        "longhaul(1), scp(1), ssh(1), ssh_config(5)",
    )
    .begins_with(ManPageSection::Scp),
    page(
        "sync",
        SYNC_EXAMPLES,
        "longhaul(1), longhaul-cp(1), gitignore(5), rsync(1), ssh_config(5)",
    ),
    page(
        "plan",
        PLAN_EXAMPLES,
        "longhaul(1), longhaul-cp(1), longhaul-sync(1), sbatch(1), parallel(1)",
    ),
    page("bootstrap", &[], "longhaul(1), longhaul-cp(1)"),
    page(
        "lab",
        LAB_EXAMPLES,
        "longhaul(1), longhaul-cp(1), network_namespaces(7), user_namespaces(7)",
    )
    .begins_with(ManPageSection::NamedPaths)
    .exits(exit::LAB)
    .has(ManPageSection::LabEnvironment),
    page(
        "relay",
        RELAY_EXAMPLES,
        "longhaul(1), longhaul-relay.conf(5), tcp(7), socket(7), splice(2)",
    )
    .exits(exit::RELAY)
    .explains(ManPageSection::Certificates),
    page(
        "bench",
        BENCH_EXAMPLES,
        "longhaul(1), longhaul-cp(1), ssh_config(5)",
    )
    .exits(exit::BENCH),
    page(
        "doctor",
        DOCTOR_EXAMPLES,
        "longhaul(1), longhaul-cp(1), longhaul-bench(1), ssh_config(5), tcp(7)",
    )
    .exits(exit::DOCTOR),
    page(
        "serve",
        SERVE_EXAMPLES,
        "longhaul(1), longhaul-serve.conf(5), sftp-server(8), sshd_config(5)",
    )
    .exits(exit::SERVE),
    page(
        "dial",
        DIAL_EXAMPLES,
        "longhaul(1), longhaul-ssh-config(1), ssh_config(5)",
    )
    .exits(exit::DIAL),
    page(
        "ssh-config",
        SSH_CONFIG_EXAMPLES,
        "longhaul(1), longhaul-dial(1), ssh_config(5)",
    )
    .exits(exit::SSH_CONFIG),
    page(
        "wrap",
        WRAP_EXAMPLES,
        "longhaul(1), longhaul-dial(1), longhaul-relay(1), ld.so(8), tcp(7)",
    )
    .exits(exit::WRAP)
    .has(ManPageSection::WrapEnvironment),
];

/// Example commands with a sentence each.
pub(super) type CommandExamples = &'static [(&'static str, &'static str)];

const CP_EXAMPLES: CommandExamples = &[
    ("longhaul cp big.iso host:/srv/", "Upload a file."),
    (
        "longhaul cp -a host:results .",
        "Download a tree unchanged.",
    ),
    (
        "longhaul cp --json -q a b host: | jq .",
        "Upload two files and read the events.",
    ),
];

const SYNC_EXAMPLES: CommandExamples = &[
    (
        "longhaul sync -n --delete photos host:photos",
        "Show what would be copied and deleted.",
    ),
    (
        "longhaul sync --delete photos host:photos",
        "Make the folder on host equal to the one here.",
    ),
    (
        "longhaul sync --exclude '*.o' --exclude /build/ host:src src",
        "Fetch changes, without object files and the folder build at the top.",
    ),
    (
        "longhaul sync --delete --backup-dir .old site host:/srv/site",
        "Keep what is replaced or deleted in /srv/site/.old.",
    ),
];

const PLAN_EXAMPLES: CommandExamples = &[
    (
        "longhaul plan /data host:/srv/data --shards 20 -o ~/plan",
        "Cut a directory into 20 shards.",
    ),
    (
        "longhaul cp --plan ~/plan --shard 3",
        "Copy one of them, on any machine that shares ~/plan.",
    ),
    (
        "seq 0 19 | parallel -j 4 longhaul cp --plan ~/plan --shard",
        "Copy all of them with GNU parallel, four at a time.",
    ),
    (
        "longhaul plan verify ~/plan",
        "Compare every entry of the plan with the target.",
    ),
];

const LAB_EXAMPLES: CommandExamples = &[
    (
        "longhaul lab --path transatlantic --sshd -- scp big far:/tmp/",
        "Show how long scp takes across the Atlantic.",
    ),
    (
        "longhaul lab --rtt 80ms --rate 200Mbit --far 'iperf3 -s -1' -- iperf3 -c far",
        "Measure TCP on an emulated path.",
    ),
    (
        "longhaul lab --path policed-uplink --sshd --shell",
        "Try commands by hand.",
    ),
];

const SERVE_EXAMPLES: CommandExamples = &[
    (
        "longhaul serve --listen :2222",
        "Run an SSH server for your own files, with your authorized_keys.",
    ),
    (
        "longhaul serve --listen :2222 --authorized-keys friends --root ~/public --read-only",
        "Let the holders of these keys download the files in ~/public.",
    ),
    (
        "Subsystem sftp /usr/local/bin/longhaul serve --stdio",
        "In sshd_config: replace sftp-server.",
    ),
    (
        "command=\"longhaul serve --stdio --root drop --write-only\",restrict ssh-ed25519 AAAA...",
        "In authorized_keys: let this key add new files to drop, and do nothing else.",
    ),
    (
        "sftp -D \"longhaul serve --stdio --root /srv --read-only\"",
        "Try the server without a network.",
    ),
];

const DIAL_EXAMPLES: CommandExamples = &[
    (
        "scp -o ProxyUseFdpass=yes -o ProxyCommand='longhaul dial %h %p' -o IPQoS=none big host:",
        "Upload through a socket that is tuned for the path.",
    ),
    (
        "ssh -o ProxyCommand='longhaul dial --congestion bbr %h %p' host",
        "Without ProxyUseFdpass the bytes are relayed.",
    ),
    (
        "scp -o ProxyCommand='longhaul dial --via gate %h %p' big host:",
        "Go through a pair of relays, one of which is started on gate over ssh.",
    ),
];

const SSH_CONFIG_EXAMPLES: CommandExamples = &[
    (
        "longhaul ssh-config 'hpc*' backup",
        "Print the lines for these hosts.",
    ),
    (
        "longhaul ssh-config --write backup",
        "Append them to ~/.ssh/config, after asking.",
    ),
];

const DOCTOR_EXAMPLES: CommandExamples = &[
    (
        "longhaul doctor backup",
        "Measure the path to a host for 30 seconds, and name its limit.",
    ),
    (
        "longhaul doctor --time 2m --html doctor.html backup:/srv/data dump.sql",
        "Measure for longer, with the disks of both ends, and write a page of plots.",
    ),
    (
        "longhaul doctor --from copy.json",
        "Explain a copy that was made with longhaul cp --json >copy.json.",
    ),
];

const BENCH_EXAMPLES: CommandExamples = &[
    (
        "longhaul bench backup",
        "Measure for three minutes, and show what to use for which data.",
    ),
    (
        "longhaul bench --time 20m --file dump.sql --html bench.html backup",
        "Measure for longer, with your own data, and write a page of plots.",
    ),
    (
        "longhaul bench --local --json >before.json",
        "Measure this processor, to compare it with another one, or before and after an update.",
    ),
];

const WRAP_EXAMPLES: CommandExamples = &[
    (
        "longhaul wrap scp big host:",
        "Upload without the DSCP that scp sets on its packets.",
    ),
    (
        "longhaul wrap --report rsync -a data rsync://host/module",
        "Report on each connection at the end.",
    ),
    (
        "longhaul wrap --route host:80=localhost:9080 curl -T big http://host/",
        "Go through a relay: longhaul relay 9080 host:80, or a pair of relays.",
    ),
    (
        "longhaul wrap --check /usr/local/bin/some-program",
        "Check whether a program can load the library, and see what to use if it cannot.",
    ),
];

const RELAY_EXAMPLES: CommandExamples = &[
    (
        "longhaul relay 9022 host:22",
        "Make port 9022 of this machine lead to port 22 of host: scp -P 9022 file localhost:",
    ),
    (
        "ProxyCommand longhaul relay - %h:%p",
        "In ssh_config: relay every connection of ssh, scp, rsync and git, with host keys under \
         their right names.",
    ),
    (
        "longhaul relay *:9022 host:22 other:22 --allow 192.0.2.0/24",
        "Accept clients from a network, with a second target if the first does not answer.",
    ),
    (
        "longhaul relay --config /etc/longhaul/relay.toml --status 127.0.0.1:9090",
        "Run the relays in a file, with a status page.",
    ),
    (
        "longhaul relay 9022 host:22 --sockopt buffsize:1024kic+1024kos",
        "Set buffers as for DeleGate's tcprelay.",
    ),
    (
        "longhaul relay 9022 ssh://far/localhost:22",
        "Use several connections to a second relay, which is started on far over ssh, and from \
         there port 22 of far.",
    ),
    (
        "longhaul relay 9022 jp1:22 --via tokyo,osaka",
        "Go through two hosts in the middle, each with a relay that is started over ssh.",
    ),
];

/// Commands of openssl(1) that create certificates for relays, with a sentence each. A test runs
/// them.
pub(super) const CERTIFICATES: CommandExamples = &[
    (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj \
         /CN=relay.example -addext subjectAltName=DNS:relay.example -keyout relay.key -out relay.pem",
        "Create a self-signed certificate for a relay at relay.example. Start that relay with \
         --cert relay.pem --key relay.key, and pass relay.pem as --ca to relays that connect to it.",
    ),
    (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj \
         /CN=relays -keyout ca.key -out ca.pem",
        "Create a certificate authority for several relays. Pass ca.pem as --ca to relays that \
         connect, and as --client-ca to those that require client certificates. Do not distribute \
         ca.key.",
    ),
    (
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=relay.example \
         -addext subjectAltName=DNS:relay.example -keyout host.key -out host.csr",
        "Create a key for a relay or a client, and a request for its certificate. The name must be \
         in subjectAltName, as DNS:NAME or IP:ADDRESS; CN is ignored.",
    ),
    (
        "openssl x509 -req -in host.csr -CA ca.pem -CAkey ca.key -CAcreateserial -copy_extensions \
         copy -days 365 -out host.pem",
        "Sign the certificate with the authority. -copy_extensions needs OpenSSL 3.",
    ),
];
