use std::ffi::OsString;

use transfer::operand::Destination;

use crate::flags::low::{CopyArgs, Family};

/// The arguments that make ssh, or what stands in for it (`-S`), an SFTP connection with `host`,
/// as scp gives them (scp.c `main` and `do_cmd`).
pub(super) fn arguments(flags: &CopyArgs, host: &Destination) -> Vec<OsString> {
    let mut args = Args(Vec::new());
    args.words(&["-x", "-oPermitLocalCommand=no", "-oClearAllForwardings=yes"]);
    args.words(&["-oRemoteCommand=none", "-oRequestTTY=no"]);
    args.word_if(flags.forward_agent, "-A");
    args.word_if(!flags.forward_agent, "-a");
    args.word_if(flags.compress, "-C");
    args.word_if(flags.quiet, "-q");
    args.word_if(flags.batch, "-oBatchMode=yes");
    args.word_if(flags.family == Family::V4, "-4");
    args.word_if(flags.family == Family::V6, "-6");
    args.words(&vec!["-v"; flags.verbose.into()]);
    for option in &flags.options {
        args.value("-o", option.into());
    }
    for identity in &flags.identities {
        args.value("-i", identity.into());
    }
    for (flag, value) in [("-c", &flags.ciphers), ("-J", &flags.jump)] {
        if let Some(value) = value {
            args.value(flag, value.into());
        }
    }
    if let Some(config) = &flags.config {
        args.value("-F", config.into());
    }
    // After the user's own options, of which the first counts. A number is a whole TOS byte, which
    // every version of OpenSSH takes; the names differ between versions.
    args.0
        .push(format!("-oIPQoS={}", flags.dscp.value() << 2).into());
    if let Some(port) = host.port {
        args.value("-p", port.to_string().into());
    }
    if let Some(user) = &host.user {
        args.value("-l", user.into());
    }
    args.words(&["-s", "--"]);
    args.0.push(host.host.clone().into());
    args.words(&["sftp"]);
    args.0
}

struct Args(Vec<OsString>);

impl Args {
    fn words(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(OsString::from));
    }

    fn word_if(&mut self, given: bool, word: &str) {
        if given {
            self.words(&[word]);
        }
    }

    fn value(&mut self, flag: &str, value: OsString) {
        self.words(&[flag]);
        self.0.push(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Destination {
        Destination {
            user: Some("u".to_owned()),
            host: "h".to_owned(),
            port: Some(22),
        }
    }

    fn shown(flags: &CopyArgs) -> String {
        let args = arguments(flags, &host());
        let words: Vec<_> = args.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn plain() {
        assert_eq!(
            shown(&CopyArgs::default()),
            "-x -oPermitLocalCommand=no -oClearAllForwardings=yes -oRemoteCommand=none \
             -oRequestTTY=no -a -oIPQoS=0 -p 22 -l u -s -- h sftp"
        );
    }

    #[test]
    fn flags_are_passed_on() {
        let flags = CopyArgs {
            forward_agent: true,
            compress: true,
            batch: true,
            quiet: true,
            verbose: 2,
            family: Family::V6,
            options: vec!["User=x".to_owned()],
            identities: vec!["k1".into(), "k2".into()],
            ciphers: Some("aes128-ctr".to_owned()),
            jump: Some("j".to_owned()),
            config: Some("none".into()),
            dscp: "AF21".parse().unwrap(),
            ..CopyArgs::default()
        };
        let shown = shown(&flags);
        for part in [
            " -A -C -q -oBatchMode=yes -6 -v -v ",
            " -o User=x -i k1 -i k2 -c aes128-ctr -J j -F none ",
            " -oIPQoS=72 ",
        ] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert!(!shown.contains(" -a "), "{shown}");
    }
}
