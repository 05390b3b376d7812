//! `longhaul ssh-config`: writes the lines that make ssh connect by `longhaul dial`.

use std::env;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use transfer::escape;
use transfer::operand::valid_host;

use crate::command_error::CommandError;
use crate::exit::Exit;
use crate::flags::low::SshConfigArgs;
use crate::{failed, show};

/// Comment that identifies our lines.
const MARK: &str = "# longhaul ssh-config:";
/// Largest ssh_config that is read, in bytes.
const MOST: u64 = 4 << 20;

/// Prints the lines, or appends them.
pub(crate) fn run(args: &SshConfigArgs) -> Exit {
    let program = match program() {
        Ok(program) => program,
        Err(why) => return failed(&why),
    };
    if let Some(host) = args.hosts.iter().find(|host| !is_pattern(host)) {
        let host = escape::name(host.as_bytes());
        return failed(format!(
            "{host}: not a host name or a pattern of host names"
        ));
    }
    let text = lines(&args.hosts, &program);
    for why in args.hosts.iter().filter_map(|host| stands_before(host)) {
        drop(writeln!(io::stderr(), "warning: {why}"));
    }
    if !args.write {
        return show(text.as_bytes());
    }
    match append(args.file.as_deref(), args.yes, &text) {
        Ok(said) => show(said.as_bytes()),
        Err(why) => failed(&why),
    }
}

/// The Host block. It may be appended to any file, since lines belong to the last `Host` before
/// them.
fn lines(hosts: &[String], program: &str) -> String {
    let hosts = match hosts {
        [] => "*".to_owned(),
        hosts => hosts.join(" "),
    };
    format!(
        "{MARK} connect through longhaul dial, which tunes the socket and passes it to \
         ssh.\nHost {hosts}\n    ProxyCommand {program} dial %h %p\n    ProxyUseFdpass yes\n    \
         IPQoS none\n"
    )
}

/// Checks one word of a `Host` line: a line end or a blank would begin something else there.
pub(crate) fn is_pattern(host: &str) -> bool {
    let name = host.trim_start_matches('!').replace(['*', '?'], "x");
    valid_host(&name) && !name.contains(['#', '='])
}

/// The command for this program in a shell that ssh starts: `longhaul` if the PATH leads here,
/// otherwise the path.
fn program() -> Result<String, CommandError> {
    let own =
        env::current_exe().map_err(|e| format!("cannot find the path of this program: {e}"))?;
    let path = env::var_os("PATH").unwrap_or_default();
    let first = env::split_paths(&path)
        .map(|folder| folder.join("longhaul"))
        .find(|file| file.is_file());
    let same = first.is_some_and(|file| file.canonicalize().ok() == own.canonicalize().ok());
    match same {
        true => Ok("longhaul".to_owned()),
        false => quoted(&own),
    }
}

/// Quotes a path for a shell, within a line in which ssh expands `%`.
fn quoted(path: &Path) -> Result<String, CommandError> {
    let text = path
        .to_str()
        .filter(|text| !text.contains(char::is_control));
    let Some(text) = text else {
        let path = escape::path(path);
        return Err(format!(
            "{path}: this path cannot be written in ssh_config, because it has control characters \
             or is not UTF-8: install longhaul elsewhere"
        )
        .into());
    };
    let text = text.replace('%', "%%");
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+%".contains(c);
    match text.chars().all(plain) {
        true => Ok(text),
        false => Ok(format!("'{}'", text.replace('\'', "'\\''"))),
    }
}

/// The existing configuration of a host that takes precedence over lines at the end, as reported by
/// `ssh -G`.
fn stands_before(host: &str) -> Option<String> {
    if host.contains(['*', '?', '!']) {
        return None;
    }
    let output = Command::new("ssh").args(["-G", "--", host]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let of = |keyword: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(keyword))?;
        (value != "none").then(|| escape::name(value.as_bytes()).to_string())
    };
    if let Some(hops) = of("proxyjump ") {
        return Some(format!(
            "{host} has ProxyJump {hops}, which takes precedence over a ProxyCommand: use \
             longhaul ssh-config {hops} instead"
        ));
    }
    let command = of("proxycommand ").filter(|command| !command.contains("longhaul"))?;
    Some(format!(
        "{host} already has the ProxyCommand {command}, which takes precedence: remove it to use \
         longhaul"
    ))
}

/// Appends the lines, after asking. Returns the message to print.
pub(crate) fn append(file: Option<&Path>, yes: bool, text: &str) -> Result<String, CommandError> {
    let file = match file {
        Some(file) => file.to_owned(),
        None => of_user()?,
    };
    let shown = escape::path(&file).to_string();
    let fail = |error: io::Error| format!("{shown}: {error}");
    let before = match read(&file) {
        Ok(before) => before,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(fail(error).into()),
    };
    if contains(&before, text.as_bytes()) {
        return Ok(format!("{shown} already has these lines\n"));
    }
    if !yes {
        ask(&shown, text)?;
    }
    if let Some(folder) = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(fail)?;
    }
    let gap = match before.last() {
        None => "",
        Some(b'\n') => "\n",
        Some(_) => "\n\n",
    };
    let mut options = OpenOptions::new();
    let opened = options.append(true).create(true).mode(0o600).open(&file);
    let mut opened = opened.map_err(fail)?;
    // One write, so that no reader sees half of it.
    opened
        .write_all(format!("{gap}{text}").as_bytes())
        .and_then(|()| opened.sync_all())
        .map_err(fail)?;
    Ok(format!("lines added to {shown}\n"))
}

fn of_user() -> Result<PathBuf, CommandError> {
    env::home_dir()
        .map(|home| home.join(".ssh/config"))
        .ok_or_else(|| "cannot find the home directory: use --file FILE".into())
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let opened = OpenOptions::new().read(true).open(file)?;
    opened.take(MOST + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MOST {
        true => Err(io::Error::other(
            "the file is too large for an ssh_config: name another with --file",
        )),
        false => Ok(bytes),
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn ask(file: &str, text: &str) -> Result<(), CommandError> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(format!(
            "nothing was written to {file}: there is no terminal on which to ask for permission: \
             use --yes to append the lines without asking"
        )
        .into());
    }
    let mut out = io::stderr();
    let asked = write!(out, "{text}\nAppend these lines to {file}? [y/N] ");
    asked.and_then(|()| out.flush())?;
    let mut answer = String::new();
    let read = stdin.lock().take(64).read_line(&mut answer);
    read.map_err(|e| format!("cannot read the answer: {e}"))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err("nothing written".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_for_the_hosts_that_were_named() {
        let text = lines(&["a".to_owned(), "*.b".to_owned()], "longhaul");
        assert!(text.contains("\nHost a *.b\n    ProxyCommand longhaul dial %h %p\n"));
        assert!(lines(&[], "longhaul").contains("\nHost *\n"));
    }

    #[test]
    fn a_host_is_one_word_of_its_line() {
        for host in ["a", "*.b", "!x", "*", "10.0.?.*", "2001:db8::1"] {
            assert!(is_pattern(host), "{host}");
        }
        for host in [
            "",
            "a b",
            "a\nProxyCommand x",
            "a\tb",
            "\"a",
            "#",
            "a\u{1b}",
            "$(id)",
        ] {
            assert!(!is_pattern(host), "{host:?}");
        }
    }

    #[test]
    fn a_path_is_for_a_shell_behind_percent_signs() {
        let quoted = |path: &str| quoted(Path::new(path)).unwrap();
        assert_eq!(quoted("/usr/bin/longhaul"), "/usr/bin/longhaul");
        assert_eq!(quoted("/a b/100%/it's"), "'/a b/100%%/it'\\''s'");
        assert!(super::quoted(Path::new("/a\nProxyCommand x")).is_err());
    }

    #[test]
    fn lines_are_appended_once_and_nothing_else_is_touched() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join(".ssh/config");
        let text = lines(&[], "longhaul");
        append(Some(&file), true, &text).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        std::fs::write(&file, "Host old\n    Port 5").unwrap();
        append(Some(&file), true, &text).unwrap();
        let both = format!("Host old\n    Port 5\n\n{text}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), both);
        assert!(
            append(Some(&file), true, &text)
                .unwrap()
                .contains("already")
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), both);
    }

    #[test]
    fn without_a_terminal_nothing_is_written_unasked() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("config");
        if io::stdin().is_terminal() {
            return;
        }
        let why = append(Some(&file), false, "x").unwrap_err();
        let why = why.to_string();
        assert!(why.contains("--yes"), "{why}");
        assert!(!file.exists());
    }
}
