use sftp::{Attrs, MetadataFlags, OpenFlags, PutFlags, Request as R, StatusCode, Told, TreeFlags};
use wire::RemainingBytes;

use crate::testing::answers;
use crate::{Access, ExportedTree};

/// Every request in the tables of the protocol, with arguments that mean nothing.
fn every() -> Vec<R<'static>> {
    let (path, handle): (&[u8], &[u8]) = (b"/no/such", b"none");
    let (attrs, offset, len) = (Attrs::default(), 0, 1);
    let (users, groups, data): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
    let (from, to, xattrs): (&[u8], &[u8], &[u8]) = (path, path, &[0; 4]);
    let (tag, mode, flags) = (0, 0, PutFlags::FRESH);
    let none = MetadataFlags::FOLLOW;
    vec![
        R::Open {
            path,
            flags: OpenFlags::READ,
            attrs,
        },
        R::Close { handle },
        R::Read {
            handle,
            offset,
            len,
        },
        R::Write {
            handle,
            offset,
            data: b"x",
        },
        R::Lstat { path },
        R::Fstat { handle },
        R::Setstat { path, attrs },
        R::Fsetstat { handle, attrs },
        R::Opendir { path },
        R::Readdir { handle },
        R::Remove { path },
        R::Mkdir { path, attrs },
        R::Rmdir { path },
        R::Realpath { path },
        R::Stat { path },
        R::Rename { from, to },
        R::Readlink { path },
        R::Symlink {
            first: path,
            second: path,
        },
        R::PosixRename { from, to },
        R::Statvfs { path },
        R::Fstatvfs { handle },
        R::Hardlink { from, to },
        R::Fsync { handle },
        R::Lsetstat { path, attrs },
        R::Limits {},
        R::ExpandPath { path },
        R::CopyData {
            from: handle,
            from_offset: 0,
            len: 1,
            to: handle,
            to_offset: 0,
        },
        R::HomeDirectory { user: b"" },
        R::UsersGroupsById { users, groups },
        R::PutFile {
            path,
            flags,
            tag,
            mode,
            attrs,
            data,
        },
        R::GetFile { path, len },
        R::PutFileZstd {
            path,
            flags,
            tag,
            mode,
            attrs,
            len: 0,
            data,
        },
        R::GetFileZstd { path, len },
        R::ListTree {
            tree: 1,
            flags: TreeFlags::BEGIN,
            path,
        },
        R::WriteZstd {
            handle,
            offset,
            len,
            data,
        },
        R::ReadZstd {
            handle,
            offset,
            len,
        },
        R::Hash {
            handle,
            offset,
            len,
            block: 1,
            kind: b"blake3",
            key: b"",
        },
        R::Attributes { told: Told::LINKS },
        R::GetXattrs { path, flags: none },
        R::SetMetadata {
            of: path,
            flags: none,
            attrs,
            xattrs,
        },
        R::IdsByName { users, groups },
        R::ReadSparse {
            handle,
            offset,
            len,
            pack: false,
        },
        R::FsyncSet {
            paths: RemainingBytes(b""),
        },
        R::HoldRoot { path },
    ]
}

/// The dispatcher names each request twice: where its family is, and in the family.
#[test]
fn every_request_reaches_the_part_that_carries_it_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("Linux 5.6");
    let every = every();
    let unknown = b"unsupported request";
    let is_unknown = |answer: &bytes::Bytes| answer.windows(unknown.len()).any(|w| w == unknown);
    for (request, answer) in every.iter().zip(answers(&export, &every)) {
        assert!(!is_unknown(&answer), "{}", request.name());
    }
    let other = R::OtherExtension {
        name: b"none",
        body: RemainingBytes(b""),
    };
    assert!(is_unknown(&answers(&export, &[other])[0]));
    assert_eq!(
        crate::testing::code(&export, other),
        StatusCode::OP_UNSUPPORTED
    );
}
