use transfer::copy::DeltaUse;

use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};
use crate::flags::low::ManifestHash;

const HASHES: &[&str] = &["blake3", "sha256"];

/// Flags about selecting files and writing them.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: Some('r'),
        long: Some("recursive"),
        takes: FlagValueKind::Nothing,
        help: "Copy directories with everything in them",
        doc: "Copy directories with everything in them. Symbolic links are followed, as scp does; \
              --archive copies them as links. Sockets, FIFOs and devices in a directory are left out \
              with a warning that names them, as in every copy; a SOURCE that is one fails.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.recursive = true;
            Ok(())
        },
    },
    Flag {
        short: Some('p'),
        long: Some("preserve"),
        takes: FlagValueKind::Nothing,
        help: "Keep modification times, access times and permissions",
        doc: "Keep the modification times, access times and permissions of files and directories, \
              as scp does. The setuid, setgid and sticky bits of files are not kept; see \
              --archive. SFTP carries times in whole seconds; if the far end is longhaul, times \
              have nanoseconds. By default a new file has the mode of its source minus the umask, \
              and the time of the copy.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.preserve = true;
            Ok(())
        },
    },
    Flag {
        short: Some('a'),
        long: Some("archive"),
        takes: FlagValueKind::Nothing,
        help: "Copy trees unchanged: -r, -p, and keep symbolic links as links",
        doc: "Copy trees unchanged: --recursive and --preserve, symbolic links as links, and all \
              other metadata that SFTP can carry. That is all mode bits (files from a server lose \
              setuid, setgid and sticky unless --preserve-setuid is given), and owners if \
              permitted. If longhaul runs as root or logs in as root, owners are mapped by name if \
              both ends can resolve it, otherwise by numeric ID; --numeric-ids always uses the ID. \
              --hard-links, --xattrs, --acls and --sparse keep more.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.archive = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("inplace"),
        takes: FlagValueKind::Nothing,
        help: "Write directly to the final file, without a temporary",
        doc: "Write directly to the final file, without a temporary file and a rename. An existing \
              file keeps its inode and its hard links. An interrupted copy leaves a file that is \
              partly old and partly new. Where a server refuses temporary files or renames, files \
              are written like this with a warning; the refusal is remembered for a day, and then \
              tried again.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.inplace = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("temp-dir"),
        takes: FlagValueKind::Value("DIR"),
        help: "Create temporary files in DIR at the target instead of beside each file",
        doc: "Create temporary files in the existing directory DIR of the receiving end instead of \
              beside each file, for targets that admit only certain names. DIR is a path like the \
              target's, without the host, and must be on the target's file system, since finished \
              files are renamed from there. If a temporary cannot be created or renamed, the copy \
              of the file fails instead of writing it in place. To resume an interrupted copy, \
              give the same DIR. Group and access control list of a new file are those that DIR \
              gives. Symbolic links and hard links are created beside their final names.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, given| {
            args.temp_dir = Some(given.os());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("fsync"),
        takes: FlagValueKind::Nothing,
        help: "Flush each file to disk before it gets its final name",
        doc: "Flush each file to disk before it gets its final name: the receiving end is asked to \
              do so, and the copy waits for its answer. The name is durable as well if this \
              machine receives, or if the far end is longhaul, which also makes directories, \
              symbolic links and hard links durable. A stock SFTP server can flush only the \
              contents. Without this flag the closing line says \"written and renamed\": a crash \
              of the receiving machine may then lose data that its disk had not stored yet.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.fsync = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("delta"),
        takes: FlagValueKind::Nothing,
        help: "Always send only the changed parts of files that already exist",
        doc: "Always send only the changed parts of files that already exist at the receiving end, \
              whatever the path. This needs longhaul at the far end and an existing file of that \
              name of at least 1 MiB. The existing file's blocks are compared by checksum; \
              matching blocks are copied locally into the new file, and the rest is sent. If the \
              far end is not longhaul, a message says so and files are sent whole. Without this \
              flag delta is used where it saves time: on paths with a round trip of 10 ms or more, \
              or slower than 300 MB/s. The result is compared with the source, block by block, \
              before it gets its final name.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &["no-delta"],
        set: |args, _| {
            args.delta = DeltaUse::Always;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("no-delta"),
        takes: FlagValueKind::Nothing,
        help: "Send files whole, even if older versions exist",
        doc: "Send files whole, even if the receiving end has older versions of them.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &["delta"],
        set: |args, _| {
            args.delta = DeltaUse::Never;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("no-resume"),
        takes: FlagValueKind::Nothing,
        help: "Start over instead of resuming an interrupted copy",
        doc: "Start over instead of resuming an interrupted copy. By default the same command \
              resumes it: a copy of at least 16 MiB or 256 files keeps a journal in \
              $XDG_STATE_HOME/longhaul (~/.local/state/longhaul) and removes it when it completes. \
              With this flag nothing is reused, and the temporary files of the interrupted copy \
              are removed.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.no_resume = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("verify"),
        takes: FlagValueKind::Nothing,
        help: "Compare each file with its source after the transfer",
        doc: "Compare each file with its source after the transfer. This machine computes its \
              checksum from the data as it passes, without a second read. The far end computes its \
              own, with the first of xxhsum, b3sum, openssl, sha256sum, sha256, gsha256sum, shasum \
              and digest that it has; if no such command may be run, the file is read back over \
              SFTP. A file that differs is reported with the byte ranges that differ, copied again \
              up to two times, and counted as failed if that does not help. Data that is read \
              again may come from the page cache instead of the disk; the closing line says so.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.verify = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("manifest"),
        takes: FlagValueKind::Value("FILE"),
        help: "Write the checksum of each file to FILE, for b3sum -c",
        doc: "Write the checksum of each copied file to FILE on this machine, under the file's \
              name at the destination, for b3sum -c or, with --hash=sha256, sha256sum -c. The \
              checksums are those of the transferred data; with --verify only verified files are \
              listed. FILE appears under its name at the end of the copy.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, given| {
            args.manifest = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("hash"),
        takes: FlagValueKind::Choice("HASH", HASHES),
        help: "Choose the checksum of --manifest: blake3 or sha256",
        doc: "Choose the checksum of --manifest: blake3 (the default) or sha256. SHA-256 is \
              sequential: a file that was transferred in parallel parts is read again locally.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, given| {
            args.hash = Some(match given.text()?.as_str() {
                "sha256" => ManifestHash::Sha256,
                _ => ManifestHash::Blake3,
            });
            Ok(())
        },
    },
    Flag {
        short: Some('3'),
        long: Some("through-here"),
        takes: FlagValueKind::Nothing,
        help: "Copy between two remote hosts through this machine, not directly",
        doc: "Copy between two remote hosts through this machine. By default the data moves \
              directly from host to host if longhaul is on both (or --bootstrap sends it) and one \
              can connect to the other; otherwise it is streamed through this machine. The \
              closing line says which way was used, and why.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.through_here = true;
            Ok(())
        },
    },
];
