//! Runs `ssh -G` to evaluate OpenSSH's configuration.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Command, Output, Stdio};

use super::{AddressFamily, ConfigError, EvaluatedConfig, HostConfigQuery, given};
use crate::escape;

/// Runs `ssh -G` to evaluate OpenSSH's configuration; `None` if ssh is not installed or too old for
/// `-G` (before 6.8, 2015).
pub(super) fn with_ssh(query: &HostConfigQuery) -> Result<Option<EvaluatedConfig>, ConfigError> {
    let program = query.ssh.clone().unwrap_or_else(|| "ssh".into());
    // Both processes run concurrently; each takes some milliseconds.
    let asked = spawn(&program, &arguments(query));
    let defaults = spawn(
        &program,
        &["-G", "-T", "-F", "/dev/null", "--", &query.host].map(Into::into),
    );
    let (asked, defaults) = match (asked, defaults) {
        (Ok(asked), Ok(defaults)) => (asked, defaults),
        (Err(e), _) | (_, Err(e)) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        (Err(e), _) | (_, Err(e)) => return Err(not_run(&program, &e)),
    };
    let asked = asked
        .wait_with_output()
        .map_err(|e| not_run(&program, &e))?;
    let defaults = defaults
        .wait_with_output()
        .map_err(|e| not_run(&program, &e))?;
    if !defaults.status.success() && !asked.status.success() {
        // The second query passed only a host, so this ssh does not support -G.
        return Ok(None);
    }
    if !asked.status.success() {
        let complaints = complaints(&asked);
        let own = given_option(&complaints, &query.options).or_else(|| given_file(&complaints));
        return Err(ConfigError::new(own.unwrap_or_else(|| {
            format!(
                "{} -G reports an error in ssh_config or in the flags: {}",
                escape::os(&program),
                complaints.join("; ")
            )
        })));
    }
    Ok(Some(EvaluatedConfig {
        lines: lines(&asked),
        defaults: lines(&defaults),
        warnings: complaints(&asked),
    }))
}

/// Starts ssh without environment variables that contain control characters: `${NAME}` in a file
/// would put a newline into ssh's output.
fn spawn(program: &OsStr, arguments: &[OsString]) -> io::Result<Child> {
    let mut command = Command::new(program);
    for name in unclean(std::env::vars_os()) {
        command.env_remove(name);
    }
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Returns the names of variables with a control character in name or value.
fn unclean(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<OsString> {
    let control = |text: &OsStr| text.as_bytes().iter().any(u8::is_ascii_control);
    variables
        .filter(|(name, value)| control(name) || control(value))
        .map(|(name, _)| name)
        .collect()
}

fn not_run(program: &OsStr, error: &io::Error) -> ConfigError {
    ConfigError::new(format!("cannot run {}: {error}", escape::os(program)))
}

/// Returns ssh's flags in scp's order, since the first value of an option wins.
fn arguments(query: &HostConfigQuery) -> Vec<OsString> {
    // -T avoids a message about a missing terminal.
    let mut arguments: Vec<OsString> = vec!["-G".into(), "-T".into()];
    let mut flag = |name: &str, value: &OsStr| {
        arguments.push(name.into());
        arguments.push(value.into());
    };
    if let Some(file) = &query.file {
        flag("-F", file.as_os_str());
    }
    if let Some(port) = query.port {
        flag("-p", port.to_string().as_ref());
    }
    if let Some(user) = &query.user {
        flag("-l", user.as_ref());
    }
    if let Some(jump) = &query.jump {
        flag("-J", jump.as_ref());
    }
    for identity in &query.identities {
        flag("-i", identity.as_os_str());
    }
    if query.compression {
        // OpenSSH 10 prints the value that -C sets as "UNKNOWN".
        flag("-o", "Compression=yes".as_ref());
    }
    for option in query.all_options() {
        flag("-o", option.as_ref());
    }
    match query.family {
        AddressFamily::Any => {}
        AddressFamily::Inet => arguments.push("-4".into()),
        AddressFamily::Inet6 => arguments.push("-6".into()),
    }
    if query.quiet {
        arguments.push("-q".into());
    }
    arguments.push("--".into());
    arguments.push(query.host.clone().into());
    arguments
}

fn lines(output: &Output) -> Vec<(String, String)> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(keyword, value)| (keyword.to_ascii_lowercase(), value.to_owned()))
        .collect()
}

/// Returns ssh's messages without debug output (LogLevel DEBUG).
fn complaints(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr)
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("debug"))
        // The message is shown as a warning.
        .map(|line| line.strip_prefix("Warning: ").unwrap_or(line))
        .map(|line| escape::name(line.as_bytes()).to_string())
        .collect()
}

/// The sentence for an unknown option that was given with -o, among these `options`. ssh names it
/// in lower case.
fn given_option(complaints: &[String], options: &[String]) -> Option<String> {
    let [complaint] = complaints else { return None };
    let (place, keyword) = complaint.split_once("Bad configuration option: ")?;
    if !place.starts_with("command-line") {
        return None;
    }
    let is_meant = |option: &&String| given::split(option).is_some_and(|(name, _)| name == keyword);
    let option = options.iter().find(is_meant).map(String::as_str);
    let option = escape::name(option.unwrap_or(keyword).as_bytes());
    Some(format!(
        "-o {option}: no such option; the options are those of ssh_config(5)"
    ))
}

/// The sentence for a file given with -F that cannot be read.
fn given_file(complaints: &[String]) -> Option<String> {
    let [complaint] = complaints else { return None };
    let (file, why) = complaint
        .strip_prefix("Can't open user config file ")?
        .rsplit_once(": ")?;
    Some(unreadable_file(file, &why.to_ascii_lowercase()))
}

/// The sentence for a file given with -F that cannot be read for the reason `why`.
pub(super) fn unreadable_file(file: &str, why: &str) -> String {
    format!(
        "-F {file}: cannot read the configuration file: {why}; name a file in the format of \
         ssh_config(5), or leave out -F"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_option_is_named_as_it_was_given() {
        let options = ["Port=22".to_owned(), "NonSense = 1".to_owned()];
        let said = |text: &str| given_option(&[text.to_owned()], &options);
        // Bug: ssh's lower case was shown.
        assert_eq!(
            said("command-line: line 0: Bad configuration option: nonsense").as_deref(),
            Some("-o NonSense = 1: no such option; the options are those of ssh_config(5)")
        );
        let in_file = "/home/u/.ssh/config: line 3: Bad configuration option: nonsense";
        assert_eq!(said(in_file), None);
        assert_eq!(said("command-line line 0: Bad port 'x'."), None);
    }

    /// Bug: the reason came with the words "ssh: ssh -G reports an error in the ssh configuration".
    #[test]
    fn a_file_that_cannot_be_read_is_named_with_its_flag() {
        let complaint = "Can't open user config file /no: such/file: No such file or directory";
        let said = given_file(&[complaint.to_owned()]).unwrap_or_default();
        let begin = "-F /no: such/file: cannot read the configuration file: no such file or \
                     directory; ";
        assert!(said.starts_with(begin), "{said}");
    }

    #[test]
    fn a_warning_of_ssh_is_called_a_warning_once() {
        use std::os::unix::process::ExitStatusExt as _;
        let said = "Warning: Identity file nokey not accessible: No such file or directory.\n\
                    debug1: x\n";
        let output = Output {
            status: std::process::ExitStatus::from_raw(0),
            stdout: Vec::new(),
            stderr: said.as_bytes().to_vec(),
        };
        let told = "Identity file nokey not accessible: No such file or directory.";
        assert_eq!(complaints(&output), [told]);
    }

    #[test]
    fn variables_with_a_line_end_are_not_shown_to_ssh() {
        let variables = [
            ("HOME", "/home/me"),
            ("X", "/k\nproxycommand touch pwned"),
            ("BASH_FUNC_f%%", "() { :\n}"),
            ("Y\u{1}", ""),
            ("Z", "caf\u{e9} b"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(
            unclean(variables.into_iter()),
            ["X", "BASH_FUNC_f%%", "Y\u{1}"]
        );
    }
}
