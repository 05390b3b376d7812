//! Rules about disks, logins, small files and the server's answers.

use crate::diagnosis_finding::{Certainty, DataDirection, DiagnosisFinding};
use crate::evidence::{DscpMeasurement, Evidence, ThroughputMeasurement, ThroughputScaling};
use crate::limit_cause::LimitCause;
use crate::units::{percent, rate, time};

/// Time of a step of the login in seconds, beyond its round trips ([`usual_round_trips`]), from
/// which on it is slow. The start of sshd takes 0.1 s on a busy machine.
const SLOW_STEP: f64 = 0.25;
/// Step of the login in which the first full packets are sent.
const KEY_EXCHANGE: &str = "the key exchange";
/// Sizes to which Linux lowers segments whose packets do not arrive (`tcp_base_mss` and its halves).
const PROBED_SEGMENTS: [u32; 3] = [1024, 512, 256];
/// Time in seconds that a key exchange loses at least until then: three timeouts of TCP.
const REPEATED: f64 = 1.4;
/// Answer time beyond the round trip from which on the server is slow.
const SLOW_ANSWER: f64 = 0.02;
/// Delay under load, beyond the idle round trip, that disturbs other programs.
const BLOATED: f64 = 0.1;
/// Share of the path's rate that small files reach if nothing holds them back.
const SMALL_FILES: f64 = 0.3;
/// Round trips of one small file in plain SFTP, fewer than scp's: OPEN, WRITE and CLOSE.
const TRIPS_OF_A_FILE: f64 = 3.0;
/// Time of a small file beyond its round trips from which on the server is slow.
const SLOW_FILE: f64 = 0.05;
/// Bytes of acknowledgements per byte of data, at most: one of 72 bytes (IPv6) for one to two
/// segments of 1,500, and SFTP's answers. A return path that other traffic shares was measured with
/// 0.043 of the rate.
const ACKNOWLEDGEMENTS: f64 = 0.045;
/// Bytes of an acknowledgement, and the share of the return path that they fill if they are the
/// limit. They queue there as well, so that some are lost.
const ACKNOWLEDGEMENT: f64 = 72.0;
const FILLED: f64 = 0.55;
/// Gain from more connections that a full link does not give.
const MORE_WITH_MORE: f64 = 1.1;
/// Segments that a tunnel or a low MSS makes smaller than Ethernet's with any TCP options.
const SMALL_SEGMENT: u32 = 1_380;
/// Share of the path's rate below which a disk is the limit.
const SLOWER: f64 = 0.8;
/// Rate of a class, as a share of the unmarked one, below which the class is slowed down.
const MARKED: f64 = 0.7;
/// Rate of a class with fewer pairs than [`PAIRS`], as a share of the unmarked one, below which the
/// class is slowed down. The finding is unsure.
const FEW_PAIRS_MARKED: f64 = 0.4;
/// Difference between unmarked measurements, and of other classes from them, that is none.
const STEADY: f64 = 0.15;
/// Difference of other classes that is small beside two pairs of a class that pass little.
const ROUGHLY: f64 = 0.3;
/// Pairs that must agree.
const PAIRS: usize = 3;

/// Adds all findings that are not about a ladder.
pub(crate) fn add(e: &Evidence, found: &mut Vec<DiagnosisFinding>) {
    found.extend(stalled(e));
    found.extend(healed_black_hole(e));
    disks(e, found);
    marked(e, found);
    found.extend(small_files(e));
    found.extend(slow_answers(e));
    found.extend(login(e));
    found.extend(limits(e));
    bloated(e, found);
    found.extend(tcp_options(e));
}

fn stalled(e: &Evidence) -> Option<DiagnosisFinding> {
    let stall = e.stall?;
    let size = stall.bytes as f64 / 1e6;
    let finding = match stall.in_handshake {
        true => {
            let evidence = format!(
                "the server's identification arrived, and full packets of the key exchange did \
                 not in {}",
                time(stall.seconds)
            );
            DiagnosisFinding::new(LimitCause::MtuBlackHole, evidence).certainty(Certainty::Likely)
        }
        false => {
            let how = match stall.reset {
                true => "reset",
                false => "silent",
            };
            let evidence = format!(
                "the connection was {how} after {} and {size:.1} MB",
                time(stall.seconds)
            );
            DiagnosisFinding::new(LimitCause::Middlebox, evidence).certainty(Certainty::Likely)
        }
    };
    Some(finding.limits(0.0, None))
}

/// A key exchange after which TCP sends segments of the size that it tries when full ones vanish
/// (`net.ipv4.tcp_mtu_probing`).
fn healed_black_hole(e: &Evidence) -> Option<DiagnosisFinding> {
    let (idle, mss) = (e.idle?.median, e.tcp?.mss);
    let step = e.login.iter().find(|step| step.name == KEY_EXCHANGE)?;
    let lost = step.seconds - usual_round_trips(step.round_trips) * idle;
    if lost < REPEATED || !PROBED_SEGMENTS.contains(&mss) {
        return None;
    }
    let evidence = format!(
        "{KEY_EXCHANGE} takes {}, and TCP sends segments of {mss} bytes from then on, as \
         net.ipv4.tcp_mtu_probing does when full packets do not arrive",
        time(step.seconds)
    );
    let finding = DiagnosisFinding::new(LimitCause::MtuBlackHole, evidence);
    Some(finding.certainty(Certainty::Likely))
}

fn disks(e: &Evidence, found: &mut Vec<DiagnosisFinding>) {
    let path = |ladder: &ThroughputScaling| ladder.best().map(|best| best.rate);
    let Some(best) = path(&e.up) else { return };
    for (cause, disk, whose) in [
        (
            LimitCause::FarDisk,
            e.there.disk,
            "files there are written at",
        ),
        (LimitCause::LocalDisk, e.here.disk, "files here are read at"),
    ] {
        if let Some(disk) = disk.filter(|disk| *disk < SLOWER * best) {
            let evidence = format!("{whose} {}, the path carries {}", rate(disk), rate(best));
            let finding = DiagnosisFinding::new(cause, evidence).limits(disk, Some(best));
            found.push(finding.of(DataDirection::Upload));
        }
    }
}

fn marked(e: &Evidence, found: &mut Vec<DiagnosisFinding>) {
    let noise = e.marks.noise.iter().map(|ratio| (ratio - 1.0).abs());
    let noise = noise.fold(0.0, f64::max);
    for mark in &e.marks.marks {
        let slow = mark.ratios.iter().filter(|ratio| **ratio < MARKED).count();
        // Few pairs are a reason to measure again, and no proof.
        let far = mark.ratios.iter().all(|ratio| *ratio < FEW_PAIRS_MARKED);
        let few = mark.ratios.len() < PAIRS;
        if mark.ratios.is_empty() || slow < mark.ratios.len() || few && !far {
            continue;
        }
        let evidence = format!(
            "packets marked {} pass at {}, unmarked ones at {}, in {}",
            mark.class,
            rate(mark.rate),
            rate(mark.unmarked),
            match mark.ratios.len() {
                1 => "one pair, with no time for more (--time)".to_owned(),
                pairs => format!("all of {pairs} pairs"),
            }
        );
        let beyond = mark.ratios.iter().all(|ratio| 1.0 - ratio > 2.0 * noise);
        // Two pairs that agree allow for more noise.
        let agree = beyond && mark.ratios.len() > 1;
        let sure = !few && beyond;
        let finding =
            DiagnosisFinding::new(LimitCause::MarkedClass, evidence).of(DataDirection::Upload);
        let finding = finding.limits(mark.rate, Some(mark.unmarked));
        found.push(
            match (
                sure,
                few && (noise < STEADY && others_pass(e, mark, STEADY)
                    || agree && others_pass(e, mark, ROUGHLY)),
            ) {
                (true, _) => finding,
                (false, true) => finding.certainty(Certainty::Likely),
                (false, false) => finding.certainty(Certainty::Unsure),
            },
        );
    }
}

/// True if the rates of all other classes, measured in the same round, differ from that of unmarked
/// packets by less than `difference`, a share of it. One pair of the slow class then tells as much as
/// several.
fn others_pass(e: &Evidence, slow: &DscpMeasurement, difference: f64) -> bool {
    let others = e.marks.marks.iter().filter(|m| m.class != slow.class);
    let mut rounds = others.filter_map(|mark| mark.ratios.first()).peekable();
    rounds.peek().is_some() && rounds.all(|ratio| (ratio - 1.0).abs() < difference)
}

fn small_files(e: &Evidence) -> Option<DiagnosisFinding> {
    let (files, idle) = (e.small_files?, e.idle?);
    let best = e.up.best()?.rate;
    let now = files.per_second * files.size as f64;
    // The files wait for round trips, and not for the server.
    let waits = files.per_second * idle.median * TRIPS_OF_A_FILE > 0.3;
    if now > SMALL_FILES * best || !waits {
        return None;
    }
    let evidence = format!(
        "{:.0} small files per second, copied one at a time, at a round trip of {}",
        files.per_second,
        time(idle.median)
    );
    Some(DiagnosisFinding::new(LimitCause::SmallFiles, evidence))
}

fn slow_answers(e: &Evidence) -> Option<DiagnosisFinding> {
    if let Some(answer) = e.server_answer.filter(|answer| *answer > SLOW_ANSWER) {
        let evidence = format!("answers take {} beyond the round trip", time(answer));
        return Some(DiagnosisFinding::new(LimitCause::SlowAnswers, evidence));
    }
    // Creating a file can be slow where looking one up is not.
    let (files, idle) = (e.small_files?, e.idle?);
    let beyond = 1.0 / files.per_second.max(1e-3) - TRIPS_OF_A_FILE * idle.median;
    let evidence = format!(
        "a small file takes {} beyond its round trips",
        time(beyond.max(0.0))
    );
    let slow = beyond > SLOW_FILE.max(1.5 * idle.median);
    slow.then(|| DiagnosisFinding::new(LimitCause::SlowAnswers, evidence))
}

/// A direction whose acknowledgements fill the other one.
pub(crate) fn return_path(e: &Evidence) -> Option<DiagnosisFinding> {
    let there = e.up.rung(1, 1).zip(shared_rate(e, &e.down));
    let back = e.down.rung(1, 1).zip(shared_rate(e, &e.up));
    let more = |ladder: &ThroughputScaling, one: &ThroughputMeasurement| {
        let best = ladder.best().map_or(0.0, |best| best.rate);
        best > MORE_WITH_MORE * one.rate
    };
    let starved = |pair: &(&ThroughputMeasurement, &ThroughputMeasurement)| {
        let (one, other) = pair;
        let small = other.rate > 0.0 && other.rate < ACKNOWLEDGEMENTS * one.rate;
        // A full link queues as well, but has the same rate with more connections, and its return
        // path has room.
        let fills = one.acknowledgements * ACKNOWLEDGEMENT > FILLED * other.rate;
        small && one.is_queueing(e) && (fills || more(&e.up, one) || more(&e.down, one))
    };
    let (direction, (one, other)) = [
        (DataDirection::Upload, there),
        (DataDirection::Download, back),
    ]
    .into_iter()
    .find_map(|(direction, pair)| Some((direction, pair.filter(starved)?)))?;
    let evidence = format!(
        "the opposite direction carries {}, and acknowledgements of {} need up to {}",
        rate(other.rate),
        rate(one.rate),
        rate(ACKNOWLEDGEMENTS * one.rate)
    );
    let finding = DiagnosisFinding::new(LimitCause::ReturnPath, evidence).of(direction);
    Some(finding.limits(one.rate, None).certainty(Certainty::Likely))
}

/// Load that tells what acknowledgements find in a direction: the best one, or a single connection if
/// that fills the queue, since several take more from other traffic than acknowledgements do.
fn shared_rate<'a>(
    e: &Evidence,
    ladder: &'a ThroughputScaling,
) -> Option<&'a ThroughputMeasurement> {
    let one = ladder.rung(1, 1).filter(|one| one.is_queueing(e));
    one.or_else(|| ladder.best())
}

/// Properties of the connection that both ends agreed on.
fn tcp_options(e: &Evidence) -> Vec<DiagnosisFinding> {
    let mut found = Vec::new();
    let Some(tcp) = e.tcp else { return found };
    if !tcp.timestamps {
        let evidence = "the handshake has none".to_owned();
        found.push(DiagnosisFinding::new(LimitCause::NoTimestamps, evidence));
    }
    if (1..SMALL_SEGMENT).contains(&tcp.mss) {
        let evidence = format!("{} bytes per segment", tcp.mss);
        found.push(DiagnosisFinding::new(LimitCause::SmallSegments, evidence));
    }
    found
}

fn login(e: &Evidence) -> Option<DiagnosisFinding> {
    let idle = e.idle?.median;
    let slow = |s: &&crate::evidence::TimedLoginStep| {
        s.seconds > usual_round_trips(s.round_trips) * idle + SLOW_STEP
    };
    let longest = |a: &&crate::evidence::TimedLoginStep, b: &&crate::evidence::TimedLoginStep| {
        a.seconds.total_cmp(&b.seconds)
    };
    let explained = healed_black_hole(e).is_some();
    let steps = e
        .login
        .iter()
        .filter(|s| !(explained && s.name == KEY_EXCHANGE));
    let step = steps.filter(slow).max_by(longest)?;
    let (name, seconds) = (&step.name, time(step.seconds));
    let evidence = match step.round_trips > 0.0 {
        true => {
            let packets = time(step.round_trips * idle);
            format!("{name} takes {seconds}, its packets {packets}")
        }
        false => format!("{name} takes {seconds}, and its packets left with the login"),
    };
    Some(DiagnosisFinding::new(LimitCause::SlowLogin, evidence))
}

/// Round trips that a step of the login may take if its packets need so many: three, since a lost
/// packet is repeated after one or two. A request that left with an earlier step has been on the
/// way for so long already that it needs at most one.
fn usual_round_trips(needed: f64) -> f64 {
    match needed > 0.0 {
        true => needed.max(3.0),
        false => 1.0,
    }
}

fn limits(e: &Evidence) -> Vec<DiagnosisFinding> {
    let mut found = Vec::new();
    if e.channels_refused {
        let evidence = "a second channel was refused".to_owned();
        found.push(DiagnosisFinding::new(LimitCause::OneChannel, evidence));
    }
    if let Some((asked, got)) = e.logins.filter(|(asked, got)| got < asked) {
        let evidence = format!("{got} of {asked} parallel logins were admitted");
        found.push(DiagnosisFinding::new(LimitCause::LoginLimit, evidence));
    }
    found
}

fn bloated(e: &Evidence, found: &mut Vec<DiagnosisFinding>) {
    let Some(idle) = e.idle else { return };
    for (ladder, direction) in [
        (&e.up, DataDirection::Upload),
        (&e.down, DataDirection::Download),
    ] {
        let Some(loaded) = ladder.loaded else {
            continue;
        };
        // A queue as long as the round trip is what one connection needs to fill the link.
        if loaded - idle.median > BLOATED.max(idle.high) {
            let evidence = format!(
                "an idle connection's round trip rises from {} to {}, by {}",
                time(idle.median),
                time(loaded),
                percent(loaded / idle.median.max(1e-6) - 1.0)
            );
            found.push(DiagnosisFinding::new(LimitCause::Bufferbloat, evidence).of(direction));
        }
    }
}
