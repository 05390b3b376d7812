//! Tests of the client against a model of the server, malformed replies and random bytes.

use arbtest::arbtest;
use bytes::Bytes;
use sftp::{
    Attrs, ClientOutput, Error, Handle, OpenFlags, Reply, Request, RequestId, Response, SftpClient,
    SftpClientOptions, StatusCode, StatusText, SymlinkOrder, frame,
};
use testkit::sftp_model::{Fs, Kind, SftpModel, SftpServerProfile};
use wire::{PacketPool, PayloadBlock, RemainingBytes};

fn sent(client: &mut SftpClient) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(output) = client.poll_output() {
        match output {
            ClientOutput::Bytes(bytes) => all.extend(bytes),
            ClientOutput::Block(block) => all.extend(block.to_vec()),
        }
    }
    all
}

/// Returns a client that has received VERSION, and the server.
fn session(server: SftpServerProfile) -> (SftpClient, SftpModel) {
    let mut client = SftpClient::new(SftpClientOptions::default());
    let mut model = SftpModel::new(Fs::default(), server);
    exchange(&mut client, &mut model);
    assert!(client.info().is_some());
    (client, model)
}

fn exchange(client: &mut SftpClient, model: &mut SftpModel) {
    model.handle_input(&sent(client));
    let out = model.take_output();
    client
        .handle_input(Bytes::from(out))
        .expect("sound answers");
}

fn reply(client: &mut SftpClient) -> Reply {
    client.poll_reply().expect("a reply").1
}

#[test]
fn limits_are_kept_with_the_server() {
    let (mut client, mut model) = session(SftpServerProfile::openssh());
    assert!(client.info().is_some_and(sftp::ServerInfo::is_openssh_set));
    client.request(&Request::Limits {});
    exchange(&mut client, &mut model);
    let limits = client.info().and_then(|i| i.limits).unwrap();
    assert_eq!((limits.read, limits.handles), (255 * 1024, 1019));
}

#[test]
fn data_come_in_slices_as_they_arrive() {
    let (mut client, mut model) = session(SftpServerProfile::openssh());
    let data: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    model.fs.place("f", Kind::File(data.clone()), 0o644);
    client.request(&Request::Open {
        path: b"f",
        flags: OpenFlags::READ,
        attrs: Attrs::default(),
    });
    exchange(&mut client, &mut model);
    let Reply::Handle(handle) = reply(&mut client) else {
        panic!("no handle")
    };
    assert_eq!(handle, Handle::openssh(0));
    client.request(&Request::Read {
        handle: handle.as_bytes(),
        offset: 0,
        len: 200_000,
    });
    model.handle_input(&sent(&mut client));
    let out = Bytes::from(model.take_output());
    let range = out.as_ptr_range();
    let mut got = Vec::new();
    for start in (0..out.len()).step_by(30_000) {
        let end = (start + 30_000).min(out.len());
        client.handle_input(out.slice(start..end)).unwrap();
        while let Some((_, Reply::Data { at, bytes, last })) = client.poll_reply() {
            assert_eq!(at as usize, got.len());
            // The data is a slice of the segment, not a copy.
            assert!(range.contains(&bytes.as_ptr()));
            got.extend_from_slice(&bytes);
            assert_eq!(last, got.len() == data.len());
        }
    }
    assert!(got == data);
    assert_eq!(client.pending(), 0);
}

#[test]
fn a_block_has_the_bytes_that_a_plain_write_has() {
    for len in [0, 10, 8191, 8192, 100_000] {
        let data: Vec<u8> = (0..len as u32).map(|i| (i * 7) as u8).collect();
        let handle = Handle::openssh(3);
        let pool = PacketPool::new(32 * 1024, 8);
        let mut block = PayloadBlock::new(&pool, 32 * 1024, SftpClient::write_reserve(4), len);
        block.append(&data);
        let mut client = SftpClient::new(SftpClientOptions::default());
        sent(&mut client);
        client.write(&handle, 77, block);
        let queued = client.queued();
        let as_block = sent(&mut client);
        assert_eq!(queued, as_block.len());
        let mut plain = Vec::new();
        Request::Write {
            handle: handle.as_bytes(),
            offset: 77,
            data: &data,
        }
        .encode(RequestId(0), &mut plain);
        assert!(as_block == plain, "{len}");
    }
}

#[test]
fn small_requests_leave_together() {
    let mut client = SftpClient::new(SftpClientOptions::default());
    for _ in 0..10 {
        client.request(&Request::Stat { path: b"x" });
    }
    assert!(client.poll_output().is_some());
    assert!(client.poll_output().is_none());
}

#[test]
fn text_before_sftp_is_told_with_advice() {
    let text = b"\x1b[31mWelcome to the cluster!\r\nhave a nice day\r\n";
    for step in [4, 7, text.len()] {
        let mut client = SftpClient::new(SftpClientOptions::default());
        let mut error = None;
        for chunk in text.chunks(step) {
            error = client.handle_input(Bytes::copy_from_slice(chunk)).err();
            if error.is_some() {
                break;
            }
        }
        let error = error.unwrap();
        assert!(matches!(error, Error::NotSftp { .. }));
        let told = error.to_string();
        assert!(told.contains("bashrc") && !told.contains('\x1b'), "{told}");
    }
}

#[test]
fn other_versions_and_other_first_messages_are_refused() {
    let cases: [&[u8]; 3] = [
        &[0, 0, 0, 5, 2, 0, 0, 0, 6],
        &[0, 0, 0, 13, 103, 0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4],
        &[0, 0, 0, 5, 101, 0, 0, 0, 6],
    ];
    for bytes in cases {
        let mut client = SftpClient::new(SftpClientOptions::default());
        assert!(client.handle_input(Bytes::from_static(bytes)).is_err());
        // The error persists.
        assert!(client.handle_input(Bytes::new()).is_err());
    }
}

fn answered(request: &Request<'_>, response: &Response<'_>, id: u32) -> Result<(), Error> {
    let (mut client, _) = session(SftpServerProfile::openssh());
    let made = client.request(request);
    let mut bytes = Vec::new();
    response.encode(RequestId(made.0 + id), &mut bytes);
    client.handle_input(Bytes::from(bytes))
}

#[test]
fn answers_must_fit_their_requests() {
    let stat = Request::Stat { path: b"x" };
    let read = Request::Read {
        handle: b"h",
        offset: 0,
        len: 3,
    };
    let ok = |code| Response::Status {
        code,
        text: StatusText::default(),
    };
    let data = Response::Data { data: b"1234" };
    let attrs = Response::Attrs {
        attrs: Attrs::default(),
    };
    assert_eq!(answered(&stat, &attrs, 0), Ok(()));
    assert_eq!(answered(&stat, &ok(StatusCode::FAILURE), 0), Ok(()));
    let wrong = |r: Result<(), Error>| assert!(matches!(r, Err(Error::WrongReply { .. })), "{r:?}");
    wrong(answered(&stat, &ok(StatusCode::OK), 0));
    wrong(answered(&stat, &data, 0));
    wrong(answered(&stat, &Response::Handle { handle: b"h" }, 0));
    wrong(answered(&read, &attrs, 0));
    let long = [0; 257];
    let open = Request::Opendir { path: b"x" };
    let handle = Response::Handle { handle: &long };
    assert_eq!(answered(&open, &handle, 0), Err(Error::LongHandle(257)));
    assert_eq!(
        answered(&read, &data, 0),
        Err(Error::TooMuchData { asked: 3, got: 4 })
    );
    let get = Request::GetFileZstd { path: b"x", len: 3 };
    // The body: no attributes, the flag for compressed data, the decompressed length, and the data.
    for (fits, body) in [
        (true, &b"\0\0\0\0\x02\0\0\0\x03\0\0\0\x03abc"[..]),
        (false, b"\0\0\0\0\x02\0\0\0\x04\0\0\0\x03abc"),
        (false, b"\0\0\0\0\x02\0\0\0\x03\0\0\0\x04abcd"),
        (true, b"\0\0\0\0\x01\0\0\0\x03abc"),
        (false, b"\0\0\0\0\x01\0\0\0\x04abcd"),
        (true, b"\0\0\0\0\0"),
    ] {
        let body = RemainingBytes(body);
        let taken = answered(&get, &Response::ExtendedReply { body }, 0);
        let expected = match fits {
            true => Ok(()),
            false => Err(Error::TooMuchData { asked: 3, got: 4 }),
        };
        assert_eq!(taken, expected, "{body:?}");
    }
    assert!(matches!(
        answered(&stat, &attrs, 5),
        Err(Error::UnknownId(_))
    ));
    assert!(matches!(
        answered(&read, &data, 5),
        Err(Error::UnknownId(_))
    ));
}

#[test]
fn a_second_answer_is_an_error() {
    let (mut client, _) = session(SftpServerProfile::openssh());
    let id = client.request(&Request::Stat { path: b"x" });
    let mut bytes = Vec::new();
    let attrs = Attrs::default();
    Response::Attrs { attrs }.encode(id, &mut bytes);
    Response::Attrs { attrs }.encode(id, &mut bytes);
    let result = client.handle_input(Bytes::from(bytes));
    assert_eq!(result, Err(Error::UnknownId(id.0)));
}

#[test]
fn a_status_without_text_and_a_hostile_one() {
    let (mut client, _) = session(SftpServerProfile::openssh());
    let id = client.request(&Request::Remove { path: b"x" });
    let mut bytes = Vec::new();
    frame(&mut bytes, |out| {
        out.push(101);
        out.extend_from_slice(&id.0.to_be_bytes());
        out.extend_from_slice(&4u32.to_be_bytes());
    });
    client.handle_input(Bytes::from(bytes)).unwrap();
    assert!(matches!(reply(&mut client), Reply::Status(s) if !s.is_ok()));

    let id = client.request(&Request::Remove { path: b"x" });
    let mut bytes = Vec::new();
    let message = [b"\x1b]0;owned\x07".as_slice(), &[b'x'; 5000]].concat();
    let text = StatusText { message: &message };
    let code = StatusCode::FAILURE;
    Response::Status { code, text }.encode(id, &mut bytes);
    client.handle_input(Bytes::from(bytes)).unwrap();
    let Reply::Status(status) = reply(&mut client) else {
        panic!("no status")
    };
    let told = status.to_string();
    assert!(!told.contains('\x1b') && !told.contains('\x07') && told.len() < 400);
}

#[test]
fn symlinks_go_in_the_order_the_server_reads() {
    for (order, first) in [(SymlinkOrder::OpenSsh, b"to"), (SymlinkOrder::Draft, b"at")] {
        let mut client = SftpClient::new(SftpClientOptions {
            symlink_order: order,
            max_message: 0,
        });
        sent(&mut client);
        client.symlink(b"at", b"to");
        let bytes = sent(&mut client);
        let (_, request) = Request::decode(&bytes[4..]).unwrap();
        assert!(matches!(request, Request::Symlink { first: f, .. } if f == first));
    }
}

/// Random input in random pieces gives errors or replies, and never a panic.
#[test]
fn random_bytes_do_not_panic() {
    arbtest(|u| {
        let (mut client, _) = session(SftpServerProfile::openssh());
        client.request(&Request::Stat { path: b"x" });
        client.request(&Request::Read {
            handle: b"h",
            offset: 0,
            len: 100,
        });
        client.request(&Request::Readdir { handle: b"h" });
        client.request(&Request::Limits {});
        client.request(&Request::UsersGroupsById {
            users: b"",
            groups: b"",
        });
        while !u.is_empty() {
            let mut bytes = Vec::new();
            if u.ratio(3, 4)? {
                let body: Vec<u8> = u.arbitrary()?;
                let number = *u.choose(&[101u8, 102, 103, 104, 105, 201, 7])?;
                let id = u.int_in_range(0..=5u32)?;
                frame(&mut bytes, |out| {
                    out.push(number);
                    out.extend_from_slice(&id.to_be_bytes());
                    out.extend_from_slice(&body);
                });
            } else {
                bytes = u.arbitrary()?;
            }
            let step = u.int_in_range(1..=64usize)?;
            for chunk in bytes.chunks(step) {
                if client.handle_input(Bytes::copy_from_slice(chunk)).is_err() {
                    return Ok(());
                }
            }
            while client.poll_reply().is_some() {}
        }
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn random_requests_do_not_panic_a_server() {
    arbtest(|u| {
        let bytes: Vec<u8> = u.arbitrary()?;
        if let Ok((id, request)) = Request::decode(&bytes) {
            let mut again = Vec::new();
            request.encode(id, &mut again);
            assert_eq!(Request::decode(&again[4..]).map(|r| r.0), Ok(id));
        }
        let _ = Response::decode(&bytes);
        Ok(())
    })
    .budget_ms(300);
}
