//! Tests with an invented race: stored, compared, and formatted in every way.

use measure::{
    BenchmarkProgram, CopyDirection, GoalResult, MachineProperties, PayloadSize,
    ProgramComparisonResult, ProgressPoint, PublishedReport, RunOutcome, SCHEMA, Scenario,
    ScenarioMetric, ScenarioRun, ToolResult, ToolRoundTrips, compare, keep, page, table,
};
use serde_json::{Value, json};

fn sample(seconds: f64, bytes: u64, files: u64) -> ScenarioRun {
    let points = (0..=20_u32).map(|n| {
        let part = f64::from(n) / 20.0;
        ProgressPoint(seconds * part, (bytes as f64 * part * part * 1.04) as u64)
    });
    ScenarioRun {
        ending: RunOutcome::Done,
        seconds,
        bytes,
        files,
        client_cpu_seconds: 0.4 * bytes as f64 / 1e9,
        server_cpu_seconds: Some(0.6 * bytes as f64 / 1e9),
        peak_memory_bytes: 30 << 20,
        curve: points.collect(),
        last_half_rate: Some(bytes as f64 / 1e6 / seconds * 1.1),
        path: json!({"up": {"packets": 12345, "dropped": {"queue": 3, "loss": 0}}}),
    }
}

fn entry(tool: &str, samples: Vec<ScenarioRun>) -> ToolResult {
    ToolResult {
        tool: tool.to_owned(),
        command: vec![
            tool.to_owned(),
            "$SRC/file <&>".to_owned(),
            "far:$DST/".to_owned(),
        ],
        left_out: None,
        samples,
    }
}

fn scenario() -> Scenario {
    let bytes = 1 << 30;
    let runs = |seconds: f64| {
        [0.98, 1.0, 1.05]
            .map(|f| sample(seconds * f, bytes, 1))
            .to_vec()
    };
    let mut failed = sample(0.2, bytes, 1);
    failed.ending = RunOutcome::Failed {
        why: "exit status 1: <no> & more".to_owned(),
    };
    let mut late = sample(120.0, bytes, 1);
    late.ending = RunOutcome::TimedOut {
        files: 1,
        bytes: 200 << 20,
    };
    let mut without = entry("iperf3", Vec::new());
    without.left_out = Some("not on loopback".to_owned());
    Scenario {
        name: "transatlantic-file/up".to_owned(),
        about: "1 Gbit/s, 114 ms, TCP as an untouched Linux sets it.".to_owned(),
        path: ["--path", "transatlantic", "--tcp", "stock"]
            .map(str::to_owned)
            .to_vec(),
        rtt_seconds: Some(0.114),
        way: CopyDirection::Up,
        payload: PayloadSize { files: 1, bytes },
        measure: ScenarioMetric::Rate,
        limit_seconds: 120.0,
        entries: vec![
            entry("longhaul", runs(10.5)),
            entry("scp", vec![late]),
            entry("rsync", runs(55.0)),
            entry("mscp -n 16", runs(21.0)),
            entry("lftp", vec![failed]),
            without,
        ],
        bars: vec![GoalResult {
            what: "MB/s from start to exit".to_owned(),
            measured: Some(97.2),
            bar: 90.0,
            met: true,
        }],
    }
}

fn race() -> ProgramComparisonResult {
    ProgramComparisonResult {
        schema: SCHEMA,
        date: "2026-11-21".to_owned(),
        preset: "quick".to_owned(),
        runs: 3,
        scale: 1.0,
        machine: MachineProperties {
            cores: 2,
            kernel: "Linux 6.18".to_owned(),
            memory_bytes: 24 << 30,
            commit: "abc1234".to_owned(),
            ..MachineProperties::default()
        },
        tools: vec![
            BenchmarkProgram {
                name: "longhaul".to_owned(),
                version: Some("0.1.0".to_owned()),
                missing: None,
            },
            BenchmarkProgram {
                name: "hpnscp".to_owned(),
                version: None,
                missing: Some("not built".to_owned()),
            },
        ],
        scenarios: vec![scenario()],
        round_trips: vec![ToolRoundTrips {
            tool: "scp".to_owned(),
            when: "known host".to_owned(),
            number: 17.7,
        }],
        cases: vec![PublishedReport {
            number: 5,
            title: "A TLS relay that stalls".to_owned(),
            scenarios: Vec::new(),
            waits_for: Some("the relay".to_owned()),
        }],
    }
}

/// Checks that every start tag has its end, in order; enough XML for these documents.
fn well_formed(markup: &str) -> Result<(), String> {
    const VOID: [&str; 3] = ["meta", "br", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = markup;
    while let Some(at) = rest.find('<') {
        let (text, tag) = rest.split_at(at);
        if text.contains('>') && !open.contains(&"style") {
            return Err(format!("a bare > in {text:?}"));
        }
        let end = tag.find('>').ok_or("an open tag at the end")?;
        let inside = &tag[1..end];
        let name = inside
            .split([' ', '/'])
            .find(|name| !name.is_empty())
            .unwrap_or("");
        if inside.starts_with('/') {
            let last = open.pop();
            if last != Some(name) {
                return Err(format!("{name} ends within {last:?}"));
            }
        } else if !inside.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
        rest = &tag[end + 1..];
    }
    open.is_empty()
        .then_some(())
        .ok_or_else(|| format!("left open: {open:?}"))
}

#[test]
fn the_page_is_well_formed_and_stands_alone() {
    let html = page::page(&race());
    well_formed(&html).expect("well-formed");
    for outside in ["<script", "src=", "<link", "@import", "javascript:"] {
        assert!(!html.contains(outside), "{outside} in the page");
    }
    let addresses = html.matches("http").count();
    assert_eq!(
        addresses,
        html.matches("http://www.w3.org/2000/svg").count()
    );
    for text in [
        "did not finish in 120 s: 200 MiB of 1 GiB",
        "missing: not built",
        "failed: exit status 1: &lt;no&gt; &amp; more",
        "$SRC/file &lt;&amp;&gt;",
        "not on loopback",
        "waits for the relay",
        "up packets 12,345",
    ] {
        assert!(html.contains(text), "{text:?} is not in the page");
    }
    assert!(html.len() < 60_000, "{} bytes", html.len());
    if let Some(file) = std::env::var_os("MEASURE_PAGE") {
        std::fs::write(file, html).expect("the file that was asked for");
    }
}

#[test]
fn a_picture_is_a_file_of_its_own() {
    use measure::plot::{BarPlot, BarRow, BarStyle, LinePlot, PlotLine};
    let bars = BarPlot {
        title: "a < b".to_owned(),
        unit: "MB/s".to_owned(),
        rows: vec![BarRow {
            label: "x & y".to_owned(),
            value: measure::RunStatistics::of([1.0, 2.0]),
            note: String::new(),
            fill: BarStyle::Ours,
        }],
    };
    let lines = LinePlot {
        title: "no points".to_owned(),
        x_unit: "s".to_owned(),
        y_unit: "MB/s".to_owned(),
        lines: vec![PlotLine {
            label: "none".to_owned(),
            points: Vec::new(),
        }],
    };
    for document in [bars.draw().document(), lines.draw().document()] {
        well_formed(&document).expect("well-formed");
        assert!(!document.contains("NaN") && !document.contains("inf"));
    }
}

#[test]
fn the_table_names_what_is_missing() {
    let text = table::table(&race());
    assert!(text.contains("MISSING: hpnscp: not built"), "{text}");
    assert!(text.contains("did not finish in 120 s"), "{text}");
    assert!(text.contains("| longhaul"), "{text}");
}

#[test]
fn results_are_kept_side_by_side() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(keep::last(folder.path()).is_none());
    let race = race();
    let first = keep::save(folder.path(), &race).expect("saved");
    let second = keep::save(folder.path(), &race).expect("saved");
    assert!(first.ends_with("2026-11-21-race.json"));
    assert!(second.ends_with("2026-11-21-race-2.json"));
    let last = keep::last(folder.path()).expect("the last");
    assert_eq!(last.file, second);
    // serde_json does not round-trip the last digit of a number, so formatted results are compared.
    assert!(page::page(&last.race) == page::page(&race));
}

#[test]
fn a_later_schema_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("2026-11-21-race.json");
    let mut value: Value = serde_json::to_value(race()).expect("JSON");
    value["schema"] = json!(SCHEMA + 1);
    std::fs::write(&file, value.to_string()).expect("written");
    let error = keep::load(&file).expect_err("a later schema").to_string();
    assert!(error.contains("schema"), "{error}");
    std::fs::write(&file, "{").expect("written");
    keep::load(&file).expect_err("not JSON");
}

#[test]
fn changes_are_ratios_of_medians() {
    let before = race();
    let mut now = race();
    for sample in &mut now.scenarios[0].entries[0].samples {
        sample.seconds /= 2.0;
    }
    let changes = compare::compare(&before, &now, Some("longhaul"));
    let [change] = changes.as_slice() else {
        panic!("one change: {changes:?}");
    };
    assert!((change.better - 2.0).abs() < 1e-9 && change.beyond_spread);
    let other = compare::compare(&before, &now, None);
    assert!(
        other
            .iter()
            .any(|c| c.tool == "rsync" && c.better == 1.0 && !c.beyond_spread)
    );
    assert!(compare::shown(&other).contains("(spread)"));
    // A tool that did not finish has no figure to compare.
    assert!(other.iter().all(|change| change.tool != "scp"));
    now.scenarios[0].payload.bytes += 1;
    assert!(compare::compare(&before, &now, None).is_empty());
}

#[test]
fn one_curve_is_kept_of_each_tool() {
    let mut scenario = scenario();
    scenario.thin();
    for entry in scenario
        .entries
        .iter()
        .filter(|entry| !entry.samples.is_empty())
    {
        let with = entry
            .samples
            .iter()
            .filter(|sample| !sample.curve.is_empty())
            .count();
        assert_eq!(with, 1, "{}", entry.tool);
    }
}

#[test]
fn a_tool_counts_only_if_each_run_does() {
    let mut entry = entry(
        "x",
        vec![sample(1.0, 1_000_000, 1), sample(2.0, 1_000_000, 1)],
    );
    let rate = entry
        .spread(|s| s.figure(ScenarioMetric::Rate))
        .expect("two runs");
    assert_eq!((rate.min, rate.median, rate.max), (0.5, 0.75, 1.0));
    entry.samples[1].ending = RunOutcome::Wrong {
        why: "a is shorter".to_owned(),
    };
    assert!(entry.spread(|s| s.seconds).is_none());
}
