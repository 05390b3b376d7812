use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};

/// Flags for preserving more than -p and -a do. They have no letters, since those of rsync mean
/// other things in scp.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: None,
        long: Some("hard-links"),
        takes: FlagValueKind::Nothing,
        help: "Keep hard links between the copied files",
        doc: "Keep hard links between the copied files, as rsync's -H does: the file is copied \
              under its first name, and its other names become hard links to it. Names outside the \
              copy are not considered. Uploads need a server that can make hard links, such as \
              OpenSSH's; downloads need longhaul at the far end, because SFTP does not show which \
              names belong to one file (sync asks find(1) there instead). If a link cannot be made, the file is copied, and the end \
              of the output says so.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.hard_links = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("xattrs"),
        takes: FlagValueKind::Nothing,
        help: "Keep extended attributes",
        doc: "Keep extended attributes of files and directories, as rsync's -X does: those in the \
              `user.` namespace and, for root, also those in `trusted.` and security.capability. \
              Other attributes of these kinds are removed from the target. The far end must be \
              longhaul. The end of the output lists what could not be kept.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.xattrs = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("acls"),
        takes: FlagValueKind::Nothing,
        help: "Keep access control lists; implies -p",
        doc: "Keep the POSIX access control lists of files and directories, together with times \
              and permissions (-p), which belong to them. Users and groups in the lists are copied \
              as numbers. The far end must be longhaul. The end of the output lists what could not \
              be kept.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.acls = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("sparse"),
        takes: FlagValueKind::Nothing,
        help: "Keep holes in sparse files, without reading or sending them",
        doc: "Keep holes in sparse files, without reading or sending them. If a server does not \
              report holes, downloads make a hole of each block of 4 KiB that is all zeros. A file \
              with holes is always sent whole, not as a delta; files below 128 KiB are sent with \
              their zeros. Between two hosts through this machine, zeros are read, and runs of at \
              least 64 KiB become holes.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.sparse = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("numeric-ids"),
        takes: FlagValueKind::Nothing,
        help: "Keep numeric user and group IDs instead of mapping names",
        doc: "With --archive, keep the numeric IDs of users and groups, instead of looking for \
              users and groups of the same name at the other end.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.numeric_ids = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("keep-dirlinks"),
        takes: FlagValueKind::Nothing,
        help: "Follow symbolic links to directories at the target",
        doc: "Follow symbolic links to directories below the target, as rsync's \
              --keep-dirlinks does. Without this flag it is an error if a directory is to be \
              copied where the target has a symbolic link, since the link may come from another \
              user or an earlier copy; a file always replaces a symbolic link. The target named on \
              the command line may always be a symbolic link. Links that the same copy has made \
              are never followed.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.keep_dirlinks = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("safe-links"),
        takes: FlagValueKind::Nothing,
        help: "Skip symbolic links that lead out of the copy",
        doc: "Skip symbolic links that are absolute or lead out of the copied tree, as rsync's \
              --safe-links does: those with more `..` than their depth below the target, and those \
              with a `..` after a name. A warning at the end says how many were skipped. Without \
              --archive no symbolic links are made.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.safe_links = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("preserve-setuid"),
        takes: FlagValueKind::Nothing,
        help: "Keep setuid, setgid and sticky bits of files from a server",
        doc: "With -p or --archive, keep the setuid, setgid and sticky bits of files and \
              directories that come from a server, and with --xattrs their file capabilities. \
              Without this flag they are cleared in downloads and in copies between two hosts, and \
              a warning at the end says so; directories keep their sticky bit, as with scp. \
              Uploads with --archive always keep them.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.preserve_setuid = true;
            Ok(())
        },
    },
];
