use crate::flags::flag::{Flag, Group, Scp, Takes};

/// What is kept of files beyond what -p and -a keep. Letters of rsync's stand for other things in
/// scp: these have none.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: None,
        long: Some("hard-links"),
        takes: Takes::Nothing,
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
        takes: Takes::Nothing,
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
        takes: Takes::Nothing,
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
        takes: Takes::Nothing,
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
        takes: Takes::Nothing,
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
];
