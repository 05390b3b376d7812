use crate::flags::flag::{Flag, Group, Scp, ValueKind};

/// Flags for preserving more than -p and -a do. They have no letters, since those of rsync mean
/// other things in scp.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: None,
        long: Some("hard-links"),
        takes: ValueKind::Nothing,
        help: "Files with several names stay one file",
        doc: "Files with several names stay one file, as rsync's -H has it: the first name is copied, \
              and the others are made links to it. Of names that are not among what is copied \
              nothing is known. Uploads need a server that makes hard links, as OpenSSH's does; \
              for downloads the far end has to be longhaul, since SFTP does not tell which names \
              are of one file. What cannot be a link is a copy, and the end of the output says so.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.hard_links = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("xattrs"),
        takes: ValueKind::Nothing,
        help: "Keep extended attributes",
        doc: "Keep extended attributes of files and directories, as rsync's -X does: those whose names \
              begin with `user.`, and as root also those that begin with `trusted.`, and \
              security.capability. Others of these kinds that are at the target are removed. The far \
              end has to be longhaul; what cannot be kept is told at the end.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.xattrs = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("acls"),
        takes: ValueKind::Nothing,
        help: "Keep access control lists; implies -p",
        doc: "Keep the POSIX access control lists of files and directories, and with them times and \
              permissions (-p), which they are a part of. Users and groups in them are numbers. The \
              far end has to be longhaul; what cannot be kept is told at the end.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.acls = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("sparse"),
        takes: ValueKind::Nothing,
        help: "Holes stay holes, and are neither read nor sent",
        doc: "Holes of files stay holes, and are neither read nor sent. Downloads from a server that \
              tells of none make holes of blocks of zeros, 4 KiB each. A file with holes is sent \
              whole and not as a difference to an older form; files below 128 KiB are sent with their \
              zeros.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.sparse = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("numeric-ids"),
        takes: ValueKind::Nothing,
        help: "Keep the numbers of owners, whatever they are called",
        doc: "Keep the numbers of users and groups where --archive keeps owners, and do not look for \
              those that have the same names at the other end.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.numeric_ids = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("keep-dirlinks"),
        takes: ValueKind::Nothing,
        help: "Go through symlinks to directories at the target",
        doc: "Go through symlinks to directories that stand below the target on this machine, as rsync's \
              --keep-dirlinks does. Without it a directory that meets a symlink there is an error, \
              since the symlink may be another user's or an earlier copy's; a file always replaces a \
              symlink. The target that is named on the command line may be a symlink in any case. \
              Symlinks that the same copy has made are not gone through.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.keep_dirlinks = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("safe-links"),
        takes: ValueKind::Nothing,
        help: "Do not make symlinks that lead out of the copy",
        doc: "Do not make symlinks that are absolute or lead out of what is copied, as rsync's --safe-links \
              does: those with more `..` than they lie deep below the target, and those with a `..` \
              behind a name. They are left out, and a warning at the end says how many. Without \
              --archive no symlinks are made.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.safe_links = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("preserve-setuid"),
        takes: ValueKind::Nothing,
        help: "Keep setuid, setgid and sticky bits of a server's files",
        doc: "With -p or --archive keep the setuid, setgid and sticky bits that a server tells of its files \
              and directories, and with --xattrs their file capabilities. Without it they are cleared \
              in downloads and in copies between two hosts, and a warning at the end says so; a \
              directory keeps its sticky bit as with scp. Uploads with --archive keep them in any \
              case.",
        scp: Scp::Ours,
        group: Group::Copying,
        overrides: &[],
        set: |args, _| {
            args.preserve_setuid = true;
            Ok(())
        },
    },
];
