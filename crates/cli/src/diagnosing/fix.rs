//! `--fix`: a Host block for ssh_config with the settings that help OpenSSH's programs.

use std::io::{self, Write as _};

use diagnose::RemedyActor;
use measure::doctor::DoctorReport;

use crate::command_error::CommandError;
use crate::exit::Exit;
use crate::failed;
use crate::ssh_config::{append, is_pattern};

/// Comment that identifies our lines.
const MARK: &str = "# longhaul doctor:";

/// Shows the block, and appends it to the user's ssh_config after a yes. Messages go to standard
/// error, since standard output may be JSON.
pub(super) fn offer(report: &DoctorReport, yes: bool) -> Exit {
    let result = match block(report) {
        Ok(Some(text)) => append(None, yes, &text),
        Ok(None) => Ok(format!("nothing written: {}\n", without_settings(report))),
        Err(why) => Err(why),
    };
    match result {
        Ok(said) => {
            drop(io::stderr().write_all(said.as_bytes()));
            Exit::Done
        }
        Err(why) => failed(&why),
    }
}

/// Says why there is no block.
fn without_settings(report: &DoctorReport) -> &'static str {
    let findings = &report.diagnosis.findings;
    let mut remedies = findings.iter().flat_map(|finding| &finding.remedies);
    match remedies.any(|remedy| remedy.by == RemedyActor::OpenSsh) {
        true => {
            "the findings are too uncertain to change ssh_config: measure again with a longer \
             --time"
        }
        false => "no setting of ssh_config would help",
    }
}

/// The Host block; `None` if no finding has a setting. The host of `--from` is a file's word.
fn block(report: &DoctorReport) -> Result<Option<String>, CommandError> {
    let settings = report.diagnosis.ssh_config();
    if settings.is_empty() {
        return Ok(None);
    }
    let host = report
        .host
        .rsplit_once('@')
        .map_or(&report.host[..], |(_, host)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if !is_pattern(host) || host.contains(['*', '?', '!']) {
        return Err("--fix: the host's name cannot be written in ssh_config".into());
    }
    let mut text = format!("{MARK} measured settings\nHost {host}\n");
    for line in settings {
        text.push_str(&format!("    {line}\n"));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use diagnose::{DscpMeasurement, DscpMeasurements, Evidence};

    use super::*;

    fn policed(host: &str) -> DoctorReport {
        let evidence = Evidence {
            marks: DscpMeasurements {
                noise: vec![1.0],
                marks: vec![DscpMeasurement {
                    class: "CS1".to_owned(),
                    ratios: vec![0.1; 3],
                    rate: 1e6,
                    unmarked: 1e7,
                }],
            },
            ..Evidence::default()
        };
        DoctorReport::new(host.to_owned(), 1.0, evidence)
    }

    #[test]
    fn a_policed_class_gets_a_block_for_its_host() {
        let text = block(&policed("me@backup")).unwrap().unwrap();
        assert!(text.ends_with("\nHost backup\n    IPQoS none\n"), "{text}");
    }

    #[test]
    fn a_healthy_path_gets_no_block() {
        let report = DoctorReport::new("h".to_owned(), 1.0, Evidence::default());
        assert_eq!(block(&report).unwrap(), None);
        assert_eq!(
            without_settings(&report),
            "no setting of ssh_config would help"
        );
    }

    /// "try Ciphers" was followed by "no setting of ssh_config would help".
    #[test]
    fn advice_that_is_not_written_is_not_denied() {
        let mut diagnosis = diagnose::explain(&diagnose::FinishedTransfer {
            direction: diagnose::DataDirection::Upload,
            limiter: diagnose::Limiter::LocalCpu,
            figures: diagnose::LimiterEvidence::default(),
        });
        for finding in &mut diagnosis.findings {
            finding.certainty = diagnose::Certainty::Unsure;
        }
        let report = DoctorReport::of_copy("h".to_owned(), 1.0, diagnosis);
        assert_eq!(block(&report).unwrap(), None);
        let why = without_settings(&report);
        assert!(why.starts_with("the findings are too uncertain"), "{why}");
    }

    #[test]
    fn a_file_cannot_write_lines_of_its_own() {
        for host in ["a b", "a\n  ProxyCommand x", "*", "", "a#", "!a", "x=y"] {
            assert!(block(&policed(host)).is_err(), "{host:?}");
        }
    }
}
