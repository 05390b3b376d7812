//! Commands of the tools with placeholders.

use measure::CopyDirection;

use super::{Ask, Words};

/// Returns source and target, one of them on the far side.
pub(super) fn operands(ask: &Ask) -> [String; 2] {
    let name = ask.name;
    match ask.way {
        CopyDirection::Up => [format!("$SRC/{name}"), "far:$DST/".to_owned()],
        CopyDirection::Down => [format!("far:$SRC/{name}"), "$DST/".to_owned()],
    }
}

pub(super) fn words<S: AsRef<str>>(
    words: &[&str],
    more: impl IntoIterator<Item = S>,
) -> Vec<String> {
    let words = words.iter().map(|word| (*word).to_owned());
    words
        .chain(more.into_iter().map(|word| word.as_ref().to_owned()))
        .collect()
}

pub(super) fn beside_serve(ask: &Ask, command: fn(&Ask) -> Words) -> Words {
    match ask.served {
        true => command(ask),
        false => Err("the race here is to servers that nobody changed"),
    }
}

pub(super) fn longhaul(ask: &Ask) -> Words {
    let mut command = words(&["longhaul", "cp", "-q", "-F", "$CONFIG"], [""; 0]);
    if ask.both_ends {
        command.extend(words(&["--far-end", "stock"], [""; 0]));
    }
    if !ask.file {
        command.push("-r".to_owned());
    }
    if ask.compress {
        command.push("-C".to_owned());
    }
    if let Some(class) = ask.dscp {
        command.extend(["--dscp".to_owned(), class.to_owned()]);
    }
    if let Some(cipher) = ask.cipher {
        command.extend(["-c".to_owned(), cipher.to_owned()]);
    }
    if ask.plain {
        command.push("--insecure-none-mac".to_owned());
    }
    command.extend(ask.held.iter().map(|&word| word.to_owned()));
    Ok(words_of(command, operands(ask)))
}

pub(super) fn with_far_end(ask: &Ask, which: &str) -> Words {
    if !ask.both_ends {
        return Err("the race here is to servers that nobody changed");
    }
    let mut command = longhaul(&Ask {
        both_ends: false,
        ..*ask
    })?;
    command.splice(2..2, words(&["--far-end", which], [""; 0]));
    Ok(command)
}

pub(super) fn words_of(
    mut command: Vec<String>,
    more: impl IntoIterator<Item = String>,
) -> Vec<String> {
    command.extend(more);
    command
}

/// ssh options as `longhaul ssh-config` prints them.
pub(super) const HANDED: &[&str] = &[
    "-oProxyCommand=longhaul\tdial\t%h\t%p",
    "-oProxyUseFdpass=yes",
    "-oIPQoS=none",
];
/// ssh options without ProxyUseFdpass, for programs that cannot pass sockets.
pub(super) const CARRIED: &[&str] = &["-oProxyCommand=longhaul\tdial\t%h\t%p"];
/// ssh options with a relay, which does not mark the packets that it forwards.
pub(super) const RELAYED: &[&str] = &["-oProxyCommand=longhaul\trelay\t-\t%h:%p"];

pub(super) fn by_dial(
    ask: &Ask,
    through: &'static [&'static str],
    command: fn(&Ask) -> Words,
) -> Words {
    match ask.dialed {
        true => command(&Ask { through, ..*ask }),
        false => Err("the race here is without a ProxyCommand"),
    }
}

pub(super) fn wrapped(ask: &Ask) -> Words {
    if !ask.wrapped {
        return Err("the race here is without longhaul wrap");
    }
    let mut command = words(&["longhaul", "wrap"], [""; 0]);
    command.extend(scp(ask)?);
    Ok(command)
}

/// Returns the options of ssh and programs that use it.
pub(super) fn ssh_flags(ask: &Ask) -> Vec<String> {
    // The first value of an option counts.
    let mut flags = words(ask.through, ["-F", "$CONFIG"]);
    if ask.compress {
        flags.push("-C".to_owned());
    }
    if let Some(class) = ask.dscp {
        flags.push(format!("-oIPQoS={class}"));
    }
    if let Some(cipher) = ask.cipher {
        flags.extend(["-c".to_owned(), cipher.to_owned()]);
    }
    flags
}

pub(super) fn like_scp(program: &str, ask: &Ask) -> Words {
    if ask.plain && program != "hpnscp" {
        return Err("it always encrypts");
    }
    let mut command = words(&[program, "-q"], ssh_flags(ask));
    if !ask.file {
        command.push("-r".to_owned());
    }
    Ok(words_of(command, operands(ask)))
}

pub(super) fn scp(ask: &Ask) -> Words {
    like_scp("scp", ask)
}

pub(super) fn hpnscp(ask: &Ask) -> Words {
    let mut command = like_scp("hpnscp", ask)?;
    if ask.plain {
        let none = ["NoneEnabled", "NoneSwitch", "NoneMacEnabled"];
        command.splice(2..2, none.map(|option| format!("-o{option}=yes")));
    }
    Ok(command)
}

pub(super) fn sftp(ask: &Ask) -> Words {
    if ask.plain {
        return Err("it always encrypts");
    }
    let verb = match ask.way {
        CopyDirection::Up => "put",
        CopyDirection::Down => "get",
    };
    let recursive = if ask.file { "" } else { "-r " };
    let flags = ssh_flags(ask).join(" ");
    let name = ask.name;
    let line =
        format!("echo {verb} {recursive}$SRC/{name} $DST/ | sftp -q {flags} -b - far >/dev/null");
    Ok(words(&["sh", "-c"], [line]))
}

pub(super) fn rsync(ask: &Ask) -> Words {
    if ask.plain {
        return Err("it always encrypts");
    }
    let flags = ssh_flags(&Ask {
        compress: false,
        ..*ask
    })
    .join(" ");
    let mut command = words(&["rsync", "-a", "-e"], [format!("ssh {flags}")]);
    if ask.compress {
        command.push("-z".to_owned());
    }
    Ok(words_of(command, operands(ask)))
}

pub(super) fn tar(ask: &Ask) -> Words {
    if ask.plain {
        return Err("it always encrypts");
    }
    let flags = ssh_flags(ask).join(" ");
    let name = ask.name;
    let line = match ask.way {
        CopyDirection::Up => {
            format!("tar -C $SRC -cf - {name} | ssh {flags} far 'tar -C $DST -xf -'")
        }
        CopyDirection::Down => {
            format!("ssh {flags} far 'tar -C $SRC -cf - {name}' | tar -C $DST -xf -")
        }
    };
    Ok(words(&["sh", "-c"], [line]))
}

pub(super) fn rclone(ask: &Ask, tuned: &[&str]) -> Words {
    if ask.cipher.is_some() || ask.plain {
        return Err("its ssh is told nothing of ciphers");
    }
    if ask.compress {
        return Err("its ssh does not compress");
    }
    let name = ask.name;
    // A file goes into a folder; the contents of a tree go into a folder of its name.
    let inside = if ask.file { "" } else { name };
    let [from, to] = match ask.way {
        CopyDirection::Up => [format!("$SRC/{name}"), format!(":sftp:$DST/{inside}")],
        CopyDirection::Down => [format!(":sftp:$SRC/{name}"), format!("$DST/{inside}")],
    };
    let mut command = words(
        &[
            "rclone",
            "copy",
            "-q",
            "--sftp-host=$HOST",
            "--sftp-port=$PORT",
            "--sftp-user=$USER",
            "--sftp-key-file=$KEY",
            "--sftp-known-hosts-file=$KNOWN_HOSTS",
        ],
        tuned,
    );
    if let Some(class) = ask.dscp {
        command.push(format!("--dscp={}", class.to_uppercase()));
    }
    Ok(words_of(command, [from, to]))
}

pub(super) fn lftp(ask: &Ask) -> Words {
    if ask.plain {
        return Err("it always encrypts");
    }
    let flags = ssh_flags(ask).join(" ");
    let name = ask.name;
    let copy = match (ask.way, ask.file) {
        (CopyDirection::Up, true) => format!("put -O $DST $SRC/{name}"),
        (CopyDirection::Down, true) => format!("pget -n 8 -O $DST $SRC/{name}"),
        (CopyDirection::Up, false) => format!("mirror -R --parallel=16 $SRC/{name} $DST/"),
        (CopyDirection::Down, false) => {
            format!("mirror --parallel=16 --use-pget-n=8 $SRC/{name} $DST/")
        }
    };
    let script = format!(
        "set cmd:fail-exit yes; set net:max-retries 1; set sftp:auto-confirm yes; \
         set sftp:max-packets-in-flight 256; \
         set sftp:connect-program \"ssh -a -x {flags}\"; open -u $USER, sftp://far; {copy}"
    );
    Ok(words(&["lftp", "-c"], [script]))
}

pub(super) fn mscp(ask: &Ask, more: &[&str]) -> Words {
    if ask.plain {
        return Err("it always encrypts");
    }
    if ask.dscp.is_some() {
        return Err("it cannot mark packets");
    }
    let mut command = words(&["mscp", "-q", "-F", "$CONFIG"], more);
    if let Some(cipher) = ask.cipher {
        command.extend(["-c".to_owned(), cipher.to_owned()]);
    }
    if ask.compress {
        command.extend(words(&["-C", "yes"], [""; 0]));
    }
    Ok(words_of(command, operands(ask)))
}

pub(super) fn iperf3(ask: &Ask) -> Words {
    if !ask.path && !ask.among.contains(&"iperf3 -P 8") {
        return Err("it measures paths, and here is none");
    }
    if !ask.file || ask.tiny || ask.compress || ask.dscp.is_some() {
        return Err("it has no files; it measures what the path gives in the scenarios of one");
    }
    let mut command = words(
        &[
            "iperf3", "-c", "$HOST", "-p", "$PORT", "-P", "8", "-t", "10", "-J",
        ],
        [""; 0],
    );
    if ask.way == CopyDirection::Down {
        command.push("-R".to_owned());
    }
    if let Some(name) = ask.reference_cc {
        command.extend(words(&["-C", name], [""; 0]));
    }
    Ok(command)
}
