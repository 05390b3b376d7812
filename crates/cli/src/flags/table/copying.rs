use transfer::copy::Delta;

use crate::flags::flag::{Flag, Group, Scp, ValueKind};
use crate::flags::low::Hash;

const HASHES: &[&str] = &["blake3", "sha256"];

/// Flags about selecting files and writing them.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: Some('r'),
        long: Some("recursive"),
        takes: ValueKind::Nothing,
        help: "Copy directories with all they contain",
        doc: "Copy directories with all they contain. Symbolic links are followed, as scp does; \
              --archive keeps them as links.",
        scp: Scp::Same,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.recursive = true;
            Ok(())
        },
    },
    Flag {
        short: Some('p'),
        long: Some("preserve"),
        takes: ValueKind::Nothing,
        help: "Keep modification and access times and modes",
        doc: "Keep modification times, access times and permissions of files and directories, as \
              scp does: without the setuid, setgid and sticky bits of files, which --archive \
              keeps. SFTP carries times in whole seconds; where the far end is longhaul they have \
              nanoseconds. Without it a new file has the mode of its source less the umask, and the \
              time of the copy.",
        scp: Scp::Same,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.preserve = true;
            Ok(())
        },
    },
    Flag {
        short: Some('a'),
        long: Some("archive"),
        takes: ValueKind::Nothing,
        help: "Copy trees as they are: -r and -p, and symbolic links stay links",
        doc: "Copy trees as they are: --recursive and --preserve, symbolic links are copied as \
              links, and whatever else SFTP can carry is kept: all mode bits (those of a server's \
              files without setuid, setgid and sticky, unless --preserve-setuid is given), owners \
              where permitted. Where this is root, or logs in as root, owners are who has the same name at \
              the other end, as far as both ends can tell names, and else the same number; \
              --numeric-ids makes it the number always. --hard-links, --xattrs, --acls and --sparse \
              keep more.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.archive = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("inplace"),
        takes: ValueKind::Nothing,
        help: "Write under the final name at once",
        doc: "Write under the final name at once, without a temporary file and a rename. An \
              existing file keeps its inode and its hard links. A copy that is interrupted leaves \
              a file that is partly old and partly new.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.inplace = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("fsync"),
        takes: ValueKind::Nothing,
        help: "Make each file durable before it gets its final name",
        doc: "Make each file durable before it gets its final name: the receiving side is told to \
              flush it to its disk, and has answered. Its name is durable as well where this \
              machine receives, or a longhaul at the far end; that one makes directories, \
              symlinks and hard links durable too. A stock SFTP server can be asked for the \
              contents alone. Without it the closing line says \"written \
              and renamed\": a crash of the receiving machine may still lose what its disk had \
              not saved.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.fsync = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("delta"),
        takes: ValueKind::Nothing,
        help: "Copy only what changed of files that are there, whatever the path",
        doc: "Copy only what changed of files that stand at the receiving end, whatever the path. Where \
              the far end is longhaul and there is a file of that name of 1 MiB or more, the far end \
              makes sums of its file's blocks, what is the same is copied into the new file at the \
              receiving end, and the rest is sent; where it is not longhaul, that is said, and files \
              are sent whole. Without the \
              flag that is done where it takes less time: over a path of 10 ms or more, or one \
              that moves less than 300 MB/s. What was rebuilt is compared with the source, block \
              by block, before it gets its name.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &["no-delta"],
        set: |args, _| {
            args.delta = Delta::Always;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("no-delta"),
        takes: ValueKind::Nothing,
        help: "Copy files whole, whatever is there",
        doc: "Copy files whole, whatever the receiving end has of them.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &["delta"],
        set: |args, _| {
            args.delta = Delta::Never;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("no-resume"),
        takes: ValueKind::Nothing,
        help: "Start afresh where the same copy was interrupted",
        doc: "Start afresh where the same copy was interrupted. Without it a copy goes on where it \
              was: from 16 MiB or 256 files on it keeps a journal in $XDG_STATE_HOME/longhaul \
              (~/.local/state/longhaul), and removes it when the copy is whole. With it nothing is taken over, and the \
              temporaries that the interrupted copy left are removed.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.no_resume = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("verify"),
        takes: ValueKind::Nothing,
        help: "Compare each file with its source when it is there",
        doc: "Compare each file with its source when it is there. What passes is summed here, \
              without a second read, and the file at the far end is summed there, by the first of \
              xxhsum, b3sum, openssl, sha256sum, sha256, gsha256sum, shasum and digest that the \
              far end has; where no such command may be run, the file is read back over SFTP. A \
              file that differs is named with the bytes that do, copied again up to two times, \
              and is a failure if that does not help. What is read again may come from memory and \
              not from a disk, which the closing line says.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.verify = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("manifest"),
        takes: ValueKind::Value("FILE"),
        help: "Write the sum of each file to FILE, for b3sum -c",
        doc: "Write the sum of each file that was copied to FILE on this machine, under its name at \
              the destination, for b3sum -c or, with --hash=sha256, sha256sum -c. The sums are those \
              of what passed; with --verify only files that were found right are in it. FILE gets \
              its name at the end of the copy.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, given| {
            args.manifest = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("hash"),
        takes: ValueKind::Choice("HASH", HASHES),
        help: "How the sums of --manifest are made: blake3 or sha256",
        doc: "How the sums of --manifest are made: blake3, the default, or sha256. SHA-256 takes a \
              file in order, so a file whose parts went side by side is read again on this machine \
              for it.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, given| {
            args.hash = Some(match given.text()?.as_str() {
                "sha256" => Hash::Sha256,
                _ => Hash::Blake3,
            });
            Ok(())
        },
    },
    Flag {
        short: Some('3'),
        long: Some("through"),
        takes: ValueKind::Nothing,
        help: "Copy between two remote hosts through this machine (always so)",
        doc: "Copy between two remote hosts through this machine. It is the only way in which \
              longhaul copies between two hosts, so the flag changes nothing.",
        scp: Scp::NoEffect("copies between two hosts always go through this machine"),
        group: Group::Copying,
        overrides: &[],
        set: |_, _| Ok(()),
    },
];
