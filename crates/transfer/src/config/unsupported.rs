//! Reports settings of ssh_config(5) that have no effect in longhaul.

use super::{ConfigError, EvaluatedConfig, HostConfig};
use crate::escape;

/// A setting that has no effect in longhaul.
struct UnsupportedOption {
    keyword: &'static str,
    /// Values that request nothing.
    harmless: &'static [&'static str],
    how: UnsupportedEffect,
}

enum UnsupportedEffect {
    /// The connection is weaker than or different from the request: warn once per run.
    Warn(&'static str),
    /// The setting has no use for a copy: a note for `-v`.
    Note(&'static str),
    /// scp disables the setting or has no use for it either: no message.
    Silent,
}
use UnsupportedEffect::{Note, Silent, Warn};

const OFF: &[&str] = &["no", "false", "none", "0"];

macro_rules! table {
    ($($keyword:literal $harmless:expr => $how:expr;)*) => {
        &[$(UnsupportedOption { keyword: $keyword, harmless: $harmless, how: $how }),*]
    };
}

const TABLE: &[UnsupportedOption] = table! {
    "verifyhostkeydns" OFF => Warn("VerifyHostKeyDNS is not supported: host keys are checked \
        against known_hosts only");
    "nohostauthenticationforlocalhost" OFF => Warn("NoHostAuthenticationForLocalhost is not supported: the host key is checked");
    "pkcs11provider" OFF => Warn("PKCS11Provider is not supported: load its keys into an \
        ssh-agent (ssh-add -s)");
    "bindinterface" OFF => Warn("BindInterface is not supported: use BindAddress");
    "tunnel" OFF => Warn("Tunnel is not supported: no tunnel device is opened");
    "permitlocalcommand" OFF => Warn("PermitLocalCommand is not supported: LocalCommand is not \
        run");
    "hostbasedauthentication" OFF => Note("HostbasedAuthentication is not supported");
    "gssapiauthentication" OFF => Note("GSSAPIAuthentication is not supported; -S ssh uses the system's ssh, which may support \
         it");
    "gssapikeyexchange" OFF => Note("GSSAPIKeyExchange is not supported");
    "addkeystoagent" OFF => Note("AddKeysToAgent is not supported");
    "controlmaster" OFF => Note("ControlMaster: longhaul leaves no connection open for other programs; it uses an open one if its own login would ask or is refused");
    "controlpath" OFF => Silent;
    "visualhostkey" OFF => Note("VisualHostKey is not supported");
    "fingerprinthash" &["SHA256", "sha256"] => Note("FingerprintHash is not supported: \
        fingerprints are SHA256");
    "remotecommand" OFF => Note("RemoteCommand does not apply to a copy");
    "securitykeyprovider" &["internal"] => Note("SecurityKeyProvider is not supported: hardware \
        keys are used through an ssh-agent");
    "localcommand" &[] => Silent;
    "canonicaldomains" &[] => Silent;
    "canonicalizehostname" &[] => Silent;
    "canonicalizefallbacklocal" &[] => Silent;
    "canonicalizemaxdots" &[] => Silent;
    "canonicalizepermittedcnames" &[] => Silent;
    "clearallforwardings" &[] => Silent;
    "controlpersist" &[] => Silent;
    "dynamicforward" &[] => Silent;
    "enableescapecommandline" &[] => Silent;
    "enablesshkeysign" &[] => Silent;
    "escapechar" &[] => Silent;
    "forkafterauthentication" &[] => Silent;
    "forwardx11" &[] => Silent;
    "forwardx11timeout" &[] => Silent;
    "forwardx11trusted" &[] => Silent;
    "gatewayports" &[] => Silent;
    "gssapidelegatecredentials" &[] => Silent;
    "gssapikexalgorithms" &[] => Silent;
    "gssapirenewalforcesrekey" &[] => Silent;
    "gssapitrustdns" &[] => Silent;
    "host" &[] => Silent;
    "hostbasedacceptedalgorithms" &[] => Silent;
    // `ssh -G` does not distinguish a choice from OpenSSH's defaults; --dscp sets longhaul's marks.
    "ipqos" &[] => Silent;
    "localforward" &[] => Silent;
    "logverbose" &[] => Silent;
    "obscurekeystroketiming" &[] => Silent;
    "permitremoteopen" &[] => Silent;
    // Handled with the lists of algorithms under its new name.
    "pubkeyacceptedkeytypes" &[] => Silent;
    "remoteforward" &[] => Silent;
    "requesttty" &[] => Silent;
    "sessiontype" &[] => Silent;
    "stdinnull" &[] => Silent;
    "streamlocalbindmask" &[] => Silent;
    "streamlocalbindunlink" &[] => Silent;
    "syslogfacility" &[] => Silent;
    "tunneldevice" &[] => Silent;
    "xauthlocation" &[] => Silent;
};

/// Adds warnings and notes about settings that have no effect. RefuseConnection (OpenSSH 10) is an
/// error, as in OpenSSH.
pub(super) fn judge(
    evaluated: &EvaluatedConfig,
    config: &mut HostConfig,
) -> Result<(), ConfigError> {
    if let Some(why) = evaluated.values("refuseconnection").next() {
        return Err(ConfigError::new(format!(
            "RefuseConnection in ssh_config refuses connections to {}: {}",
            config.host,
            escape::name(why.as_bytes())
        )));
    }
    let mut seen: Vec<&str> = Vec::new();
    for (keyword, value) in &evaluated.lines {
        if seen.contains(&keyword.as_str())
            || super::settings::is_known(keyword)
            || !evaluated.is_chosen(keyword)
        {
            continue;
        }
        seen.push(keyword);
        match TABLE.iter().find(|u| u.keyword == keyword) {
            Some(known) if known.harmless.contains(&value.as_str()) => {}
            Some(known) => match known.how {
                Warn(text) => config.warnings.push(text.into()),
                Note(text) => config.notes.push(text.into()),
                Silent => {}
            },
            None => config.notes.push(format!(
                "{} is not a known option",
                escape::name(keyword.as_bytes())
            )),
        }
    }
    Ok(())
}
