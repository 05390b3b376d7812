//! Evaluates ssh_config without OpenSSH, using ssh2-config. Supports Host and Include but not
//! Match.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::{fs, io};

use ssh2_config::{Algorithms, HostParams, ParseRule, SshConfig};

use super::evaluate::unreadable_file;
use super::{AddressFamily, ConfigError, EvaluatedConfig, HostConfigQuery, LocalUser};
use crate::disk::os_words;
use crate::escape;

/// The maximum size of a configuration file in bytes.
const MAX_FILE: u64 = 4 << 20;

pub(super) fn evaluate(
    query: &HostConfigQuery,
    user: &LocalUser,
) -> Result<EvaluatedConfig, ConfigError> {
    let mut evaluated = EvaluatedConfig::default();
    let mut sources = vec![(None, command_line(query))];
    for path in files(query, user) {
        match read(&path) {
            Ok(text) => sources.push((Some(path), text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound && query.file.is_none() => {}
            Err(e) => {
                let (shown, why) = (escape::path(&path), os_words(&e));
                return Err(ConfigError::new(match query.file {
                    Some(_) => unreadable_file(&shown.to_string(), &why),
                    None => format!("{shown}: cannot read the configuration file: {why}"),
                }));
            }
        }
    }
    // IdentityFile values accumulate; of every other option the first value counts.
    for (path, text) in sources {
        let lines = parse(path.as_deref(), &text, query, user, &mut evaluated)?;
        for (keyword, value) in lines {
            let adds_up = matches!(keyword.as_str(), "identityfile");
            if adds_up || !evaluated.lines.iter().any(|(k, _)| *k == keyword) {
                evaluated.lines.push((keyword, value));
            }
        }
    }
    evaluated.defaults = algorithm_lines(&HostParams::new(&Default::default()), true);
    Ok(evaluated)
}

fn files(query: &HostConfigQuery, user: &LocalUser) -> Vec<PathBuf> {
    match &query.file {
        Some(none) if none.as_os_str() == "none" => Vec::new(),
        Some(file) => vec![file.clone()],
        None => {
            let own = user.home.as_ref().map(|h| h.join(".ssh/config"));
            own.into_iter()
                .chain([PathBuf::from("/etc/ssh/ssh_config")])
                .collect()
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    use io::Read as _;
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(MAX_FILE)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Converts the flags to lines of a file that is read first.
fn command_line(query: &HostConfigQuery) -> String {
    let mut text = String::new();
    // No value has a newline, which would start another option (`HostConfigQuery::check`).
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    query.port.iter().for_each(|p| line(format!("Port {p}")));
    query
        .user
        .iter()
        .for_each(|u| line(format!("User \"{u}\"")));
    query
        .jump
        .iter()
        .for_each(|j| line(format!("ProxyJump {j}")));
    if query.quiet {
        line("LogLevel QUIET".into());
    }
    for identity in &query.identities {
        line(format!("IdentityFile \"{}\"", identity.display()));
    }
    query.all_options().into_iter().for_each(&mut line);
    match query.family {
        AddressFamily::Any => {}
        AddressFamily::Inet => line("AddressFamily inet".into()),
        AddressFamily::Inet6 => line("AddressFamily inet6".into()),
    }
    if query.compression {
        line("Compression yes".into());
    }
    text
}

fn parse(
    path: Option<&Path>,
    text: &str,
    query: &HostConfigQuery,
    user: &LocalUser,
    evaluated: &mut EvaluatedConfig,
) -> Result<Vec<(String, String)>, ConfigError> {
    let shown = path.map_or_else(
        || "-o on the command line".into(),
        |p| escape::path(p).to_string(),
    );
    let (text, had_match) = without_match(text);
    if had_match {
        evaluated.warnings.push(format!(
            "{shown}: skipping Match blocks: OpenSSH's ssh, which evaluates them, is not \
             installed"
        ));
    }
    let mut config = SshConfig::default();
    if let Some(home) = &user.home {
        config = config.home_dir(home);
    }
    let rules = ParseRule::ALLOW_UNKNOWN_FIELDS | ParseRule::ALLOW_UNSUPPORTED_FIELDS;
    let config = config.parse(&mut Cursor::new(text), rules).map_err(|e| {
        ConfigError::new(format!(
            "{shown}: {}",
            escape::name(e.to_string().as_bytes())
        ))
    })?;
    let params = config.query(&query.host);
    // Options after a Match in an included file were parsed as unconditional.
    if params
        .ignored_fields
        .keys()
        .any(|k| k.eq_ignore_ascii_case("match"))
    {
        return Err(ConfigError::new(format!(
            "{shown}: an included file has Match blocks, which need OpenSSH's ssh, and it is \
             not installed: install it, or name another file with -F"
        )));
    }
    Ok(lines(&params))
}

/// Removes Match blocks, up to the next Host; the flag is true if there were any.
fn without_match(text: &str) -> (String, bool) {
    let (mut kept, mut skipping, mut had_match) = (String::new(), false, false);
    for line in text.lines() {
        let keyword = line.trim_start();
        let keyword = keyword
            .split(|c: char| c.is_whitespace() || c == '=')
            .next();
        match keyword.unwrap_or_default().to_ascii_lowercase().as_str() {
            "match" => {
                skipping = true;
                had_match = true;
            }
            "host" => skipping = false,
            _ => {}
        }
        if !skipping {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    (kept, had_match)
}

/// Formats the parameters as `ssh -G` prints them.
fn lines(params: &HostParams) -> Vec<(String, String)> {
    let mut lines = algorithm_lines(params, false);
    let mut line = |keyword: &str, value: Option<String>| {
        lines.extend(value.map(|v| (keyword.to_owned(), v)));
    };
    let yes = |b: bool| String::from(if b { "yes" } else { "no" });
    line("hostname", params.host_name.clone());
    line("port", params.port.map(|p| p.to_string()));
    line("user", params.user.clone());
    line("proxyjump", params.proxy_jump.as_ref().map(|j| j.join(",")));
    line("bindaddress", params.bind_address.clone());
    line("bindinterface", params.bind_interface.clone());
    line("compression", params.compression.map(yes));
    line(
        "connectionattempts",
        params.connection_attempts.map(|n| n.to_string()),
    );
    line(
        "connecttimeout",
        params.connect_timeout.map(|t| t.as_secs().to_string()),
    );
    line("forwardagent", params.forward_agent.map(yes));
    line("addkeystoagent", params.add_keys_to_agent.map(yes));
    line(
        "pubkeyauthentication",
        params.pubkey_authentication.map(yes),
    );
    line("tcpkeepalive", params.tcp_keep_alive.map(yes));
    line(
        "serveraliveinterval",
        params
            .server_alive_interval
            .map(|t| t.as_secs().to_string()),
    );
    let path = |p: &PathBuf| p.display().to_string();
    line(
        "certificatefile",
        params.certificate_file.as_ref().map(path),
    );
    for file in params.identity_file.iter().flatten() {
        line("identityfile", Some(path(file)));
    }
    let others = params
        .unsupported_fields
        .iter()
        .chain(&params.ignored_fields);
    for (keyword, values) in others {
        line(&keyword.to_ascii_lowercase(), Some(values.join(" ")));
    }
    lines
}

fn algorithm_lines(params: &HostParams, defaults_too: bool) -> Vec<(String, String)> {
    let lists: [(&str, &Algorithms); 6] = [
        ("ciphers", &params.ciphers),
        ("macs", &params.mac),
        ("kexalgorithms", &params.kex_algorithms),
        ("hostkeyalgorithms", &params.host_key_algorithms),
        (
            "pubkeyacceptedalgorithms",
            &params.pubkey_accepted_algorithms,
        ),
        ("casignaturealgorithms", &params.ca_signature_algorithms),
    ];
    let wanted = lists
        .into_iter()
        .filter(|(_, l)| defaults_too || !l.is_default());
    wanted
        .map(|(keyword, list)| (keyword.to_owned(), list.algorithms().join(",")))
        .collect()
}
