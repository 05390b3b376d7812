//! The kernel's rules that redirect connections to a relay: printed, installed or removed.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use relay::RelaySettings;

use crate::command_error::CommandError;
use crate::flags::low::RelayRulesAction;
use crate::print;

pub(super) fn run(what: RelayRulesAction, relay: &RelaySettings) -> Result<(), CommandError> {
    let has_ipv6 = Path::new("/proc/net/if_inet6").exists();
    let rules = relay::ListenerRules::of(relay, has_ipv6)?;
    match what {
        RelayRulesAction::Print => {
            let mut text = "# What `longhaul relay rules add` runs, as root:\n".to_owned();
            text += &rules.add.iter().map(shell).collect::<String>();
            text += "# And `longhaul relay rules remove`:\n";
            text += &rules.remove.iter().map(shell).collect::<String>();
            print(text.as_bytes())
        }
        RelayRulesAction::Add => {
            for (nth, command) in rules.add.iter().enumerate() {
                if let Err(why) = call(command) {
                    // All or nothing: undo the commands that succeeded.
                    for command in rules.remove.iter().take(nth) {
                        let _ = call(command);
                    }
                    return Err(why);
                }
            }
            Ok(())
        }
        // Remove every rule that exists, whatever is missing.
        RelayRulesAction::Remove => {
            let done: Vec<Result<(), CommandError>> = rules.remove.iter().map(call).collect();
            done.into_iter().collect()
        }
    }
}

/// Formats a command for a shell.
fn shell(command: &relay::FirewallCommand) -> String {
    let words = command.words.join(" ");
    match &command.input {
        None => format!("{words}\n"),
        Some(input) => format!("{words} <<'EOF'\n{input}EOF\n"),
    }
}

fn call(command: &relay::FirewallCommand) -> Result<(), CommandError> {
    let [program, words @ ..] = command.words.as_slice() else {
        return Ok(());
    };
    let failed = |why: String| format!("{}: {why}", command.words.join(" "));
    let child = started(program, words).map_err(|e| failed(e.to_string()))?;
    let done = finished(child, command.input.as_deref()).map_err(|e| failed(e.to_string()))?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&done.stderr);
            Err(failed(why.trim().to_owned()).into())
        }
    }
}

/// Starts a program. The PATH of an ordinary user lacks the folders of nft and ip.
fn started(program: &str, words: &[String]) -> std::io::Result<Child> {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new(program)
        .args(words)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}

fn finished(mut child: Child, input: Option<&str>) -> std::io::Result<std::process::Output> {
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // A program that stops reading reports why.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
}
