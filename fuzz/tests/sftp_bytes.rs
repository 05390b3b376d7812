//! Fuzzes the bytes that a server sends to the SFTP client, and a client to a server.

use bytes::Bytes;
use fuzz::{assert_shown_safely, mutate, parse, some_bytes};
use sftp::{
    Attrs, ClientOutput, ExpectedEntry, InodeId, MessageSplitter, MessageSplitterOutput,
    MetadataFlags, NameEntry, Names, OpenFlags, PutFlags, Reply, Request, RequestId, Response,
    SftpClient, SftpClientOptions, StatusCode, StatusText, Told, TreeFlags, Version, frame,
    printable,
};
use wire::{Field, RemainingBytes};

/// A list of one extended attribute.
const XATTRS: &[u8] = b"\0\0\0\x01\0\0\0\x06user.a\0\0\0\x01x";

/// Two paths.
const PATHS: &[u8] = b"\0\0\0\x01.\0\0\0\x06a/path";

fn requests() -> Vec<Request<'static>> {
    let attrs = Attrs {
        size: Some(5),
        owner: Some((1, 2)),
        permissions: Some(0o100_644),
        times: Some((3, 4)),
        nanoseconds: Some((5, 6)),
        link: Some(InodeId {
            device: 7,
            inode: 8,
            names: 9,
        }),
        expected: Some(ExpectedEntry::TEMPORARY),
    };
    let (path, handle) = (b"a/path".as_slice(), b"\0\0\0\0".as_slice());
    vec![
        Request::Open {
            path,
            flags: OpenFlags::READ,
            attrs,
        },
        Request::Close { handle },
        Request::Read {
            handle,
            offset: 0,
            len: 32768,
        },
        Request::Write {
            handle,
            offset: 9,
            data: b"data",
        },
        Request::Stat { path },
        Request::Setstat { path, attrs },
        Request::Readdir { handle },
        Request::Realpath { path },
        Request::PosixRename {
            from: path,
            to: path,
        },
        Request::Statvfs { path },
        Request::Limits {},
        Request::UsersGroupsById {
            users: b"\0\0\0\x01",
            groups: b"",
        },
        Request::CopyData {
            from: handle,
            from_offset: 0,
            len: 9,
            to: handle,
            to_offset: 1,
        },
        Request::Hash {
            handle,
            offset: 9,
            len: 4096,
            block: 512,
            kind: b"rolling",
            key: &[7; 32],
        },
        Request::PutFile {
            path,
            flags: PutFlags::FRESH,
            tag: 7,
            mode: 0o644,
            attrs,
            data: b"all of it",
        },
        Request::GetFile { path, len: 9 },
        Request::PutFileZstd {
            path,
            flags: PutFlags::FRESH,
            tag: 7,
            mode: 0o644,
            attrs,
            len: 90,
            data: b"all of it",
        },
        Request::GetFileZstd { path, len: 9 },
        Request::Attributes {
            told: Told::NANOSECONDS,
        },
        Request::GetXattrs {
            path,
            flags: MetadataFlags::XATTRS,
        },
        Request::SetMetadata {
            of: handle,
            flags: MetadataFlags::HANDLE,
            attrs,
            xattrs: XATTRS,
        },
        Request::IdsByName {
            users: b"\0\0\0\x01u",
            groups: b"",
        },
        Request::ReadSparse {
            handle,
            offset: 0,
            len: 32768,
            pack: true,
        },
        Request::ListTree {
            tree: 1,
            flags: TreeFlags::BEGIN,
            path,
        },
        Request::FsyncSet {
            paths: RemainingBytes(PATHS),
        },
        Request::HoldRoot { path },
    ]
}

fn responses(handle: &[u8]) -> Vec<Response<'_>> {
    let attrs = Attrs {
        size: Some(5),
        owner: None,
        permissions: Some(0o100_644),
        times: Some((3, 4)),
        ..Attrs::default()
    };
    let entry = NameEntry {
        filename: b"name",
        longname: b"-rw-r--r-- name",
        attrs,
    };
    vec![
        Response::Status {
            code: StatusCode::OK,
            text: StatusText {
                message: b"Success",
            },
        },
        Response::Status {
            code: StatusCode::FAILURE,
            text: StatusText {
                message: b"bad \x1b[2J",
            },
        },
        Response::Handle { handle },
        Response::Data { data: b"of a file" },
        Response::Name {
            names: Names(vec![entry, entry]),
        },
        Response::Name {
            names: Names(vec![entry]),
        },
        Response::Attrs { attrs },
        Response::ExtendedReply {
            body: RemainingBytes(&[0; 88]),
        },
        Response::ExtendedReply {
            body: RemainingBytes(&[0; 32]),
        },
        // get-file: no attributes, and data of nine bytes or of one more than requested.
        Response::ExtendedReply {
            body: RemainingBytes(b"\0\0\0\0\x01\0\0\0\x09all of it"),
        },
        Response::ExtendedReply {
            body: RemainingBytes(b"\0\0\0\0\x01\0\0\0\x0aall of it!"),
        },
        // get-xattrs, set-metadata, and a hole.
        Response::ExtendedReply { body: RemainingBytes(XATTRS) },
        Response::ExtendedReply {
            body: RemainingBytes(b"\0\0\0\x02\0\0\0\x02no"),
        },
        Response::ExtendedReply {
            body: RemainingBytes(b"\0\0\0\0\0\0\0\0\0\x01\0\0"),
        },
        // list-tree: an entry, a directory, its end, and a failure.
        Response::ExtendedReply {
            body: RemainingBytes(
                b"\x01\0\0\0\x01a\0\0\0\0\x02\0\0\0\x02..\0\0\0\0\x03\x04\0\0\0\x03\0\0\0\x02no\x03",
            ),
        },
        // The same answers compressed: a zstd frame with one uncompressed block, which holds the
        // end of a directory.
        Response::ExtendedReply {
            body: RemainingBytes(b"\x06\0\0\0\x01\x28\xb5\x2f\xfd\0\0\x09\0\0\x03"),
        },
    ]
}

fn version() -> Vec<u8> {
    let mut pairs = Vec::new();
    for (name, data) in sftp::OPENSSH_EXTENSIONS {
        name.as_bytes().write(&mut pairs);
        data.as_bytes().write(&mut pairs);
    }
    let version = Version {
        version: 3,
        extensions: RemainingBytes(&pairs),
    };
    let mut out = Vec::new();
    frame(&mut out, |out| version.encode(out));
    out
}

#[test]
fn requests_and_responses_are_read_as_they_are_written() {
    let mut sound = Vec::new();
    for request in requests() {
        let mut out = Vec::new();
        request.encode(RequestId(5), &mut out);
        sound.push(out.split_off(4));
    }
    for response in responses(b"handle") {
        let mut out = Vec::new();
        response.encode(RequestId(5), &mut out);
        sound.push(out.split_off(4));
    }
    parse(1024, |u| {
        let bytes = match u.ratio(1, 8)? {
            true => some_bytes(u)?,
            false => {
                let seed = u.choose(&sound)?;
                mutate(u, seed)?
            }
        };
        let mut again = Vec::new();
        if let Ok((id, request)) = Request::decode(&bytes) {
            request.encode(id, &mut again);
            assert_eq!(Request::decode(&again[4..]), Ok((id, request)));
        }
        again.clear();
        if let Ok((id, response)) = Response::decode(&bytes) {
            response.encode(id, &mut again);
            assert_eq!(Response::decode(&again[4..]), Ok((id, response)));
        }
        Ok(())
    });
}

/// A stream yields the same pieces however it is cut.
#[test]
fn splitters_do_not_mind_how_a_stream_is_cut() {
    parse(8192, |u| {
        let bound = u.int_in_range(0..=70_000)?;
        let mut stream = Vec::new();
        for _ in 0..u.int_in_range(0..=6)? {
            let body = match u.int_in_range(0..=2)? {
                0 => {
                    let (handle, data) = (some_bytes(u)?, vec![8; u.int_in_range(0..=9000)?]);
                    let (handle, data, offset) = (&handle, &data, u.arbitrary()?);
                    let request = Request::Write {
                        handle,
                        offset,
                        data,
                    };
                    let mut out = Vec::new();
                    request.encode(RequestId(u.arbitrary()?), &mut out);
                    out
                }
                1 => {
                    let data = vec![7; u.int_in_range(0..=3000)?];
                    let mut out = Vec::new();
                    Response::Data { data: &data }.encode(RequestId(u.arbitrary()?), &mut out);
                    out
                }
                _ => {
                    let body = some_bytes(u)?;
                    let mut out = Vec::new();
                    frame(&mut out, |out| out.extend_from_slice(&body));
                    out
                }
            };
            stream.extend(body);
        }
        let stream = mutate(u, &stream)?;
        for streaming in [false, true] {
            let new = || match streaming {
                true => MessageSplitter::streaming_data(bound),
                false => MessageSplitter::new(bound),
            };
            let whole = split(&mut new(), &stream, usize::MAX, bound);
            let step = u.int_in_range(1..=40)?;
            assert_eq!(split(&mut new(), &stream, step, bound), whole);
        }
        // A WRITE that arrives in pieces is checked more strictly than a complete one.
        let whole = split(&mut MessageSplitter::new(bound), &stream, usize::MAX, bound);
        let step = u.int_in_range(1..=4000)?;
        let mut streaming = MessageSplitter::streaming_writes(bound, bound);
        let pieces = split(&mut streaming, &stream, step, bound);
        match pieces.1 {
            true => assert!(whole.0.starts_with(&pieces.0)),
            false => assert!(pieces == whole),
        }
        Ok(())
    });
}

/// Returns a message as a server reads it: a WRITE ends with its data.
fn without_what_lies_behind(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match Request::decode(message) {
        Ok((id, request @ Request::Write { .. })) => request.encode(id, &mut out),
        _ => return message.to_vec(),
    }
    out.split_off(4)
}

/// Returns the messages, the data by request, and if the stream ended in an error.
fn split(s: &mut MessageSplitter, stream: &[u8], step: usize, bound: u32) -> (Vec<Vec<u8>>, bool) {
    let mut got: Vec<Vec<u8>> = Vec::new();
    for chunk in stream.chunks(step.min(stream.len().max(1))) {
        let mut input = Bytes::copy_from_slice(chunk);
        loop {
            match s.next(&mut input) {
                Ok(Some(MessageSplitterOutput::Message(m))) => {
                    assert!(m.len() <= bound as usize);
                    got.push(without_what_lies_behind(&m));
                }
                Ok(Some(MessageSplitterOutput::Write { head, data })) => {
                    let len = data.iter().map(Bytes::len).sum::<usize>();
                    assert!(head.len() + len <= bound as usize);
                    let (head, zeros) = head.split_at(head.len() - 4);
                    assert_eq!(zeros, [0; 4]);
                    got.push([head, &(len as u32).to_be_bytes(), &data.concat()].concat());
                }
                Ok(Some(MessageSplitterOutput::Data {
                    id,
                    total,
                    at,
                    bytes,
                })) => {
                    assert!(at as usize + bytes.len() <= total as usize && total <= bound);
                    if at == 0 {
                        got.push(id.to_be_bytes().to_vec());
                    }
                    if let Some(last) = got.last_mut() {
                        last.extend_from_slice(&bytes);
                    }
                }
                Ok(None) => break,
                Err(_) => return (got, true),
            }
        }
    }
    (got, false)
}

#[test]
fn replies_to_the_client() {
    parse(4096, |u| {
        let mut client = SftpClient::new(SftpClientOptions::default());
        let known = requests();
        let mut ids = Vec::new();
        for _ in 0..u.int_in_range(0..=12)? {
            ids.push(client.request(u.choose(&known)?));
        }
        while let Some(output) = client.poll_output() {
            assert!(matches!(output, ClientOutput::Bytes(_)));
        }
        let mut stream = version();
        if u.ratio(1, 4)? {
            stream = mutate(u, &stream)?;
        }
        let asked = ids.len();
        for _ in 0..u.int_in_range(0..=16)? {
            let id = match (u.ratio(1, 16)?, ids.is_empty()) {
                (false, false) => ids.remove(u.choose_index(ids.len())?),
                _ => RequestId(u.int_in_range(0..=20)?),
            };
            let handle = some_bytes(u)?;
            let all = responses(&handle);
            let mut out = Vec::new();
            u.choose(&all)?.encode(id, &mut out);
            if u.ratio(1, 8)? {
                out = mutate(u, &out)?;
            }
            stream.extend(out);
        }
        let mut replies = 0;
        for chunk in stream.chunks(u.int_in_range(1..=5000)?) {
            let result = client.handle_input(Bytes::copy_from_slice(chunk));
            while let Some((_, reply)) = client.poll_reply() {
                check(&reply);
                replies += usize::from(!matches!(reply, Reply::Data { .. }));
            }
            if let Err(error) = result {
                assert_shown_safely(&error.to_string(), false);
                let again = client.handle_input(Bytes::from_static(b"more"));
                assert_eq!(again.map_err(|e| e.to_string()), Err(error.to_string()));
                break;
            }
        }
        assert!(replies <= asked, "more answers than questions");
        assert!(client.pending() <= asked);
        Ok(())
    });
}

fn check(reply: &Reply) {
    match reply {
        Reply::Status(status) => assert_shown_safely(&status.message, false),
        Reply::File(file) => assert!(file.data.as_ref().is_none_or(|data| data.len() <= 9)),
        _ => {}
    }
}

#[test]
fn texts_of_a_server_are_printable() {
    parse(2048, |u| {
        let max = u.int_in_range(0..=300)?;
        let text = printable(&some_bytes(u)?, max);
        assert_shown_safely(&text, false);
        Ok(())
    });
}
