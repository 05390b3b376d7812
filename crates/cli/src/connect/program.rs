use std::ffi::OsString;

use crate::flags::low::{AddressFamilyArg, CopyArgs, TerminalSetting};

/// The user's options for ssh or its replacement (`-S`), in the order in which scp passes them
/// (scp.c `main`). The options that request the SFTP subsystem follow them.
pub(super) fn options(flags: &CopyArgs) -> Vec<OsString> {
    let mut args = SshProgramArgs(Vec::new());
    // Like scp, forward no agent without `-A`, even if ssh_config asks for it.
    args.words(&[if flags.forward_agent { "-A" } else { "-a" }]);
    args.word_if(flags.compress == Some(TerminalSetting::Always), "-C");
    args.word_if(
        flags.compress == Some(TerminalSetting::Never),
        "-oCompression=no",
    );
    args.word_if(flags.quiet, "-q");
    args.word_if(flags.batch, "-oBatchMode=yes");
    args.word_if(flags.family == AddressFamilyArg::V4, "-4");
    args.word_if(flags.family == AddressFamilyArg::V6, "-6");
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
    // Comes after the user's own options, since ssh uses the first value. A numeric IPQoS is a
    // whole TOS byte, which every version of OpenSSH takes; the names differ between versions.
    args.words(&[&format!("-oIPQoS={}", flags.dscp.value() << 2)]);
    args.0
}

/// Argument list that is built for an ssh program.
struct SshProgramArgs(Vec<OsString>);

impl SshProgramArgs {
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

    fn shown(flags: &CopyArgs) -> String {
        let args = options(flags);
        let words: Vec<_> = args.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn packets_go_unmarked_and_no_agent_is_forwarded() {
        assert_eq!(shown(&CopyArgs::default()), "-a -oIPQoS=0");
    }

    #[test]
    fn flags_are_passed_on() {
        let flags = CopyArgs {
            forward_agent: true,
            compress: Some(TerminalSetting::Always),
            batch: true,
            quiet: true,
            verbose: 2,
            family: AddressFamilyArg::V6,
            options: vec!["User=x".to_owned()],
            identities: vec!["k1".into(), "k2".into()],
            ciphers: Some("aes128-ctr".to_owned()),
            jump: Some("j".to_owned()),
            config: Some("none".into()),
            dscp: "AF21".parse().unwrap(),
            ..CopyArgs::default()
        };
        assert_eq!(
            shown(&flags),
            "-A -C -q -oBatchMode=yes -6 -v -v -o User=x -i k1 -i k2 -c aes128-ctr -J j -F none \
             -oIPQoS=72"
        );
    }
}
