//! Fuzzes delta transfers of a file that the far end has in an older version: requests are refused,
//! answers corrupted, checksums wrong, the disk fails, the basis file changes meanwhile, jobs are
//! cancelled and channels lost.
//!
//! The final name always has the old file or the complete new one, nothing stays open, and
//! remaining temporaries were reported.

#[path = "../../crates/schedule/tests/lane/disk.rs"]
#[allow(dead_code, reason = "the lane's own tests use the rest")]
mod disk;
#[path = "../../crates/schedule/tests/lane/world.rs"]
#[allow(dead_code, reason = "the lane's own tests use the rest")]
mod world;

use std::path::PathBuf;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use disk::Source;
use fuzz::operate;
use schedule::{FileCopyOptions, JobKind, LaneConfig, LaneEvent};
use sftp::StatusCode;
use testkit::sftp_model::{Act, InjectedFault, Kind, Rng, SftpServerProfile, VirtualLinkOptions};
use world::{Mode, World, bytes, config, remote};

const KINDS: [Option<&str>; 10] = [
    None,
    Some("LSTAT"),
    Some("OPEN"),
    Some("hash@longhaul"),
    Some("copy-data"),
    Some("WRITE"),
    Some("CLOSE"),
    Some("REMOVE"),
    Some("FSETSTAT"),
    Some("posix-rename@openssh.com"),
];

fn settings(mode: Mode, seed: u64) -> LaneConfig {
    let mut config = config(mode, seed);
    config.remembered = None;
    config
}

/// Returns a changed version of the old file: larger than the minimum for delta, and small enough
/// to be quick.
fn changed(u: &mut Unstructured<'_>, old: &[u8]) -> Result<Vec<u8>> {
    let mut new = old.to_vec();
    for _ in 0..u.int_in_range(0..=6)? {
        let at = u.int_in_range(0..=new.len())?;
        let gone = u.int_in_range(0..=40_000)?.min(new.len() - at);
        let more = bytes(u.int_in_range(0..=40_000)?, u.arbitrary()?);
        new.splice(at..at + gone, more);
    }
    Ok(new)
}

fn fault(u: &mut Unstructured<'_>) -> Result<InjectedFault> {
    let kind = *u.choose(&KINDS)?;
    let act = match u.int_in_range(0..=6)? {
        // NO_SUCH_FILE is left out: for an existing file, the client cannot tell it from the truth.
        0..=2 => Act::Status(*u.choose(&[StatusCode::FAILURE, StatusCode::EOF])?),
        3 => Act::OtherHandle,
        4 => Act::OtherId,
        5 => Act::Truncated,
        // Too short, or above the maximum: for lengths in between, a client correctly waits.
        _ => match u.arbitrary::<u32>()? {
            n if n % 2 == 0 => Act::Length(n % 8),
            n => Act::Length(n | 0x100_0000),
        },
    };
    let nth = u.int_in_range(0..=7)?;
    Ok(InjectedFault { kind, nth, act })
}

#[test]
fn what_is_rebuilt_is_the_source_or_is_not_there() {
    let mut rebuilt = 0;
    operate(512, |u| {
        let seed = u.arbitrary()?;
        let mode = *u.choose(&[Mode::Predicting, Mode::Plain])?;
        let link = VirtualLinkOptions {
            delay: Duration::from_millis(u.int_in_range(10..=100)?),
            bandwidth: if u.ratio(1, 4)? { 3_000_000 } else { 0 },
            fragment: *u.choose(&[5000, 1 << 20])?,
        };
        let mut w = World::with(settings(mode, seed), SftpServerProfile::ours(), link, seed);
        let jitter = Duration::from_millis(u.int_in_range(0..=80)?);
        w.disk.jitter = Some((Rng::new(seed), jitter));
        let old = bytes(u.int_in_range((1 << 20) - 5000..=1 << 21)?, seed);
        let new = changed(u, &old)?;
        w.place("old", &old, 0o644);
        w.model.lies_about_sums = u.ratio(1, 10)?;
        let mut meddled = false;
        for _ in 0..u.int_in_range(0..=3)? {
            w.model.inject(fault(u)?);
        }
        if u.ratio(1, 5)? {
            meddled = true;
            w.model.change_before(u.int_in_range(2..=12)?, |fs| {
                if let Some(node) = fs.at_mut("old")
                    && let Kind::File(data) = &mut node.kind
                {
                    data.truncate(data.len() - 100_000);
                }
            });
        }
        if u.ratio(1, 5)? {
            w.disk.faults.insert(u.int_in_range(0..=8)?);
        }
        let source = PathBuf::from("/src/new");
        w.disk
            .sources
            .insert(source.clone(), Source::new(new.clone()));
        let id = w.job(JobKind::PutDelta {
            source,
            target: remote("old"),
            options: FileCopyOptions {
                preserve: u.arbitrary()?,
                fsync: u.arbitrary()?,
                ..FileCopyOptions::default()
            },
            always: u.arbitrary()?,
        });
        if u.ratio(1, 4)? {
            w.run_for(Duration::from_millis(u.int_in_range(0..=1500)?));
            match u.arbitrary()? {
                true => w.lane.cancel(w.now, "interrupted"),
                false => w.reconnect(settings(Mode::Plain, seed ^ 1)),
            }
        }
        let mut left = 40;
        while w.run().error.is_some() {
            left -= 1;
            assert!(left > 0, "each fault strikes once: {:?}", w.error);
            w.reconnect(settings(Mode::Plain, seed ^ left));
        }
        let stands = w.model.fs.data("old");
        let done = w.done(id);
        // A lane that is lost while the old file is moved aside has reported its new path, and the
        // scheduler moves it back.
        let aside = w.events.iter().rev().find_map(|(_, event)| match event {
            LaneEvent::Path(of, path) if *of == id => Some(String::from_utf8_lossy(path)),
            _ => None,
        });
        let aside = aside.filter(|path| !done && !path.is_empty());
        if done {
            rebuilt += 1;
            assert!(stands == Some(new.as_slice()), "it is not the source");
        } else {
            let moved = aside.as_deref().and_then(|path| w.model.fs.data(path));
            let whole = stands == Some(new.as_slice())
                || stands == Some(old.as_slice())
                || stands.is_none() && moved == Some(old.as_slice());
            assert!(whole || meddled, "neither old nor new: {:?}", w.model.log());
        }
        let told = |text: &str| {
            w.events.iter().any(|(_, event)| match event {
                LaneEvent::Warning(_, said) => said.contains(text),
                LaneEvent::Failed(of, fault) => *of != id || fault.what.contains(text),
                _ => false,
            })
        };
        for temporary in w.temporaries() {
            assert!(
                aside.as_deref() == Some(temporary.as_str()) || told(&temporary),
                "{temporary} is left and nobody said so: {:?}\n{:?}",
                w.events,
                w.model.log()
            );
        }
        assert_eq!(w.disk.open_sources(), 0);
        let stats = w.lane.stats();
        assert_eq!((stats.reading, stats.jobs), (0, 0));
        Ok(())
    });
    assert!(rebuilt > 0, "none was ever rebuilt");
}
