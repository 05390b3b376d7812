//! Copies between and through several emulated hosts, as root:
//!
//!     cargo build --release -p longhaul && cargo build --release -p longhaul-tests --examples
//!     target/release/examples/many_hosts via|auto|direct|through-here [rounds]
//!
//! `via`: one connection over a path of 160 ms with 0.5 % loss, beside the way through a host that
//! halves it. `auto`: the choice of `--via auto` on five topologies. `direct`: a copy from host to
//! host over 10 ms and 500 Mbit/s, both 150 ms from here. `through-here`: a copy between two
//! unmodified servers, beside the slower leg alone. Of several rounds the median counts. The exit
//! status is 1 if a bar is missed.

mod world;

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use testkit::Seed;
use world::World;

/// Options of a path.
type Options = &'static [(&'static str, &'static str)];

const LOSSY: Options = &[("rtt", "160ms"), ("rate", "100Mbit"), ("loss", "0.5%")];
const HALF: Options = &[("rtt", "80ms"), ("rate", "100Mbit"), ("loss", "0.25%")];
const LONG: Options = &[("rtt", "160ms"), ("rate", "100Mbit")];
const CLEAN_HALF: Options = &[("rtt", "80ms"), ("rate", "100Mbit")];
const SLOW: Options = &[("rtt", "80ms"), ("rate", "10Mbit")];
const SLOW_LONG: Options = &[("rtt", "160ms"), ("rate", "10Mbit")];
const FAR_AWAY: Options = &[("rtt", "200ms"), ("rate", "100Mbit"), ("loss", "0.5%")];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let part = words.next().unwrap_or_default();
    let rounds = words
        .next()
        .map_or(3, |rounds| rounds.parse().expect("a number"));
    let met = match part.as_str() {
        "via" => via(rounds),
        "auto" => auto(),
        "direct" => direct(rounds),
        "through-here" => through_here(rounds),
        _ => panic!("via, auto, direct or through-here"),
    };
    match met {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// Creates a file of this size; returns its path.
fn file(world: &World, size: usize) -> String {
    let path = world.path("file");
    fs::write(&path, Seed::new(5).bytes(size)).expect("our file");
    path.display().to_string()
}

/// Copies one file with these flags, and returns the time.
fn timed(world: &World, flags: &[&str], from: &str, to: &str) -> Duration {
    let config = world.path("ssh_config").display().to_string();
    let path = to.rsplit_once(':').map_or(to, |(_, path)| path);
    let _ = fs::remove_file(path);
    let words = [
        &["cp", "-q", "-F", &config, "--far-end=stock"],
        flags,
        &[from, to],
    ]
    .concat();
    let ran = world.longhaul(&words).ok();
    let source = from.rsplit_once(':').map_or(from, |(_, path)| path);
    let read = |path: &str| fs::read(path).expect("a file");
    assert!(read(source) == read(path), "the copy differs");
    ran.took
}

fn via(rounds: usize) -> bool {
    let world = World::new(
        &["near", "h", "t"],
        &[("near", "t", LOSSY), ("near", "h", HALF), ("h", "t", HALF)],
    );
    let from = file(&world, 6_000_000);
    let to = world.path("copy").display().to_string();
    let mut met = true;
    for (way, from, to) in [
        ("download", format!("t:{from}"), to.clone()),
        ("upload", from, format!("t:{to}")),
    ] {
        let (mut plain, mut relayed) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let one = ["--connections=1", "--congestion=cubic"];
            plain.push(timed(&world, &one, &from, &to));
            relayed.push(timed(
                &world,
                &[&one[..], &["--via", "h"]].concat(),
                &from,
                &to,
            ));
        }
        let (plain, relayed) = (median(plain), median(relayed));
        let times = plain / relayed;
        println!("{way}: direct {plain:.1} s, --via {relayed:.1} s: {times:.2} times as fast");
        met &= times >= 1.5;
    }
    met
}

fn auto() -> bool {
    let mut met = true;
    for (name, up, paths, candidates, expected) in [
        (
            "halves of a lossy path",
            false,
            &[("near", "t", LOSSY), ("near", "h", HALF), ("h", "t", HALF)][..],
            "\"h\"",
            "through h",
        ),
        (
            "a clean long path",
            true,
            &[
                ("near", "t", LONG),
                ("near", "h", CLEAN_HALF),
                ("h", "t", CLEAN_HALF),
            ],
            "\"h\"",
            "the direct way",
        ),
        (
            "a host behind a slow uplink",
            false,
            &[
                ("near", "t", LONG),
                ("near", "h", SLOW),
                ("h", "t", CLEAN_HALF),
            ],
            "\"h\"",
            "the direct way",
        ),
        (
            "a slow direct path",
            true,
            &[
                ("near", "t", SLOW_LONG),
                ("near", "h", CLEAN_HALF),
                ("h", "t", CLEAN_HALF),
            ],
            "\"h\"",
            "through h",
        ),
        (
            "one host down, one far away, one that halves the path",
            false,
            &[
                ("near", "t", LOSSY),
                ("near", "far", FAR_AWAY),
                ("far", "t", FAR_AWAY),
                ("near", "h", HALF),
                ("h", "t", HALF),
            ],
            "\"10.77.0.99\", \"far\", \"h\"",
            "through h",
        ),
    ] {
        let world = World::new(&["near", "t", "h", "far"], paths);
        let from = file(&world, 100_000);
        let to = world.path("copy").display().to_string();
        let settings = world.path("config/longhaul");
        fs::create_dir_all(&settings).expect("our folder");
        let text = format!("via = [{candidates}]\n");
        fs::write(settings.join("config.toml"), text).expect("our file");
        let config = world.path("ssh_config").display().to_string();
        // A file that is worth measuring; the measurement alone matters here.
        let folder = world.path("folder");
        fs::create_dir(&folder).expect("our folder");
        fs::copy(&from, folder.join("file")).expect("our file");
        let folder = folder.display().to_string();
        let (from, to) = match up {
            true => (folder, format!("t:{to}")),
            false => (format!("t:{folder}"), to),
        };
        let flags = [
            "cp",
            "-r",
            "-F",
            &config,
            "--via=auto",
            "--explain",
            &from,
            &to,
        ];
        let ran = world.longhaul(&flags).ok();
        let said = ran.said();
        let line = said.lines().find(|line| line.starts_with("via: "));
        let line = line.unwrap_or(&said);
        let right = line.starts_with(&format!("via: {expected} "));
        let word = if right { "right" } else { "WRONG" };
        println!("{name}: {word} in {:.1} s: {line}", ran.took.as_secs_f64());
        met &= right;
    }
    met
}

fn direct(rounds: usize) -> bool {
    const RATE: f64 = 500e6 / 8.0;
    const FAR: Options = &[("rtt", "150ms"), ("rate", "100Mbit")];
    const NEAR: Options = &[("rtt", "10ms"), ("rate", "500Mbit")];
    let world = World::new(
        &["here", "a", "b"],
        &[("here", "a", FAR), ("here", "b", FAR), ("a", "b", NEAR)],
    );
    world.install("a");
    world.install("b");
    let size = 1_000_000_000;
    let from = file(&world, size);
    let to = world.path("copy").display().to_string();
    let config = world.path("ssh_config").display().to_string();
    let mut times = Vec::new();
    for _ in 0..rounds {
        let _ = fs::remove_file(&to);
        let (from, to) = (format!("a:{from}"), format!("b:{to}"));
        let ran = world.longhaul(&["cp", "-F", &config, &from, &to]).ok();
        assert!(ran.said().contains("directly between"), "{}", ran.said());
        times.push(ran.took);
    }
    let time = median(times);
    let share = size as f64 / time / RATE;
    println!(
        "from host to host: {size} bytes in {time:.1} s, {:.0} % of the near path's rate",
        share * 100.0
    );
    share >= 0.8
}

fn through_here(rounds: usize) -> bool {
    const FAST: Options = &[("rtt", "20ms"), ("rate", "200Mbit")];
    const LEG: Options = &[("rtt", "40ms"), ("rate", "100Mbit")];
    let world = World::new(
        &["here", "a", "b"],
        &[("here", "a", FAST), ("here", "b", LEG)],
    );
    let from = file(&world, 150_000_000);
    let to = world.path("copy").display().to_string();
    let config = world.path("ssh_config").display().to_string();
    let (mut alone, mut both, mut memory) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        alone.push(timed(&world, &[], &from, &format!("b:{to}")));
        let _ = fs::remove_file(&to);
        let words = [
            "cp",
            "-F",
            &config,
            &format!("a:{from}"),
            &format!("b:{to}"),
        ];
        let ran = world.longhaul(&words).ok();
        assert!(
            ran.said().contains("through this machine"),
            "{}",
            ran.said()
        );
        both.push(ran.took);
        memory = memory.max(ran.memory);
        assert!(fs::read(&from).expect("a file") == fs::read(&to).expect("a copy"));
        world.forget();
    }
    let (alone, both) = (median(alone), median(both));
    let mib = memory >> 20;
    println!(
        "through here: {both:.1} s, the slower leg alone {alone:.1} s: {:.0} % of its rate, \
         {mib} MiB of memory",
        100.0 * alone / both
    );
    alone / both >= 0.9 && mib < 128
}
