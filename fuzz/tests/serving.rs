//! Fuzzes requests to `longhaul serve` in any order: each request gets one answer, in its turn, and
//! nothing outside the root is touched.

use std::fs;
use std::path::Path;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use fuzz::{mutate, operate};
use serve::{Access, AnswerChunk, ExportedTree, SftpServer};
use sftp::{
    Attrs, ExpectedEntry, Init, MessageSplitter, MessageSplitterOutput, MetadataFlags, OpenFlags,
    PutFlags, Request, RequestId, Response, Told, TreeFlags, frame,
};
use wire::RemainingBytes;

const NAMES: [&[u8]; 12] = [
    b"a",
    b"b",
    b"dir",
    b"dir/c",
    b"out",
    b"out/file",
    b"..",
    b"../file",
    b"/",
    b"dir/../../file",
    b"",
    b"a\0b",
];
const HANDLES: [&[u8]; 5] = [
    b"\0\0\0\0",
    b"\0\0\0\x01",
    b"\0\0\0\x02",
    b"\xff\xff\xff\xff",
    b"x",
];
/// A list of one extended attribute.
const XATTRS: &[u8] = b"\0\0\0\x01\0\0\0\x06user.a\0\0\0\x01x";
/// Paths, of which the last two are invalid and outside the root.
const PATHS: &[u8] = b"\0\0\0\x01a\0\0\0\x03dir\0\0\0\0\0\0\0\x03a\0b\0\0\0\x07../file";
/// 900 times the letter a: one zstd frame with one block and its content size (RFC 8878).
const PACKED: [u8; 11] = [
    0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x84, 0x02, 0x23, 0x1c, 0x00, b'a',
];
/// Larger holes would take long to copy.
const LARGE: u64 = 100_000;

fn request<'a>(u: &mut Unstructured<'_>, data: &'a [u8]) -> Result<Request<'a>> {
    let path = *u.choose(&NAMES)?;
    let to = *u.choose(&NAMES)?;
    let handle = *u.choose(&HANDLES)?;
    let offset = u.int_in_range(0..=LARGE)?;
    let attrs = Attrs {
        size: u.arbitrary::<bool>()?.then_some(offset),
        owner: None,
        permissions: u.arbitrary::<bool>()?.then_some(0o700),
        times: u.arbitrary::<bool>()?.then_some((1, 2)),
        nanoseconds: u.arbitrary::<bool>()?.then_some((3, 4)),
        link: None,
        expected: u.arbitrary::<bool>()?.then_some(ExpectedEntry::TEMPORARY),
    };
    Ok(match u.int_in_range(0..=48)? {
        0..=3 => Request::Open {
            path,
            flags: OpenFlags(u.int_in_range(0..=0x3f)?),
            attrs: Attrs::with_permissions(0o700),
        },
        4 => Request::Close { handle },
        5 => Request::Read {
            handle,
            offset,
            len: u.arbitrary()?,
        },
        6 => Request::Write {
            handle,
            offset,
            data,
        },
        7 => Request::Lstat { path },
        8 => Request::Stat { path },
        9 => Request::Setstat { path, attrs },
        10 => Request::Lsetstat { path, attrs },
        11 => Request::Fsetstat { handle, attrs },
        12 => Request::Opendir { path },
        13 => Request::Readdir { handle },
        14 => Request::Remove { path },
        15 => Request::Mkdir { path, attrs },
        16 => Request::Rmdir { path },
        17 => Request::Realpath { path },
        18 => Request::Rename { from: path, to },
        19 => Request::PosixRename { from: path, to },
        20 => Request::Symlink {
            first: to,
            second: path,
        },
        21 => Request::Hardlink { from: path, to },
        22 => Request::CopyData {
            from: handle,
            from_offset: offset,
            len: u.int_in_range(0..=LARGE)?,
            to: u.choose(&HANDLES)?,
            to_offset: u.int_in_range(0..=LARGE)?,
        },
        23 => Request::UsersGroupsById {
            users: data,
            groups: data,
        },
        24 => Request::Hash {
            handle,
            offset,
            len: *u.choose(&[0, 1, 511, 900, 70_000, 64 << 20, u32::MAX])?,
            block: *u.choose(&[0, 511, 512, 4096, 1 << 20, 64 << 20, u32::MAX])?,
            kind: u.choose(&[b"rolling".as_slice(), b"blake3", b""])?,
            key: data.get(..*u.choose(&[0, 31, 32])?).unwrap_or_default(),
        },
        25 => Request::WriteZstd {
            handle,
            offset,
            len: *u.choose(&[0, 1, 900, 1 << 18, u32::MAX])?,
            data,
        },
        26 => Request::ReadZstd {
            handle,
            offset,
            len: u.arbitrary()?,
        },
        27..=28 => Request::PutFile {
            path,
            flags: PutFlags(u.int_in_range(0..=0xf)?),
            tag: u.int_in_range(0..=5)?,
            mode: u.arbitrary()?,
            attrs,
            data,
        },
        29..=30 => Request::GetFile {
            path,
            len: u.arbitrary()?,
        },
        31..=32 => Request::ListTree {
            tree: u.int_in_range(0..=20)?,
            flags: TreeFlags(u.int_in_range(0..=31)?),
            path,
        },
        33 => Request::Attributes {
            told: Told(u.int_in_range(0..=8)?),
        },
        34 => Request::GetXattrs {
            path,
            flags: MetadataFlags(u.int_in_range(0..=0x1f)?),
        },
        35 => {
            let flags = MetadataFlags(u.int_in_range(0..=0x1f)?);
            Request::SetMetadata {
                of: match flags.contains(MetadataFlags::HANDLE) {
                    true => handle,
                    false => path,
                },
                flags,
                attrs,
                xattrs: u.choose(&[data, XATTRS, b"\0\0\0\0".as_slice()])?,
            }
        }
        36 => Request::IdsByName {
            users: data,
            groups: data,
        },
        37 => Request::ReadSparse {
            handle,
            offset,
            len: u.arbitrary()?,
            pack: u.arbitrary()?,
        },
        38 => Request::PutFileZstd {
            path,
            flags: PutFlags(u.int_in_range(0..=0xf)?),
            tag: u.int_in_range(0..=5)?,
            mode: u.arbitrary()?,
            attrs,
            len: *u.choose(&[0, 1, 900, 70_000, 1 << 18, u32::MAX])?,
            data: u.choose(&[data, &PACKED, b"".as_slice()])?,
        },
        39 => Request::GetFileZstd {
            path,
            len: u.arbitrary()?,
        },
        40..=41 => Request::FsyncSet {
            paths: RemainingBytes(u.choose(&[data, PATHS, b"".as_slice()])?),
        },
        42 => Request::Statvfs { path },
        43 => Request::Fstatvfs { handle },
        44 => Request::Fsync { handle },
        45 => Request::Limits {},
        46 => Request::HomeDirectory { user: path },
        47 => Request::HoldRoot { path },
        _ => Request::ExpandPath { path },
    })
}

fn names(folder: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(folder).expect("our folder");
    let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name()).collect();
    names.sort();
    names
}

#[test]
fn each_request_has_its_answer_and_the_rest_of_the_world_its_peace() {
    operate(4096, |u| {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("dir")).expect("ours");
        fs::write(root.join("a"), b"theirs").expect("ours");
        fs::write(folder.path().join("file"), b"outside").expect("ours");
        std::os::unix::fs::symlink("..", root.join("out")).expect("ours");
        let access = *u.choose(&[Access::Full, Access::ReadOnly, Access::WriteOnly])?;
        let before = names(&root);

        let mut input = Vec::new();
        let extensions = RemainingBytes(&[]);
        frame(&mut input, |out| {
            Init {
                version: 3,
                extensions,
            }
            .encode(out);
        });
        let count = u.int_in_range(0..=60)?;
        for id in 0..count {
            request(u, &[7; 900])?.encode(RequestId(id), &mut input);
        }
        let broken = u.ratio(1, 8)?;
        if broken {
            input = mutate(u, &input)?;
        }
        let mut output = Vec::new();
        let export = ExportedTree::beneath(&root, access).expect("Linux 5.6");
        let mut server = SftpServer::new(&export);
        let mut input = Bytes::from(input);
        let mut served = Ok(());
        while !input.is_empty() && served.is_ok() {
            let cut = u.int_in_range(1..=input.len())?;
            let mut received = input.split_to(cut);
            while !received.is_empty() && served.is_ok() {
                served = server.handle(&mut received);
                // If more input follows, the set of small files stays open.
                if served.is_err() || input.is_empty() || u.ratio(1, 4)? {
                    server.end_set();
                }
                let Ok(()) = server.take_answers(|answer| {
                    match answer {
                        AnswerChunk::Bytes(bytes) => output.extend_from_slice(bytes),
                        AnswerChunk::Block(block) => output.extend(block.to_vec()),
                    }
                    Ok::<_, std::convert::Infallible>(())
                });
            }
        }

        if !broken {
            served.expect("nothing was wrong with it");
            let mut splitter = MessageSplitter::new(1 << 20);
            let mut output = Bytes::from(output);
            let mut next = None;
            while let Some(piece) = splitter.next(&mut output).expect("sound lengths") {
                let MessageSplitterOutput::Message(message) = piece else {
                    continue;
                };
                // VERSION has no id.
                if let Some(wanted) = next {
                    let (id, _) = Response::decode(&message).expect("a sound answer");
                    assert_eq!(id, RequestId(wanted));
                }
                next = Some(next.map_or(0, |n| n + 1));
            }
            assert_eq!(next, Some(count), "one answer for each");
        }
        assert_eq!(names(folder.path()), ["file", "root"]);
        let outside = fs::read(folder.path().join("file")).expect("it is there");
        assert_eq!(outside, b"outside");
        if access != Access::Full {
            assert_eq!(fs::read(root.join("a")).expect("it is there"), b"theirs");
        }
        if access == Access::ReadOnly {
            assert_eq!(names(&root), before);
        }
        Ok(())
    });
}
