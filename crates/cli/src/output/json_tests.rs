use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schedule::{FileCopyState, Limiter, LimiterEvidence, TransferDirection};
use serde_json::Value;
use transfer::report::{
    CopyEvent, CopyOutcome, Decision, DecisionOrigin, DecisionSubject, FarEndServerReport,
    HostCopyRoute, HostResult, ItemFailure, SessionReport, SyncChange, VerifyResult,
};
use transfer::timeline::{
    ConnectionState, FileStateChange, StallCause, TimelineEntry, TimelineStep,
};

use super::*;
use crate::several::HostCopyState;

/// Field names and types, as in a table of docs/json.md.
type Fields = BTreeMap<String, String>;

/// Reads the tables of docs/json.md: a `## name` heading for each event, rows `` | `field` | type |
/// meaning | ``. Fields under the heading `Every event` belong to all events.
fn documented() -> BTreeMap<String, Fields> {
    let text = include_str!("../../../../docs/json.md");
    let mut events = BTreeMap::<String, Fields>::new();
    let mut heading = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            heading = name.trim_matches('`').to_owned();
        } else if let Some(row) = line.strip_prefix("| `") {
            let mut cells = row.split(" | ");
            let field = cells.next().unwrap().trim_end_matches('`').to_owned();
            let kind = cells.next().unwrap().trim().to_owned();
            assert!(
                events
                    .entry(heading.clone())
                    .or_default()
                    .insert(field, kind)
                    .is_none()
            );
        }
    }
    events
}

fn fits(kind: &str, value: &Value) -> bool {
    kind.split(" or ").any(|kind| match kind {
        "null" => value.is_null(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "name" => {
            value.is_string()
                || value
                    .as_object()
                    .is_some_and(|o| o.len() == 1 && o["base64"].is_string())
        }
        "array of names" => value
            .as_array()
            .is_some_and(|a| a.iter().all(|v| fits("name", v))),
        "array of strings" => value
            .as_array()
            .is_some_and(|a| a.iter().all(Value::is_string)),
        "object" => value.is_object(),
        "array of sessions"
        | "array of far ends"
        | "array of hosts"
        | "array of host progresses" => value.is_array(),
        "array of failures" => value.as_array().is_some_and(|a| {
            a.iter()
                .all(|v| fits("name", &v["path"]) && fits("string", &v["reason"]))
        }),
        other => panic!("docs/json.md has an unknown type: {other}"),
    })
}

fn check(event: &Value, documented: &BTreeMap<String, Fields>) -> String {
    let name = event["event"].as_str().unwrap().to_owned();
    let own = documented
        .get(&name)
        .unwrap_or_else(|| panic!("{name} is not in docs/json.md"));
    let all = own.iter().chain(&documented["Every event"]);
    check_fields(&name, event, &all.collect());
    name
}

fn check_object(name: &str, object: &Value, documented: &BTreeMap<String, Fields>) {
    check_fields(name, object, &documented[name].iter().collect());
}

fn check_fields(name: &str, event: &Value, all: &BTreeMap<&String, &String>) {
    for (field, value) in event.as_object().unwrap() {
        let kind = all
            .get(field)
            .unwrap_or_else(|| panic!("{name}.{field} is not documented"));
        let kind = kind.trim_end_matches(", optional");
        assert!(fits(kind, value), "{name}.{field} is not {kind}: {value}");
    }
    for (field, kind) in all {
        let there = event.get(field).is_some() || kind.ends_with(", optional");
        assert!(there, "{name}.{field} is documented but missing");
    }
}

fn examples() -> Vec<String> {
    let name = || EscapedName(b"a\xff".to_vec());
    let copy = [
        CopyEvent::FileStarted {
            id: 1,
            source: name(),
            target: name(),
            size: None,
        },
        CopyEvent::FileDone {
            id: 1,
            source: name(),
            target: name(),
            bytes: 5,
            state: FileCopyState::Renamed,
            in_place: false,
            synced: false,
            verified: true,
        },
        CopyEvent::Mismatch {
            id: 1,
            path: name(),
            from: 0,
            len: 5,
            again: true,
        },
        CopyEvent::Failed {
            id: None,
            path: name(),
            reason: "no".to_owned(),
        },
        CopyEvent::DirectoryDone { target: name() },
        CopyEvent::SymlinkDone { target: name() },
        CopyEvent::Resumed {
            done: 3,
            unproven: 2,
            partial: 1,
            partial_bytes: 9,
        },
        CopyEvent::Planned {
            change: SyncChange::Move,
            path: name(),
            from: Some(name()),
            reasons: vec!["size"],
        },
        CopyEvent::SyncPlanned {
            source: name(),
            target: name(),
            files: 1,
            bytes: 5,
            deletions: 2,
            equal: 3,
            entries: 4,
            excluded: 0,
            unlisted: 0,
        },
        CopyEvent::Warning {
            path: None,
            message: "careful".to_owned(),
        },
    ];
    let failures = vec![ItemFailure::new(name(), "no")];
    let partial = CopySummary {
        outcome: CopyOutcome::Partial,
        failed: 1,
        failures,
        verified: Some(VerifyResult::default()),
        way: Some(HostCopyRoute::through_here("no longhaul there".into())),
        hosts: vec![HostResult {
            host: name(),
            from: Some(name()),
            outcome: CopyOutcome::NoConnection("gone".to_owned()),
            files: 1,
            directories: 0,
            symlinks: 0,
            bytes: 2,
            unfinished: 3,
            failed: 1,
            elapsed: Duration::from_secs(2),
        }],
        ..CopySummary::default()
    };
    let lost = CopySummary {
        outcome: CopyOutcome::NoConnection("h: gone".to_owned()),
        elapsed: Duration::from_millis(1500),
        sessions: vec![SessionReport {
            host: name(),
            direction: TransferDirection::Down,
            connections: 5,
            channels: 2,
            fixed: false,
            limiter: Limiter::FarSendBuffer,
            measured: Duration::from_millis(1200),
            stalled: Duration::ZERO,
            evidence: LimiterEvidence::default(),
            tried: None,
        }],
        far_ends: vec![FarEndServerReport {
            host: name(),
            ..FarEndServerReport::default()
        }],
        state: Some(FileCopyState::Closed),
        ..CopySummary::default()
    };
    let run = [
        RunEvent::Start {
            version: "1.2.3",
            sources: vec![name()],
            target: name(),
        },
        RunEvent::Host(HostInfo::default()),
        RunEvent::Host(HostInfo {
            host: "h".to_owned(),
            cipher: Some("aes128-gcm@openssh.com".to_owned()),
            ..HostInfo::default()
        }),
        RunEvent::Decision(DecisionEvent::new(&Decision::new(
            DecisionSubject::Dscp(8),
            DecisionOrigin::Flag("--dscp"),
        ))),
        RunEvent::Decision(DecisionEvent::new(&Decision {
            host: Some(name()),
            ..Decision::new(
                DecisionSubject::Dscp(0),
                DecisionOrigin::Memory(Duration::from_secs(5)),
            )
        })),
        RunEvent::Timeline(TimelineEntry {
            at: Duration::from_millis(114),
            connection: Some(1),
            step: TimelineStep::State(ConnectionState {
                waits: Some(StallCause::Answers),
                ..ConnectionState::default()
            }),
        }),
        RunEvent::Timeline(TimelineEntry {
            at: Duration::from_millis(900),
            connection: None,
            step: TimelineStep::File(FileStateChange {
                job: 1,
                state: FileCopyState::Renamed,
            }),
        }),
        RunEvent::progress(ProgressSnapshot::default()),
        RunEvent::progress(ProgressSnapshot {
            hosts: vec![HostProgress::new(
                "h".to_owned(),
                HostCopyState::Failed,
                (1, 2),
            )],
            remaining: Some(Duration::from_secs(5)),
            ..ProgressSnapshot::default()
        }),
        RunEvent::summary(Exit::SomeFailed, &partial),
        RunEvent::summary(Exit::NoConnection, &lost),
    ];
    let sink = Shared::default();
    let json = JsonEventWriter::new(Box::new(sink.clone()), Instant::now());
    for event in &copy {
        json.write(event).unwrap();
    }
    for event in &run {
        json.write(event).unwrap();
    }
    let bytes = sink.0.lock().unwrap().clone();
    let text = String::from_utf8(bytes).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Output in memory that the test reads while the reporter holds it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_event_is_as_documented_and_every_documented_event_exists() {
    let documented = documented();
    let mut seen: Vec<String> = examples()
        .iter()
        .map(|line| check(&serde_json::from_str(line).unwrap(), &documented))
        .collect();
    for line in examples() {
        let event: Value = serde_json::from_str(&line).unwrap();
        if event["verified"].is_object() {
            check_object("Verified", &event["verified"], &documented);
            seen.push("Verified".to_owned());
        }
        if event["way"].is_object() {
            check_object("Way", &event["way"], &documented);
            seen.push("Way".to_owned());
        }
        let (kind, hosts) = match event["event"].as_str() {
            Some("progress") => ("A host progress", &event["hosts"]),
            _ => ("A host", &event["hosts"]),
        };
        for host in hosts.as_array().into_iter().flatten() {
            check_object(kind, host, &documented);
            seen.push(kind.to_owned());
        }
        for far in event["far_ends"].as_array().into_iter().flatten() {
            check_object("A far end", far, &documented);
            seen.push("A far end".to_owned());
        }
        for session in event["sessions"].as_array().into_iter().flatten() {
            check_object("A session", session, &documented);
            check_object("Evidence", &session["evidence"], &documented);
            seen.extend(["A session".to_owned(), "Evidence".to_owned()]);
        }
    }
    let limiters = &documented["Limiters"];
    for limiter in Limiter::all() {
        let name = serde_json::to_value(limiter).unwrap();
        assert!(limiters.contains_key(name.as_str().unwrap()), "{name}");
    }
    assert_eq!(limiters.len(), Limiter::all().count());
    seen.push("Limiters".to_owned());
    seen.push("Every event".to_owned());
    seen.sort();
    seen.dedup();
    assert_eq!(seen, documented.keys().cloned().collect::<Vec<_>>());
}

#[test]
fn lines_look_as_they_did() {
    let lines: Vec<String> = examples()
        .iter()
        .map(|line| {
            let (before, rest) = line.split_once("\"t\":").unwrap();
            format!("{before}\"t\":0,{}", rest.split_once(',').unwrap().1)
        })
        .collect();
    for wanted in [
        r#"{"v":1,"t":0,"event":"file_done","id":1,"source":{"base64":"Yf8="},"target":{"base64":"Yf8="},"bytes":5,"state":"renamed","in_place":false,"synced":false,"verified":true}"#,
        r#"{"v":1,"t":0,"event":"warning","path":null,"message":"careful"}"#,
        r#"{"v":1,"t":0,"event":"summary","exit":255,"outcome":"no_connection","reason":"h: gone","files":0,"directories":0,"symlinks":0,"excluded":0,"bytes":0,"unfinished":0,"taken_over":0,"reused":0,"journal":null,"failed":0,"failures":[],"state":"closed","synced":false,"verified":null,"elapsed":1.5,"sessions":[{"host":{"base64":"Yf8="},"direction":"down","connections":5,"channels":2,"limiter":"far_send_buffer","measured":1.2,"stalled":0.0,"evidence":{"rate":0,"min_rtt":0.0,"rtt":0.0,"loss":0.0,"rwnd_limited":0.0,"sndbuf_limited":0.0,"window_blocked":0.0,"server":0.0,"cpu":0.0,"idle":null,"disk_stalls":0.0,"per_connection":0,"wanted_cpu":0.0,"silent":0.0,"held":0}}],"far_ends":[{"host":{"base64":"Yf8="},"depth":"stock","software":null,"reason":null}],"way":null}"#,
    ] {
        assert!(
            lines.iter().any(|line| line == wanted),
            "{wanted}\nis not in\n{}",
            lines.join("\n")
        );
    }
}
