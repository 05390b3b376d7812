//! Measures how much parallel reads on the blocking pool help: READs at random places of a file
//! that is not in memory, answered one after the other and several at a time.
//!
//!     cargo run --release -p longhaul-serve --example cold_reads -- FOLDER_ON_A_DISK

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::{Advice, fadvise};
use serve::{Access, AnswerChunk, ExportedTree, SftpServer};
use sftp::{Attrs, Init, OpenFlags, Request, RequestId, frame};
use wire::RemainingBytes;

const SIZE: u64 = 1 << 30;
const READ: u32 = 32 << 10;
const READS: u32 = 2_000;
const ROUNDS: usize = 5;

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1);
    let folder = folder.ok_or_else(|| io::Error::other("say in which folder, on a disk"))?;
    let folder = tempfile::tempdir_in(folder)?;
    let path = folder.path().join("file");
    let mut file = File::create(&path)?;
    let noise: Vec<u8> = (0..1 << 20).map(|n: u32| ((n * n) >> 7) as u8).collect();
    for _ in 0..SIZE >> 20 {
        file.write_all(&noise)?;
    }
    file.sync_all()?;
    let mut took = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for (several, took) in [false, true].into_iter().zip(&mut took) {
            took.push(run(folder.path(), several, round as u64)?);
        }
    }
    for (what, took) in ["one after the other", "several at once"]
        .iter()
        .zip(&mut took)
    {
        took.sort();
        let (least, median, most) = (took[0], took[ROUNDS / 2], took[ROUNDS - 1]);
        println!("{READS} reads of {READ} bytes, {what}: {median:.2?} ({least:.2?} to {most:.2?})");
    }
    fs::remove_file(path)
}

fn run(folder: &Path, several: bool, round: u64) -> io::Result<Duration> {
    fadvise(File::open(folder.join("file"))?, 0, None, Advice::DontNeed)?;
    let export = ExportedTree::beneath(folder, Access::ReadOnly).map_err(io::Error::other)?;
    let mut server = SftpServer::new(&export);
    if several {
        server.several_at_once(false);
    }
    let mut input = Vec::new();
    let extensions = RemainingBytes(&[]);
    let init = Init {
        version: 3,
        extensions,
    };
    frame(&mut input, |out| init.encode(out));
    let open = Request::Open {
        path: b"/file",
        flags: OpenFlags::READ,
        attrs: Attrs::default(),
    };
    open.encode(RequestId(0), &mut input);
    let mut place = round;
    for id in 1..=READS {
        // Knuth's linear congruential generator: offsets without a pattern that read-ahead would
        // detect.
        place = place
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let read = Request::Read {
            handle: &[0; 4],
            offset: (place >> 20) % (SIZE - u64::from(READ)),
            len: READ,
        };
        read.encode(RequestId(id), &mut input);
    }
    let (mut input, mut bytes, begun) = (Bytes::from(input), 0, Instant::now());
    while bytes < u64::from(READS) * u64::from(READ) {
        server.handle(&mut input).map_err(io::Error::other)?;
        server.take_answers(|answer| {
            bytes += match answer {
                AnswerChunk::Bytes(bytes) => bytes.len() as u64,
                AnswerChunk::Block(block) => block.len() as u64,
            };
            Ok::<_, io::Error>(())
        })?;
    }
    Ok(begun.elapsed())
}
