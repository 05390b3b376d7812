//! Tests of the disk pool: inline I/O, coalescing, relays and failures.

use super::*;
use crate::disk::ExpectedContent;
use bytes::Bytes;
use crossbeam_channel::{Receiver, unbounded};
use schedule::{Attributes, ExtraMetadata, SourceFileMeta};
use std::fs;
use std::path::Path;
use wire::{BorrowPolicy, PacketPool, PayloadBlock};

const LIMIT: Duration = Duration::from_secs(20);

fn pool() -> (DiskThreadPool, Receiver<()>) {
    let (told, tell) = unbounded();
    let pool = DiskThreadPool::new(3, None, Arc::default(), move || {
        let _ = told.send(());
    });
    (pool.expect("threads"), tell)
}

fn wait(pool: &DiskThreadPool, told: &Receiver<()>) -> DiskReply {
    pool.flush();
    loop {
        if let Some(reply) = pool.poll_reply() {
            return reply;
        }
        told.recv_timeout(LIMIT).expect("a reply in time");
    }
}

fn block(room: usize) -> PayloadBlock {
    PayloadBlock::new(&PacketPool::new(32_768, 8), 32_768, 100, room)
}

fn finish(job: JobId, size: u64) -> DiskRequest {
    DiskRequest::FinishTarget {
        job,
        size,
        attributes: Attributes::default(),
        preserve: false,
        fsync: true,
        beyond: ExtraMetadata::default(),
    }
}

fn create(job: JobId, target: &Path) -> DiskRequest {
    DiskRequest::CreateTarget {
        job,
        target: target.into(),
        inplace: false,
        size: None,
        keep: None,
        stays: false,
        sparse: false,
    }
}

#[test]
fn requests_sent_without_waiting_run_in_order() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let (pool, told) = pool();
    for i in 0..50 {
        let job = JobId(i);
        let path = dir.path().join(i.to_string());
        pool.submit(create(job, &path));
        for part in (0..8_u64).rev() {
            let pieces = vec![Bytes::from(vec![b'a' + part as u8; 1000])];
            pool.submit(DiskRequest::Write {
                job,
                offset: part * 1000,
                pieces,
            });
        }
        pool.submit(finish(job, 8000));
    }
    let mut finished = 0;
    while finished < 50 {
        match wait(&pool, &told) {
            DiskReply::Finished { .. } => finished += 1,
            DiskReply::Failed { fault, .. } => panic!("{fault:?}"),
            _ => {}
        }
    }
    assert!(pool.shared.lock().jobs.is_empty());
    let expected: Vec<u8> = (0..8).flat_map(|p| vec![b'a' + p; 1000]).collect();
    for i in 0..50 {
        assert_eq!(fs::read(dir.path().join(i.to_string()))?, expected);
    }
    Ok(())
}

/// Content that a test expects.
#[derive(Debug)]
struct Wanted(Vec<u8>);

impl ExpectedContent for Wanted {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn check(&self, file: &fs::File) -> io::Result<()> {
        let mut found = vec![0; self.0.len()];
        std::os::unix::fs::FileExt::read_exact_at(file, &mut found, 0)?;
        match found == self.0 {
            true => Ok(()),
            false => Err(io::Error::other("it differs")),
        }
    }
}

/// Bug: in a fan-out, a host that altered the file could replace the file of the next host, which
/// compared the copy only once it had its final name.
#[test]
fn a_file_with_other_content_than_expected_does_not_get_its_name() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("file");
    fs::write(&path, b"old")?;
    let directories = Arc::<OpenDirectoryCache>::default();
    directories.expect(Arc::new(Wanted(vec![b'a'; 1000])));
    let (told, tell) = unbounded();
    let pool = DiskThreadPool::new(1, None, directories, move || {
        let _ = told.send(());
    })?;
    let write = |job, content: Vec<u8>| {
        let size = content.len() as u64;
        pool.submit(create(job, &path));
        pool.submit(DiskRequest::Write {
            job,
            offset: 0,
            pieces: vec![Bytes::from(content)],
        });
        pool.submit(finish(job, size));
        loop {
            match wait(&pool, &tell) {
                DiskReply::Finished { .. } => return true,
                DiskReply::Failed { .. } => return false,
                _ => {}
            }
        }
    };
    assert!(!write(JobId(1), vec![b'b'; 1000]));
    assert!(!write(JobId(2), vec![b'a'; 1001]));
    assert_eq!(fs::read(&path)?, b"old");
    assert_eq!(fs::read_dir(dir.path())?.count(), 1, "temporaries are left");
    assert!(write(JobId(3), vec![b'a'; 1000]));
    assert_eq!(fs::read(&path)?, vec![b'a'; 1000]);
    Ok(())
}

#[test]
fn writes_wait_for_company_or_for_a_flush() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let (pool, told) = pool();
    let job = JobId(1);
    let write = |at: usize| {
        let pieces = vec![Bytes::from(vec![b'a'; 1000])];
        let offset = at as u64 * 1000;
        pool.submit(DiskRequest::Write {
            job,
            offset,
            pieces,
        });
    };
    let all_wait = || {
        while pool.shared.lock().idle < 3 {
            std::thread::yield_now();
        }
    };
    pool.submit(create(job, &dir.path().join("file")));
    wait(&pool, &told);
    all_wait();
    write(0);
    assert!(pool.holds());
    assert!(pool.poll_reply().is_none());
    assert!(matches!(wait(&pool, &told), DiskReply::Written { .. }));
    assert!(!pool.holds());
    all_wait();
    (1..=COMPANY).for_each(write);
    assert!(!pool.holds(), "nobody was woken");
    for _ in 1..=COMPANY {
        assert!(matches!(wait(&pool, &told), DiskReply::Written { .. }));
    }
    Ok(())
}

fn source_of_200_000() -> io::Result<(tempfile::TempDir, Vec<u8>)> {
    let dir = tempfile::tempdir()?;
    let content: Vec<u8> = (0..200_000_u32).map(|i| i as u8).collect();
    fs::write(dir.path().join("f"), &content)?;
    Ok((dir, content))
}

#[test]
fn a_source_is_read_in_blocks_and_closed() -> io::Result<()> {
    let (dir, content) = source_of_200_000()?;
    let path = dir.path().join("f");
    let (pool, told) = pool();
    let job = JobId(1);
    let first = block(70_000);
    pool.submit(DiskRequest::OpenSource {
        job,
        path,
        first,
        sparse: false,
        pack: None,
    });
    let DiskReply::Opened {
        first, eof, meta, ..
    } = wait(&pool, &told)
    else {
        panic!("not opened");
    };
    assert!(!eof && !meta.stream);
    assert_eq!(meta.attributes.size, Some(200_000));
    assert_eq!(first.to_vec(), content[..70_000]);
    let (offset, len) = (150_000, 70_000);
    pool.submit(DiskRequest::Read {
        job,
        offset,
        len,
        block: block(len),
    });
    let DiskReply::Read { block, .. } = wait(&pool, &told) else {
        panic!("not read");
    };
    assert_eq!(block.to_vec(), content[150_000..]);
    pool.submit(DiskRequest::CloseSource { job });
    assert!(matches!(wait(&pool, &told), DiskReply::Released { .. }));
    assert!(pool.shared.lock().jobs.is_empty());
    Ok(())
}

/// Data in the page cache need no thread. If a part is not cached, the request is returned
/// unchanged.
#[test]
fn what_is_in_memory_is_read_at_once() -> io::Result<()> {
    let (dir, content) = source_of_200_000()?;
    let path = dir.path().join("f");
    let (pool, told) = pool();
    let job = JobId(1);
    let read = |offset| DiskRequest::Read {
        job,
        offset,
        len: 70_000,
        block: block(70_000),
    };
    assert!(pool.at_once(read(70_000)).is_err(), "it is not open");
    let first = block(70_000);
    pool.submit(DiskRequest::OpenSource {
        job,
        path,
        first,
        sparse: false,
        pack: None,
    });
    wait(&pool, &told);
    let Ok(Some(DiskReply::Read { block, .. })) = pool.at_once(read(70_000)) else {
        panic!("it was written a moment ago");
    };
    assert_eq!(block.to_vec(), content[70_000..140_000]);
    let Err(request) = pool.at_once(read(150_000)) else {
        panic!("there is less");
    };
    assert!(pool.at_once(read(70_000)).is_err(), "it was not all there");
    pool.submit(request);
    let DiskReply::Read { block, .. } = wait(&pool, &told) else {
        panic!("not read");
    };
    assert_eq!(block.to_vec(), content[150_000..]);
    Ok(())
}

/// Data that only the cipher or nothing reads are sent without a copy. Data that are not in memory,
/// are short, or need a checksum are read.
#[test]
fn what_nobody_looks_at_is_sent_from_where_the_kernel_has_it() -> io::Result<()> {
    let (dir, content) = source_of_200_000()?;
    let path = dir.path().join("f");
    let (sealed, never) = (BorrowPolicy::UntilSealed, BorrowPolicy::Never);
    for (borrow_policy, summed) in [
        (BorrowPolicy::UntilSent, false),
        (sealed, false),
        (never, false),
        (sealed, true),
    ] {
        let (told, tell) = unbounded();
        let ledger = summed.then(Arc::<ChecksumLedger>::default);
        let pool = DiskThreadPool::new(3, ledger, Arc::default(), move || {
            let _ = told.send(());
        });
        let (pool, job) = (pool?, JobId(1));
        let packets = PacketPool::new(32_768, 8);
        packets.set_borrow_policy(borrow_policy);
        let block = |len| PayloadBlock::new(&packets, 32_768, 100, len);
        pool.submit(DiskRequest::OpenSource {
            job,
            path: path.clone(),
            first: block(32_000),
            sparse: false,
            pack: None,
        });
        let DiskReply::Opened { first, .. } = wait(&pool, &tell) else {
            panic!("not opened");
        };
        assert!(!first.lies_outside() && first.to_vec() == content[..32_000]);
        for (offset, len) in [(32_000, 100_000), (150_000, 20_000), (190_000, 70_000)] {
            let read = DiskRequest::Read {
                job,
                offset,
                len,
                block: block(len),
            };
            let reply = match pool.at_once(read) {
                Ok(reply) => reply.expect("a read is not held"),
                Err(request) => {
                    pool.submit(request);
                    wait(&pool, &tell)
                }
            };
            let DiskReply::Read { block, .. } = reply else {
                panic!("not read");
            };
            let outside = borrow_policy != never && !summed && len == 100_000;
            assert_eq!(block.lies_outside(), outside, "{len} bytes at {offset}");
            let offset = offset as usize;
            assert!(block.to_vec() == content[offset..content.len().min(offset + len)]);
        }
    }
    Ok(())
}

/// The loop itself writes to memory file systems if no processor is idle; otherwise a thread does,
/// as for disks, where a write may block.
#[cfg(target_os = "linux")]
#[test]
fn what_goes_to_memory_is_written_at_once_where_no_processor_is_free() -> io::Result<()> {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        eprintln!("there is no /dev/shm");
        return Ok(());
    }
    for (spare, at_once) in [(false, true), (true, false)] {
        let dir = tempfile::tempdir_in(memory)?;
        let (mut pool, told) = pool();
        pool.spare = match spare {
            true => || true,
            false => || false,
        };
        let job = JobId(1);
        let target = dir.path().join("f");
        let write = |offset, byte| DiskRequest::Write {
            job,
            offset,
            pieces: vec![Bytes::from(vec![byte; 1000])],
        };
        assert!(pool.at_once(write(0, 1)).is_err(), "it is not open");
        pool.submit(create(job, &target));
        wait(&pool, &told);
        for (offset, byte) in [(1000, 2), (0, 1)] {
            match pool.at_once(write(offset, byte)) {
                Ok(Some(reply)) => assert!(matches!(reply, DiskReply::Written { len: 1000, .. })),
                Ok(None) => panic!("so little is not held"),
                Err(request) => {
                    assert!(!at_once);
                    pool.submit(request);
                    pool.flush();
                    wait(&pool, &told);
                }
            }
        }
        pool.submit(finish(job, 2000));
        wait(&pool, &told);
        let content = fs::read(&target)?;
        assert_eq!(content, [[1; 1000], [2; 1000]].concat());
    }
    Ok(())
}

/// Every write gets its answer, both when the loop writes (no processor is free) and when a thread
/// does.
#[cfg(target_os = "linux")]
#[test]
fn large_writes_that_follow_one_another_are_one_and_each_is_answered() -> io::Result<()> {
    const CHUNK: usize = 255 << 10;
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        eprintln!("there is no /dev/shm");
        return Ok(());
    }
    for spare in [false, true] {
        let dir = tempfile::tempdir_in(memory)?;
        let (mut pool, told) = pool();
        pool.spare = match spare {
            true => || true,
            false => || false,
        };
        let content: Vec<u8> = (0..5 << 20).map(|n: usize| (n / 777) as u8).collect();
        let jobs = [JobId(1), JobId(2)];
        for job in jobs {
            pool.submit(create(job, &dir.path().join(job.0.to_string())));
            wait(&pool, &told);
        }
        let mut chunks: Vec<usize> = (0..content.len()).step_by(CHUNK).collect();
        // The second part goes first, so it is not adjacent.
        chunks.rotate_left(7);
        let (mut owed, mut most) = (0, 0);
        let answered = |owed: &mut usize, reply: DiskReply| {
            let DiskReply::Written { offset, len, .. } = reply else {
                panic!("{reply:?}");
            };
            assert_eq!(len as usize, CHUNK.min(content.len() - offset as usize));
            *owed -= 1;
        };
        for (at, job) in chunks.iter().flat_map(|at| jobs.map(|job| (*at, job))) {
            let chunk = &content[at..content.len().min(at + CHUNK)];
            let write = DiskRequest::Write {
                job,
                offset: at as u64,
                pieces: chunk.chunks(32 << 10).map(Bytes::copy_from_slice).collect(),
            };
            owed += 1;
            match pool.at_once(write) {
                Ok(reply) => {
                    assert!(!spare);
                    reply.into_iter().for_each(|r| answered(&mut owed, r));
                }
                Err(request) => pool.submit(request),
            }
            while let Some(reply) = pool.poll_reply() {
                answered(&mut owed, reply);
            }
            most = most.max(owed);
        }
        // One write is complete except for its end, and the next one continues there.
        assert!(spare || most >= 2, "{most}: nothing was held");
        assert!(spare || (pool.holds() && owed <= 4), "{owed}");
        while owed > 0 {
            let reply = wait(&pool, &told);
            answered(&mut owed, reply);
        }
        for job in jobs {
            pool.submit(finish(job, content.len() as u64));
            wait(&pool, &told);
            assert!(fs::read(dir.path().join(job.0.to_string()))? == content);
        }
    }
    Ok(())
}

#[test]
fn a_pool_that_is_dropped_removes_its_temporaries() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let (pool, told) = pool();
    for i in 0..10 {
        pool.submit(create(JobId(i), &dir.path().join(i.to_string())));
    }
    for _ in 0..10 {
        assert!(matches!(wait(&pool, &told), DiskReply::Created { .. }));
    }
    assert_eq!(fs::read_dir(dir.path())?.count(), 10);
    drop(pool);
    assert_eq!(fs::read_dir(dir.path())?.count(), 0);
    Ok(())
}

#[test]
fn a_relay_gives_what_it_gets() {
    let (pool, told) = pool();
    let relay = HostToHostBuffer::new(SourceFileMeta::default());
    let (get, put) = (JobId(1), JobId(2));
    pool.bind(get, Arc::clone(&relay));
    pool.bind(put, relay);
    let first = block(1000);
    pool.submit(DiskRequest::OpenSource {
        job: put,
        path: "".into(),
        first,
        sparse: false,
        pack: None,
    });
    let (offset, len) = (1000, 9000);
    pool.submit(DiskRequest::Read {
        job: put,
        offset,
        len,
        block: block(len),
    });
    pool.submit(create(get, Path::new("")));
    for (offset, byte) in [(2500, b'b'), (0, b'a')] {
        let pieces = vec![Bytes::from(vec![byte; 2500])];
        pool.submit(DiskRequest::Write {
            job: get,
            offset,
            pieces,
        });
    }
    pool.submit(finish(get, 5000));
    let (mut head, mut tail, mut finished) = (Vec::new(), Vec::new(), false);
    while head.is_empty() || tail.is_empty() || !finished {
        match wait(&pool, &told) {
            DiskReply::Opened { first, eof, .. } => {
                assert!(!eof);
                head = first.to_vec();
            }
            DiskReply::Read { block, .. } => tail = block.to_vec(),
            DiskReply::Finished { .. } => finished = true,
            DiskReply::Failed { fault, .. } => panic!("{fault:?}"),
            _ => {}
        }
    }
    head.extend(tail);
    let expected: Vec<u8> = [vec![b'a'; 2500], vec![b'b'; 2500]].concat();
    assert_eq!(head, expected);
    pool.submit(DiskRequest::CloseSource { job: put });
    while !matches!(wait(&pool, &told), DiskReply::Released { .. }) {}
    pool.release(put);
    pool.release(get);
    // A relay replies before its request is over; the thread that ran it removes the job then.
    let until = std::time::Instant::now() + LIMIT;
    while !pool.shared.lock().jobs.is_empty() {
        assert!(std::time::Instant::now() < until, "a job stays");
        std::thread::yield_now();
    }
}

/// An upload to another host may not begin before its download moves, or has ended or failed.
#[test]
fn an_upload_awaits_its_download() {
    let (get, put) = (JobId(1), JobId(2));
    let len = usize::try_from(schedule::UPLOAD_BEGINS).expect("a small number");
    for ends in ["data", "end", "failure"] {
        let (pool, told) = pool();
        let relay = HostToHostBuffer::new(SourceFileMeta::default());
        pool.bind(get, Arc::clone(&relay));
        pool.bind(put, Arc::clone(&relay));
        let write = |len| DiskRequest::Write {
            job: get,
            offset: 5_000_000,
            pieces: vec![Bytes::from(vec![b'a'; len])],
        };
        pool.submit(DiskRequest::AwaitSource { job: put });
        pool.submit(write(len - 1));
        let written = wait(&pool, &told);
        assert!(matches!(written, DiskReply::Written { .. }), "{written:?}");
        match ends {
            "data" => pool.submit(write(1)),
            "end" => pool.submit(finish(get, 5_000_000 + len as u64 - 1)),
            _ => relay.break_off(schedule::JobFailure::new("gone", true)),
        }
        let reply = loop {
            let reply = wait(&pool, &told);
            if reply.job() == put {
                break reply;
            }
        };
        let failed = matches!(reply, DiskReply::Failed { .. });
        assert!(failed || matches!(reply, DiskReply::SourceReady { .. }));
        assert_eq!(failed, ends == "failure");
    }
}

/// `cp -3 --sparse` wrote the zeros of every hole at the receiving host.
#[test]
fn a_relay_of_a_sparse_file_filled_its_holes() {
    let (pool, told) = pool();
    let content = [
        vec![b'a'; 70_000],
        vec![0; 600_000],
        vec![b'b'; 1000],
        vec![0; 200_000],
    ]
    .concat();
    let mut meta = SourceFileMeta::default();
    meta.attributes.size = Some(content.len() as u64);
    let relay = HostToHostBuffer::new(meta);
    let (get, put) = (JobId(1), JobId(2));
    pool.bind(get, Arc::clone(&relay));
    pool.bind(put, relay);
    pool.submit(create(get, Path::new("")));
    for (at, piece) in content.chunks(100_000).enumerate() {
        pool.submit(DiskRequest::Write {
            job: get,
            offset: at as u64 * 100_000,
            pieces: vec![Bytes::copy_from_slice(piece)],
        });
    }
    pool.submit(finish(get, content.len() as u64));
    pool.submit(DiskRequest::OpenSource {
        job: put,
        path: "".into(),
        first: block(1000),
        sparse: true,
        pack: None,
    });
    let (mut copied, mut holes) = (vec![0; content.len()], Vec::new());
    loop {
        let at = match wait(&pool, &told) {
            DiskReply::Opened { first, .. } => {
                copied[..1000].copy_from_slice(&first.to_vec());
                1000
            }
            DiskReply::Read { offset, block, .. } => {
                let (data, at) = (block.to_vec(), offset as usize);
                copied[at..at + data.len()].copy_from_slice(&data);
                at + data.len()
            }
            DiskReply::Hole { offset, len, .. } => {
                holes.push((offset, len));
                (offset + len) as usize
            }
            DiskReply::Failed { fault, .. } => panic!("{fault:?}"),
            _ => continue,
        };
        if at == content.len() {
            break;
        }
        let len = 262_144;
        pool.submit(DiskRequest::Read {
            job: put,
            offset: at as u64,
            len,
            block: block(len),
        });
    }
    assert!(copied == content, "another content");
    let left_out: u64 = holes.iter().map(|(_, len)| len).sum();
    assert!(left_out > 700_000, "{holes:?}");
    pool.submit(DiskRequest::CloseSource { job: put });
    while !matches!(wait(&pool, &told), DiskReply::Released { .. }) {}
}

/// Bug: a relay replies while its request still runs, and the part that joined it at once found no
/// file: a large file between two hosts failed now and then.
#[test]
fn a_part_that_joined_a_relay_at_once_found_it_closed() {
    let ((told, tell), (go, goes)) = (unbounded(), unbounded());
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let pool = DiskThreadPool::new(3, None, Arc::default(), move || {
        let _ = told.send(());
        // The request that replies first is over once the part has joined.
        if is_first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            let _ = goes.recv_timeout(LIMIT);
        }
    })
    .expect("threads");
    let (get, part) = (JobId(1), JobId(2));
    pool.bind(get, HostToHostBuffer::new(SourceFileMeta::default()));
    pool.submit(create(get, Path::new("")));
    assert!(matches!(wait(&pool, &tell), DiskReply::Created { .. }));
    assert!(pool.poll_reply().is_none());
    pool.submit(DiskRequest::Join {
        job: part,
        file: get,
    });
    let joined = wait(&pool, &tell);
    assert!(matches!(joined, DiskReply::Joined { .. }), "{joined:?}");
    let _: Result<(), _> = go.send(());
}

/// Regression test: in a first block of several packets only the first packet was filled, and the
/// remaining 28 bytes counted as being after the end: a relayed file lost them.
#[test]
fn a_relay_fills_every_packet_of_the_first_block() {
    let (pool, told) = pool();
    for len in [32_668_u32, 32_669, 32_767, 32_768, 70_000] {
        let relay = HostToHostBuffer::new(SourceFileMeta::default());
        let (get, put) = (JobId(1), JobId(2));
        pool.bind(get, Arc::clone(&relay));
        pool.bind(put, relay);
        let content: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        pool.submit(create(get, Path::new("")));
        pool.submit(DiskRequest::Write {
            job: get,
            offset: 0,
            pieces: vec![Bytes::from(content.clone())],
        });
        pool.submit(finish(get, u64::from(len)));
        pool.submit(DiskRequest::OpenSource {
            job: put,
            path: "".into(),
            first: block(32_768),
            sparse: false,
            pack: None,
        });
        let (first, eof) = loop {
            match wait(&pool, &told) {
                DiskReply::Opened { first, eof, .. } => break (first.to_vec(), eof),
                DiskReply::Failed { fault, .. } => panic!("{fault:?}"),
                _ => {}
            }
        };
        let fits = content.len().min(32_768);
        assert_eq!(first, content[..fits], "of {len}");
        assert_eq!(eof, content.len() < 32_768, "of {len}");
        pool.release(put);
        pool.release(get);
    }
}

/// Simulates a full disk: the last write fails when the finish is already queued.
#[test]
fn a_file_with_a_write_that_failed_does_not_replace_the_old_one() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("file");
    fs::write(&path, "the old file")?;
    let (pool, told) = pool();
    let job = JobId(1);
    pool.submit(create(job, &path));
    for offset in [0, u64::MAX / 2 + 1] {
        pool.submit(DiskRequest::Write {
            job,
            offset,
            pieces: vec![Bytes::from_static(b"new")],
        });
    }
    pool.submit(finish(job, 6));
    let replies = [(); 4].map(|()| wait(&pool, &told));
    let failed = |r: &DiskReply| matches!(r, DiskReply::Failed { .. });
    assert_eq!(
        replies.iter().filter(|r| failed(r)).count(),
        2,
        "{replies:?}"
    );
    assert_eq!(fs::read_to_string(&path)?, "the old file");
    assert_eq!(
        fs::read_dir(dir.path())?.count(),
        1,
        "the temporary is gone"
    );
    Ok(())
}

/// Bug: a host that delivered 8 MB of each file for which it stated one byte made a copy between two
/// hosts hold all of them: 600 files took 2.3 GB. The first write is answered, since it begins the
/// upload.
#[test]
fn a_relayed_file_that_outgrew_its_size_took_memory_without_bound() {
    let (pool, told) = pool();
    let (limit, len) = (100_000, 300_000);
    let relay = HostToHostBuffer::bounded(SourceFileMeta::default(), limit, None);
    let (get, put) = (JobId(1), JobId(2));
    pool.bind(get, Arc::clone(&relay));
    pool.bind(put, relay);
    pool.submit(create(get, Path::new("")));
    assert!(matches!(wait(&pool, &told), DiskReply::Created { .. }));
    for part in 0..3 {
        pool.submit(DiskRequest::Write {
            job: get,
            offset: part * len,
            pieces: vec![Bytes::from(vec![b'a'; len as usize])],
        });
    }
    let written = |reply| match reply {
        DiskReply::Written { offset, .. } => offset,
        other => panic!("{other:?}"),
    };
    assert_eq!(written(wait(&pool, &told)), 0);
    // The replies to what is asked after the writes come, and those to the writes do not.
    pool.submit(DiskRequest::SyncTarget { job: get });
    assert!(matches!(wait(&pool, &told), DiskReply::Synced { .. }));
    assert!(pool.poll_reply().is_none());
    let (mut offset, mut replies) = (0, Vec::new());
    pool.submit(DiskRequest::OpenSource {
        job: put,
        path: "".into(),
        first: block(len as usize),
        sparse: false,
        pack: None,
    });
    while replies.len() < 2 {
        match wait(&pool, &told) {
            DiskReply::Written { offset, .. } => replies.push(offset),
            DiskReply::Opened { .. } | DiskReply::Read { .. } => {
                offset += len;
                if offset < 3 * len {
                    let (len, block) = (len as usize, block(len as usize));
                    pool.submit(DiskRequest::Read {
                        job: put,
                        offset,
                        len,
                        block,
                    });
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(replies, [len, 2 * len]);
}
