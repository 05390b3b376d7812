//! The demo's race: each case with scp, then with longhaul, never both at once, since they would
//! share the path.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use longhaul_tests::{longhaul, remote};
use rustix::process::{Pid, Signal, kill_process};
use testkit::tree::{Compare, differences, write_file};
use testkit::{Seed, missing};

use crate::chart::{self, Row, Time};

/// Time limit of a copy. scp needs 18 s for the tree at 114 ms, and the whole demo is to take less
/// than a minute.
const LIMIT: Duration = Duration::from_secs(25);

/// Environment of the race.
pub(crate) struct Ground {
    /// Description of the path.
    pub(crate) about: String,
    /// ssh_config that knows the host.
    pub(crate) config: PathBuf,
    pub(crate) host: &'static str,
    /// Time that connecting would take on a real path, if it takes none here.
    pub(crate) connecting: Duration,
    /// Folder for the files and the host memory.
    pub(crate) folder: PathBuf,
}

/// Amount of data.
pub(crate) struct Sizes {
    bytes: usize,
    folders: usize,
    files_in_each: usize,
}

impl Sizes {
    pub(crate) fn new(quick: bool) -> Self {
        let (bytes, folders, files_in_each) = if quick {
            (1_000_000, 1, 3)
        } else {
            (64_000_000, 4, 8)
        };
        Self {
            bytes,
            folders,
            files_in_each,
        }
    }
}

struct Case {
    title: String,
    flags: &'static [&'static str],
    name: &'static str,
    up: bool,
}

fn cases(sizes: &Sizes) -> [Case; 4] {
    let case = |title: String, flags, name, up| {
        let way = if up { "upload" } else { "download" };
        let title = format!("{title}, {way}");
        Case {
            title,
            flags,
            name,
            up,
        }
    };
    let file = format!("{} MB in one file", sizes.bytes / 1_000_000);
    let files = sizes.folders * sizes.files_in_each;
    let tree = format!("{files} files of 4 kB");
    [
        case("1 kB in one file".to_owned(), &[], "tiny", true),
        case(tree, &["-r"], "tree", true),
        case(file.clone(), &[], "file", true),
        case(file, &[], "file", false),
    ]
}

/// Runs all cases; true if every copy is complete, except scp's that were stopped by the time
/// limit.
pub(crate) fn run(ground: &Ground, sizes: &Sizes) -> Result<bool, Box<dyn std::error::Error>> {
    let limit = match std::env::var("DEMO_LIMIT") {
        Ok(seconds) => Duration::try_from_secs_f64(seconds.parse()?)?,
        Err(_) => LIMIT,
    };
    write_file(&ground.folder.join("tiny"), &[b'x'; 1000]);
    write_file(
        &ground.folder.join("file"),
        &Seed::new(1).bytes(sizes.bytes),
    );
    make_tree(&ground.folder.join("tree"), sizes)?;
    match programs().as_slice() {
        [_] => println!("longhaul alone (scp is not installed), {}", ground.about),
        _ => println!("scp and longhaul, {}", ground.about),
    }
    let mut good = true;
    let mut rows = Vec::new();
    for case in cases(sizes) {
        println!("\n{}", case.title);
        for program in programs() {
            let time = one(ground, &case, program, limit)?;
            good &= match time {
                Time::Took(_) => true,
                Time::Stopped(_) => program == "scp",
                Time::Failed => false,
            };
            rows.push(Row {
                case: case.title.clone(),
                program,
                time,
            });
        }
    }
    println!("\nTime to copy, less is better; {}", ground.about);
    print!("{}", chart::draw(&rows, colors()));
    if let Some(file) = std::env::var_os("DEMO_RESULTS") {
        let caption = format!("{}; {} (make demo)", ground.about, openssh()?);
        fs::write(&file, chart::kept(&caption, &rows))
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(good)
}

/// Returns the programs: scp only if it and ssh are installed.
fn programs() -> Vec<&'static str> {
    let installed = ["scp", "ssh"].map(|name| missing::find_program(name).is_some());
    match installed.contains(&false) {
        true => vec!["longhaul"],
        false => vec!["scp", "longhaul"],
    }
}

fn make_tree(root: &Path, sizes: &Sizes) -> io::Result<()> {
    let mut seed = Seed::new(2);
    for folder in 0..sizes.folders {
        let folder = root.join(format!("folder-{folder}"));
        fs::create_dir_all(&folder)?;
        for file in 0..sizes.files_in_each {
            write_file(&folder.join(format!("file-{file}")), &seed.bytes(4_000));
        }
    }
    Ok(())
}

/// False under NO_COLOR (<https://no-color.org>), or without a terminal that supports colors.
fn colors() -> bool {
    let no = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    !no && !dumb && io::stdout().is_terminal()
}

fn openssh() -> io::Result<String> {
    let Ok(told) = Command::new("ssh").arg("-V").output() else {
        return Ok("no OpenSSH".to_owned());
    };
    let said = told.stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    let version = said.split(',').next().unwrap_or_default();
    Ok(version.trim().replace('_', " "))
}

fn one(ground: &Ground, case: &Case, program: &str, limit: Duration) -> io::Result<Time> {
    let copy = ground.folder.join("copy");
    let source = ground.folder.join(case.name);
    let (from, to): (OsString, OsString) = if case.up {
        (source.clone().into(), remote(ground.host, &copy))
    } else {
        (remote(ground.host, &source), copy.clone().into())
    };
    let mut command = match program {
        "scp" => Command::new("scp"),
        _ => {
            let mut command = Command::new(longhaul());
            command.arg("cp");
            command
        }
    };
    command
        .arg("-F")
        .arg(&ground.config)
        .args(case.flags)
        .arg(from)
        .arg(to)
        // longhaul's host memory is kept out of the user's cache.
        .env("XDG_CACHE_HOME", ground.folder.join("cache"))
        .env_remove("SSH_AUTH_SOCK")
        .env_remove("SSH_ASKPASS");
    // Both show progress on a terminal only, and scp only in the foreground.
    let live = io::stdout().is_terminal() && io::stderr().is_terminal();
    let said = ground.folder.join("said");
    if live {
        println!("  {program}");
    } else {
        print!("  {program:<8}  ");
        command.stdout(Stdio::null()).stderr(File::create(&said)?);
    }
    io::stdout().flush()?;
    let ran = within(limit, command.stdin(Stdio::null()))?;
    let said = if live {
        String::new()
    } else {
        fs::read_to_string(&said)?
    };
    let time = judge(&ran, ground, &source, &copy);
    match time {
        // Its own lines were visible already.
        Time::Took(_) if live => {}
        Time::Took(took) => {
            let line = format!("{:6.2} s  {}", took.as_secs_f64(), last_line(&said));
            println!("{}", line.trim_end());
        }
        Time::Stopped(after) => println!(
            "{}stopped after {} s",
            if live { "\n  " } else { "" },
            after.as_secs_f64()
        ),
        Time::Failed => println!("failed: {}", said.trim()),
    }
    remove(&copy)?;
    Ok(time)
}

struct Ran {
    /// `None` if the program was stopped by the time limit.
    status: Option<ExitStatus>,
    elapsed: Duration,
}

fn within(limit: Duration, command: &mut Command) -> io::Result<Ran> {
    let start = Instant::now();
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let (sender, ended) = channel();
    std::thread::spawn(move || {
        let status = child.wait();
        let _ = sender.send((status, start.elapsed()));
    });
    match ended.recv_timeout(limit) {
        Ok((status, elapsed)) => Ok(Ran {
            status: Some(status?),
            elapsed,
        }),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            // scp restores the terminal, and its ssh ends with it.
            let _ = kill_process(pid, Signal::TERM);
            let _ = ended.recv();
            Ok(Ran {
                status: None,
                elapsed: limit,
            })
        }
    }
}

fn judge(ran: &Ran, ground: &Ground, source: &Path, copy: &Path) -> Time {
    match ran.status {
        None => Time::Stopped(ran.elapsed),
        Some(status)
            if status.success() && differences(source, copy, Compare::CONTENT).is_empty() =>
        {
            Time::Took(ran.elapsed + ground.connecting)
        }
        Some(_) => Time::Failed,
    }
}

/// Returns longhaul's closing line, if it was not visible while it ran.
fn last_line(said: &str) -> &str {
    said.lines().next_back().unwrap_or_default()
}

fn remove(copy: &Path) -> io::Result<()> {
    let gone = match fs::symlink_metadata(copy) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(copy),
        Ok(_) => fs::remove_file(copy),
        Err(error) => Err(error),
    };
    gone.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}
