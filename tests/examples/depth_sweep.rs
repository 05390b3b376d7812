//! Measures the number of requests that may wait in sftp-server: small files are written and read
//! over pipes with a given number of requests in flight on one channel. The table in
//! docs/design/0003-small-files.md comes from this program, and the default of
//! `LaneConfig::requests` follows from it.
//!
//!     target/release/examples/depth_sweep [FILES [SIZE]]

use std::env;
use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sftp::{Attrs, ClientOutput, Handle, OpenFlags, Reply, Request, SftpClient, SftpClientOptions};
use wire::{PacketPool, PayloadBlock};

const SERVER: &str = "/usr/lib/openssh/sftp-server";
const DEPTHS: [usize; 9] = [16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384];
const SLOT: usize = 32 << 10;

type Answer<T> = Result<T, Box<dyn Error>>;

fn main() -> Answer<()> {
    let mut words = env::args().skip(1);
    let files: usize = words.next().map_or(Ok(20_000), |w| w.parse())?;
    let size: usize = words.next().map_or(Ok(4096), |w| w.parse())?;
    println!("{files} files of {size} bytes, one sftp-server over pipes, files a second");
    println!("{:>8} {:>10} {:>10}", "requests", "written", "read");
    for depth in DEPTHS {
        let folder = tempfile::Builder::new().tempdir_in("/dev/shm")?;
        let per_second = |took: Duration| files as f64 / took.as_secs_f64();
        let written = run(folder.path(), files, size, depth, write_file)?;
        let read = run(folder.path(), files, size, depth, read_file)?;
        let (written, read) = (per_second(written), per_second(read));
        println!("{depth:>8} {written:>10.0} {read:>10.0}");
        fs::remove_dir_all(folder.path())?;
    }
    Ok(())
}

/// Queues the requests of one file.
type File = fn(&mut SftpClient, &PacketPool, &[u8], usize);

fn run(folder: &Path, files: usize, size: usize, depth: usize, file: File) -> Answer<Duration> {
    let mut server = Server::start(depth)?;
    let pool = PacketPool::new(SLOT, 64);
    let start = Instant::now();
    for number in 0..files {
        let name = folder.join(format!("file-{number:06}"));
        file(
            &mut server.client,
            &pool,
            name.to_string_lossy().as_bytes(),
            size,
        );
        server.send()?;
        server.wait_below(depth)?;
    }
    server.wait_below(1)?;
    let took = start.elapsed();
    server.end()?;
    Ok(took)
}

/// Writes a file like an upload. The rename would wait for the answers; here it stands for its
/// cost.
fn write_file(client: &mut SftpClient, pool: &PacketPool, path: &[u8], size: usize) {
    let handle = Handle::openssh(0);
    let temp = [path, b".part"].concat();
    client.request(&Request::Open {
        path: &temp,
        flags: OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL,
        attrs: Attrs::with_permissions(0o644),
    });
    let mut block = PayloadBlock::new(pool, SLOT, SftpClient::write_reserve(4), size);
    block.append(&vec![7; size]);
    client.write(&handle, 0, block);
    let handle = handle.as_bytes();
    client.request(&Request::Close { handle });
    client.request(&Request::PosixRename {
        from: &temp,
        to: path,
    });
}

fn read_file(client: &mut SftpClient, _: &PacketPool, path: &[u8], _: usize) {
    let handle = Handle::openssh(0);
    let handle = handle.as_bytes();
    client.request(&Request::Open {
        path,
        flags: OpenFlags::READ,
        attrs: Attrs::default(),
    });
    client.request(&Request::Fstat { handle });
    client.request(&Request::Read {
        handle,
        offset: 0,
        len: 261_120,
    });
    client.request(&Request::Close { handle });
}

/// Server over pipes, and the requests in flight to it.
struct Server {
    child: Child,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    client: SftpClient,
    buffer: Vec<u8>,
}

impl Server {
    fn start(depth: usize) -> Answer<Self> {
        let mut child = Command::new(SERVER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(mut from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".into());
        };
        // Answers must always be read, or server and client wait for each other.
        let (pieces, output) = sync_channel(depth.max(1024) * 16);
        std::thread::spawn(move || {
            let mut piece = vec![0; 256 << 10];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                if pieces.send(piece[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut server = Self {
            child,
            input,
            output,
            client: SftpClient::new(SftpClientOptions::default()),
            buffer: Vec::new(),
        };
        server.send()?;
        while server.client.info().is_none() {
            let piece = server.output.recv()?;
            server.client.handle_input(Bytes::from(piece))?;
        }
        Ok(server)
    }

    fn send(&mut self) -> Answer<()> {
        self.buffer.clear();
        while let Some(output) = self.client.poll_output() {
            match output {
                ClientOutput::Bytes(bytes) => self.buffer.extend(bytes),
                ClientOutput::Block(block) => self.buffer.extend(block.to_vec()),
            }
        }
        Ok(self.input.write_all(&self.buffer)?)
    }

    /// Reads answers until fewer than `depth` are outstanding.
    fn wait_below(&mut self, depth: usize) -> Answer<()> {
        while self.client.pending() >= depth {
            let piece = self.output.recv()?;
            self.client.handle_input(Bytes::from(piece))?;
            while let Some((_, reply)) = self.client.poll_reply() {
                match reply {
                    Reply::Status(status) if !status.is_ok() => {
                        return Err(format!("refused: {status}").into());
                    }
                    Reply::Handle(handle) if handle != Handle::openssh(0) => {
                        return Err("another handle than was predicted".into());
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn end(mut self) -> Answer<()> {
        drop(self.input);
        self.child.wait()?;
        Ok(())
    }
}
