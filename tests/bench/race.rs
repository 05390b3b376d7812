//! The race: every scenario, every run, every tool.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul_tests::round_trips::Before;
use longhaul_tests::{Program, Scene};
use measure::{
    BenchmarkProgram as Described, CopyDirection, ProgramComparisonResult, RunOutcome, SCHEMA,
    Scenario as Measured, ScenarioRun, ToolResult, ToolRoundTrips,
};
use serde_json::Value;
use tempfile::TempDir;
use testkit::background_process::ends_with_this_thread;
use testkit::tree::write_file;
use testkit::{PeerKind, Run};

use crate::content::Content;
use crate::inside;
use crate::job::{Job, ServerKind};
use crate::memory;
use crate::report;
use crate::scenarios::{self, Scenario, cases};
use crate::servers::Servers;
use crate::settings::{Preset, Settings};
use crate::tools::{Ask, SWEEP, TOOLS, Tool, folders};

/// Time for the lab and its server to start and end, beside the run itself.
const LAB_TIME: Duration = Duration::from_secs(60);

/// Resources that every run needs.
struct Ground<'a> {
    settings: &'a Settings,
    place: TempDir,
    programs: Vec<PathBuf>,
    servers: Servers,
    /// Content in the folder of sources.
    made: Option<Content>,
}

/// Runs the chosen scenarios.
pub(crate) fn run(settings: &Settings) -> Result<ProgramComparisonResult, String> {
    let place = tempfile::Builder::new()
        .prefix("longhaul-bench-")
        .tempdir_in(&settings.memory)
        .map_err(|error| format!("{}: {error}", settings.memory.display()))?;
    let programs = folders(settings);
    let servers = Servers::new(place.path(), &programs).map_err(|error| error.to_string())?;
    let all = match settings.preset {
        Preset::Sweep => SWEEP,
        Preset::Quick | Preset::Full => TOOLS,
    };
    let tools: Vec<(&Tool, Described)> = all
        .iter()
        .filter(|tool| takes_part(settings, tool))
        .map(|tool| (tool, tool.described(&programs)))
        .collect();
    for (_, tool) in &tools {
        if let Some(missing) = &tool.missing {
            eprintln!("MISSING: {}: {missing}", tool.name);
        }
    }
    let round_trips = round_trips(settings);
    let mut ground = Ground {
        settings,
        place,
        programs,
        servers,
        made: None,
    };
    let chosen: Vec<(&Scenario, CopyDirection)> = scenarios::all()
        .flat_map(|scenario| scenario.ways.iter().map(move |way| (scenario, *way)))
        .filter(|(scenario, way)| scenario.chosen(settings, *way))
        .collect();
    let mut race = ProgramComparisonResult {
        schema: SCHEMA,
        date: report::today(),
        preset: preset(settings, all),
        runs: settings.runs,
        scale: settings.scale,
        machine: report::machine(),
        tools: tools
            .iter()
            .map(|(_, described)| described.clone())
            .collect(),
        scenarios: Vec::new(),
        round_trips,
        cases: cases(),
    };
    for (scenario, way) in chosen {
        race.scenarios.push(ground.scenario(scenario, way, &tools));
        report::keep_unfinished(settings, &race);
    }
    if race.scenarios.is_empty() && race.round_trips.is_empty() {
        return Err("no scenario was chosen; bench --list names them".to_owned());
    }
    Ok(race)
}

/// Measures round trips of longhaul and scp with two lengths of a path, so that processor time
/// cancels out.
fn round_trips(settings: &Settings) -> Vec<ToolRoundTrips> {
    let named = settings.wants_scenario("round-trips");
    if !named.unwrap_or(settings.preset != Preset::Sweep) {
        return Vec::new();
    }
    let mut rows = Vec::new();
    let programs = [
        ("longhaul", Program::Longhaul(longhaul_tests::longhaul())),
        ("scp", Program::Scp),
    ];
    for (name, program) in programs {
        if settings.wants_tool(name) == Some(false) {
            continue;
        }
        let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
            return rows;
        };
        write_file(&scene.path("file"), &[b'x'; 1024]);
        scene.client.program = program;
        for (when, before) in [
            ("first contact", Before::Nothing),
            ("known host", Before::EarlierRuns),
        ] {
            let number = longhaul_tests::round_trips::measure(&mut scene, before);
            eprintln!("round trips, {when}: {name} {number:.1}");
            rows.push(ToolRoundTrips {
                tool: name.to_owned(),
                when: when.to_owned(),
                number,
            });
        }
    }
    rows
}

/// Returns the command of a tool; tools that a scenario does not compare have none.
fn command_of(tool: &Tool, ask: &Ask) -> Result<Vec<String>, &'static str> {
    if !ask.among.is_empty() && !ask.among.contains(&tool.name) {
        return Err("it is not what is compared here");
    }
    tool.command(ask)
}

fn takes_part(settings: &Settings, tool: &Tool) -> bool {
    let by_preset = settings.preset != Preset::Quick || tool.quick;
    settings.wants_tool(tool.name).unwrap_or(by_preset)
}

/// Describes the preset, with the tools that it leaves out.
fn preset(settings: &Settings, all: &[Tool]) -> String {
    let out = all.iter().filter(|tool| !takes_part(settings, tool));
    let out: Vec<&str> = out.map(|tool| tool.name).collect();
    let mut text = settings.shown();
    if memory::taken_back() {
        text.push_str(", memory held warm");
    }
    if !out.is_empty() {
        text.push_str(&format!(" (without {})", out.join("; ")));
    }
    text
}

impl Ground<'_> {
    fn folder(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn scenario(
        &mut self,
        scenario: &Scenario,
        way: CopyDirection,
        tools: &[(&Tool, Described)],
    ) -> Measured {
        let content = scenario.content.scaled(scenario.share(self.settings));
        let mut result = Measured {
            name: scenario.name(way),
            about: scenario.about.to_owned(),
            path: scenario.lab.iter().map(|word| (*word).to_owned()).collect(),
            rtt_seconds: scenario.rtt,
            way,
            payload: content.payload(),
            measure: scenario.measure,
            limit_seconds: scenario.limit(self.settings),
            entries: Vec::new(),
            bars: Vec::new(),
        };
        eprintln!(
            "\n{}: {}",
            result.name,
            measure::shown::payload(result.payload)
        );
        let ask = scenario.ask(way);
        for (tool, described) in tools {
            let (command, left_out) = match (&described.missing, command_of(tool, &ask)) {
                (Some(missing), _) => (Vec::new(), Some(missing.clone())),
                (None, Err(reason)) => (Vec::new(), Some(reason.to_owned())),
                (None, Ok(command)) => (command, None),
            };
            result.entries.push(ToolResult {
                tool: tool.name.to_owned(),
                command,
                left_out,
                samples: Vec::new(),
            });
        }
        let ready = self.make(content);
        for _ in 0..self.settings.runs {
            for number in 0..result.entries.len() {
                let (Some(entry), Some((tool, _))) =
                    (result.entries.get(number), tools.get(number))
                else {
                    continue;
                };
                if entry.left_out.is_some() || entry.trouble().is_some() {
                    continue;
                }
                let command = entry.command.clone();
                let sample = match &ready {
                    Ok(()) => self.sample(scenario, &result, tool, command, content),
                    Err(why) => failed(why),
                };
                say(&result, tool.name, &sample);
                if let Some(entry) = result.entries.get_mut(number) {
                    entry.samples.push(sample);
                }
            }
        }
        let asked = scenario.asked(way, self.settings);
        result.bars = asked
            .iter()
            .map(|asked| asked.judged(scenario.ours, &result))
            .collect();
        result.thin();
        result
    }

    /// Creates the source, unless it exists already.
    fn make(&mut self, content: Content) -> Result<(), String> {
        if self.made == Some(content) {
            return Ok(());
        }
        self.made = None;
        let source = self.folder("source");
        let _ = fs::remove_dir_all(&source);
        let needed = content.room();
        let room =
            rustix::fs::statvfs(self.place.path()).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
        if room < needed {
            let [room, needed] = [room, needed].map(measure::shown::bytes);
            return Err(format!("{room} of room is too little, {needed} are needed"));
        }
        fs::create_dir_all(&source)
            .and_then(|()| content.make(&source))
            .map_err(|error| format!("the source could not be made: {error}"))?;
        self.made = Some(content);
        Ok(())
    }

    fn sample(
        &mut self,
        scenario: &Scenario,
        result: &Measured,
        tool: &Tool,
        command: Vec<String>,
        content: Content,
    ) -> ScenarioRun {
        match self.try_sample(scenario, result, tool, command, content) {
            Ok(sample) => sample,
            Err(why) => {
                // Local folders do not belong in a report.
                let place = self.place.path().display().to_string();
                failed(&why.replace(&place, "$TMP").replace('\n', " "))
            }
        }
    }

    fn try_sample(
        &mut self,
        scenario: &Scenario,
        result: &Measured,
        tool: &Tool,
        command: Vec<String>,
        content: Content,
    ) -> Result<ScenarioRun, String> {
        let scratch = self.folder("scratch");
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
        let lab = !scenario.lab.is_empty();
        let (server_options, server) = if lab {
            self.servers.in_lab(tool.server, scenario.sshd, &scratch)
        } else {
            let server = self.servers.on_loopback(tool.server);
            server.map(|server| (Vec::new(), Some(server)))
        }
        .map_err(|error| error.to_string())?;
        let job = Job {
            command,
            server_kind: tool.server,
            server,
            source: self.folder("source"),
            target: self.folder("target"),
            name: content.name().to_owned(),
            payload: if tool.server == ServerKind::Iperf {
                measure::PayloadSize { files: 0, bytes: 0 }
            } else {
                result.payload
            },
            up: result.way == CopyDirection::Up,
            stands: content.old().map(|old| self.folder("source").join(old)),
            primed: scenario.primed,
            // iperf3 runs for its ten seconds, independent of the limit for copies.
            limit: match tool.server {
                ServerKind::Iperf => result.limit_seconds.max(30.0),
                ServerKind::Stock | ServerKind::BothEnds | ServerKind::Hpn | ServerKind::Serve => {
                    result.limit_seconds
                }
            },
            programs: self.programs.clone(),
            output: scratch.join("sample.json"),
            scratch: scratch.clone(),
        };
        let job_file = scratch.join("job.json");
        let text = serde_json::to_string(&job).map_err(|error| error.to_string())?;
        fs::write(&job_file, text).map_err(|error| error.to_string())?;
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let figures = scratch.join("path.json");
        // The run ends if this program is killed.
        let run = Run::of(ends_with_this_thread());
        let run = if lab {
            run.arg(longhaul_tests::longhaul())
                .arg("lab")
                .args(scenario.lab)
                .args(&server_options)
                .arg("--figures")
                .arg(&figures)
                .args(["-q", "--"])
                .arg(&this)
        } else {
            run.arg(&this)
        };
        let runs = if scenario.primed { 2.0 } else { 1.0 };
        let outcome = run
            .arg(inside::ARGUMENT)
            .arg(&job_file)
            .timeout(Duration::from_secs_f64(job.limit * runs) + LAB_TIME)
            .run();
        let Ok(text) = fs::read_to_string(&job.output) else {
            let said = outcome.err();
            let last = said.lines().rev().find(|line| !line.trim().is_empty());
            return Err(last.unwrap_or("the run ended without a word").to_owned());
        };
        let mut sample: ScenarioRun =
            serde_json::from_str(&text).map_err(|error| error.to_string())?;
        sample.path = path_figures(&figures);
        Ok(sample)
    }
}

fn path_figures(file: &Path) -> Value {
    let text = fs::read_to_string(file).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn failed(why: &str) -> ScenarioRun {
    ScenarioRun {
        ending: RunOutcome::Failed {
            why: why.to_owned(),
        },
        seconds: 0.0,
        bytes: 0,
        files: 0,
        client_cpu_seconds: 0.0,
        server_cpu_seconds: None,
        peak_memory_bytes: 0,
        curve: Vec::new(),
        last_half_rate: None,
        path: Value::Null,
    }
}

fn say(result: &Measured, tool: &str, sample: &ScenarioRun) {
    let since = {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_secs()
    };
    let figure = match sample.done() {
        true => format!(
            "{:>8} {}",
            measure::shown::number(sample.figure(result.measure)),
            result.measure.unit()
        ),
        false => measure::shown::ending(result, sample),
    };
    eprintln!(
        "{since:>5} s  {tool:<16} {:>8.2} s  {figure}",
        sample.seconds
    );
}
