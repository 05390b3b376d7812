//! `longhaul dial`: connects, tunes the socket, and passes it to ssh or copies the bytes if ssh
//! does not take it.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use rustix::fs::{FileType, fstat};
use sys::{Keepalive, SocketTuning, distance};
use transfer::config::ConnectTimeout;
use transfer::connect::{AllowedAddressFamilies, TcpConnectSettings, pass_socket};
use transfer::escape;

use crate::exit::Exit;
use crate::flags::argument_error::ArgumentError;
use crate::flags::low::{self, DialArgs, RelayArgs, TerminalSetting};
use crate::flags::table::PairArgs;
use crate::{congestion, relaying};

/// Buffer size for copying, in bytes.
const PIECE: usize = 256 * 1024;

/// Connects, then passes the socket to ssh and exits, or copies bytes until the connection ends.
pub(crate) fn run(args: &DialArgs) -> Exit {
    if let Some(name) = &args.congestion
        && let Err(why) = congestion::permitted(name)
    {
        return tell(why, Exit::Usage);
    }
    if args.via.is_some() || args.pair.is_some() {
        return through_a_pair(args);
    }
    let dial = TcpConnectSettings {
        family: match args.family {
            low::AddressFamilyArg::Any => AllowedAddressFamilies::Any,
            low::AddressFamilyArg::V4 => AllowedAddressFamilies::V4,
            low::AddressFamilyArg::V6 => AllowedAddressFamilies::V6,
        },
        bind: args.bind,
        timeout: Some(ConnectTimeout::Fixed(args.timeout)),
        attempts: args.attempts,
        tuning: SocketTuning {
            dscp: args.dscp.value(),
            // ssh sets keepalive only on sockets that it has connected itself (sshconnect.c).
            keepalive: Keepalive::KernelTimes,
            congestion: args.congestion.clone(),
            ..SocketTuning::default()
        },
    };
    let name = escape::name(args.host.as_bytes());
    let stream = match dial.connect(&args.host, args.port) {
        Ok(stream) => stream,
        Err(why) => {
            let name = name.to_string();
            let cannot = format!("cannot connect to {name} port {}", args.port);
            return tell(why.sentence(&name, &cannot), Exit::NoConnection);
        }
    };
    if args.congestion.is_none() {
        suit_the_path(&stream);
    }
    // The socket was connected without blocking; its receiver expects a blocking one.
    if let Err(why) = stream.set_nonblocking(false) {
        return tell(format!("{name}: {why}"), Exit::NoConnection);
    }
    let done = match hands_over(args.fdpass) {
        true => pass_socket(io::stdout(), stream.as_fd()).map_err(|e| {
            format!(
                "cannot pass the socket to ssh: {e}; check that ssh_config has ProxyUseFdpass yes"
            )
        }),
        false => carry(&stream).map_err(|e| format!("{name}: the connection was lost: {e}")),
    };
    match done {
        Ok(()) => Exit::Done,
        Err(why) => tell(why, Exit::NoConnection),
    }
}

/// Checks the relay of `--pair`.
fn relay_address(given: &str) -> Result<(), ArgumentError> {
    match format!("{given}/pair").parse::<relay::TargetSpec>() {
        Ok(_) => Ok(()),
        Err(_) if !given.contains(':') => {
            let given = escape::name(given.as_bytes());
            Err(format!("--pair: '{given}' has no port: give the relay as HOST:PORT").into())
        }
        Err(why) => {
            let given = escape::name(given.as_bytes());
            Err(format!("--pair: '{given}' {why}").into())
        }
    }
}

/// Connects over a relay pair, of which this process is one half.
fn through_a_pair(args: &DialArgs) -> Exit {
    if hands_over(args.fdpass) {
        let why =
            "--via and --pair cannot pass a socket to ssh: set ProxyUseFdpass no in ssh_config";
        return tell(why, Exit::Usage);
    }
    let host = match args.host.contains(':') {
        true => format!("[{}]", args.host),
        false => args.host.clone(),
    };
    if let Some(Err(why)) = args.pair.as_deref().map(relay_address) {
        return tell(why, Exit::Usage);
    }
    let target = match &args.pair {
        Some(relay) => format!("{relay}/pair"),
        None => format!("{host}:{}", args.port),
    };
    let relay = RelayArgs {
        entrance: "-".to_owned(),
        targets: vec![target],
        dscp: args.dscp,
        congestion: args.congestion.clone(),
        bind: args.bind.into_iter().collect(),
        connect_timeout: Some(args.timeout),
        pair: PairArgs {
            via: args.via.clone(),
            ssh_config: args.ssh_config.clone(),
            ..PairArgs::default()
        },
        ..RelayArgs::default()
    };
    match relaying::run(&relay) {
        Ok(Exit::Done) => Exit::Done,
        Ok(_) => Exit::NoConnection,
        Err(why) => {
            let exit = why.exit();
            tell(why, exit)
        }
    }
}

fn tell(why: impl Display, exit: Exit) -> Exit {
    let why = crate::output::console::for_user(&why.to_string());
    drop(writeln!(io::stderr(), "longhaul dial: {why}"));
    exit
}

/// Sets BBR if the host is far and the kernel permits it. CUBIC takes each loss for congestion, and
/// after the handover no process is left that could react to losses.
pub(crate) fn suit_the_path(stream: &TcpStream) {
    let far = Duration::from_micros(distance::LOSSES_US.into());
    if sys::tcp_info(stream).is_some_and(|tcp| tcp.rtt >= far) {
        let _ = sys::set_congestion_control(stream, distance::CONGESTION);
    }
}

/// Returns true if the socket is to be passed over standard output. ssh uses one socket as standard
/// input and output for that. libssh and others do so as well for plain bytes, so `auto` requires
/// ssh as the parent.
fn hands_over(fdpass: TerminalSetting) -> bool {
    match fdpass {
        TerminalSetting::Always => true,
        TerminalSetting::Never => false,
        TerminalSetting::Auto => is_one_socket() && parent_is_ssh(),
    }
}

fn is_one_socket() -> bool {
    let (Ok(input), Ok(output)) = (fstat(io::stdin()), fstat(io::stdout())) else {
        return false;
    };
    FileType::from_raw_mode(output.st_mode) == FileType::Socket
        && (input.st_dev, input.st_ino) == (output.st_dev, output.st_ino)
}

/// Returns true if ssh is the parent. The shell that ssh started has become this process by `exec`.
fn parent_is_ssh() -> bool {
    let parent = rustix::process::getppid();
    let name = parent.and_then(|pid| {
        let file = format!("/proc/{}/comm", pid.as_raw_nonzero());
        std::fs::read_to_string(file).ok()
    });
    matches!(name.as_deref().map(str::trim), Some("ssh" | "hpnssh"))
}

/// Copies bytes until both directions have ended or the connection breaks.
fn carry(stream: &TcpStream) -> io::Result<()> {
    let up = stream.try_clone()?;
    // `File` instead of `Stdin` and `Stdout`, which buffer.
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    thread::Builder::new().spawn(move || {
        let _ = pour(&mut input, &mut &up);
        let _ = up.shutdown(std::net::Shutdown::Write);
    })?;
    match pour(&mut &*stream, &mut output) {
        // A reader that closes the pipe is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        carried => carried,
    }
}

/// Copies with read and write. The standard library's copy uses splice(2), which waits for the
/// socket with the pipe locked (splice_file_to_pipe): ssh could not read the content of the pipe
/// until more arrived.
fn pour(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => to.write_all(&buffer[..len])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
