//! Remembers the properties of hosts, so that the next connection needs fewer round trips.
//!
//! The memory contains no secrets and is not trusted: a wrong prediction costs a round trip, never
//! security. Data that are sent early because of it are bound to the remembered host key.

pub mod detours;
pub mod findings;
pub mod paths;
pub mod processor;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use schedule::{LearnedConcurrency, LoginCost, RefusedOperations, TransferDirection};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use detours::DetourRecord;
use findings::BenchFindings;
use paths::NetworkPathRecord;
use processor::ProcessorStore;

use crate::private_dir::{LonghaulDirKind, PrivateDir};

/// Number of tries to lock the folder, and the pause between them; a change takes less than 1 ms.
/// flock has no timeout, and a stopped process must not stop the copies of all others.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The lifetime of an entry.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// The lifetime of refusals, which may depend on a server's settings: a file is written in place, which
/// an interruption leaves incomplete, for no longer than this after the server was repaired.
const REFUSED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Time for which the cost of logins is remembered.
const LOGINS_REFUSED_FOR: Duration = Duration::from_secs(24 * 3600);
/// The maximum size of a file; larger files were not written by longhaul.
const MAX_FILE: u64 = 256 * 1024;
/// The number of remembered paths of a host.
const PLACES: usize = 64;
/// The length of a path's hash in bytes.
const PLACE: usize = 9;
/// The format version; increased when the meaning of a field changes. Format 1 had one network path
/// per host.
const FORMAT: u32 = 2;

/// Properties of a host that are remembered for the next connection with this port and user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostMemory {
    /// The server's version string, without CR LF.
    pub banner: String,
    /// The first name of the server's kex list.
    pub kex: String,
    /// The first name of the server's host key list.
    pub host_key_algorithm: String,
    /// The server's list of key exchange methods, joined by commas.
    pub kex_list: String,
    /// The server's list of host key algorithms, joined by commas.
    pub host_key_list: String,
    /// SHA256 fingerprint of the host key that was verified.
    pub host_key: String,
    /// The public key that the server accepted under that host key.
    pub accepted_key: Option<AcceptedLoginKey>,
    /// The SFTP extensions with their versions, in the server's order.
    pub sftp_extensions: Vec<(String, String)>,
    /// The host's address at the last TCP connection, to which the route identifies the network
    /// path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// This machine's network at that time ([`paths::network_of`]); empty if unknown. The fields
    /// `rtt_us`, `learned`, `findings` and `direct_failed` belong to this path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Figures of other network paths, latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<NetworkPathRecord>,
    /// The TCP round trip, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u32>,
    /// The numbers of connections and channels that paid, at most one record per direction.
    #[serde(default)]
    pub learned: Vec<LearnedConcurrency>,
    /// The record of a longhaul at the far end.
    #[serde(default)]
    pub far: Option<RemoteLonghaulRecord>,
    /// The time when direct connections failed, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_failed: Option<u64>,
    /// The time when a connection failed with zlib that the user had not requested, in seconds
    /// since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zlib_failed: Option<u64>,
    /// The deliberate measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub findings: Option<BenchFindings>,
    /// Operations that the SFTP server was found to refuse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedOperationsRecord>,
    /// Cost of further logins, if it is unusual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logins: Option<LoginCostRecord>,
    /// The choices of `--via auto`, at most one for each direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub detours: Vec<DetourRecord>,
    /// Hashes of paths that look like directories but name files, latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// Knowledge of an earlier run about the longhaul at the far end: version, extensions, and the
/// binary that was sent there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteLonghaulRecord {
    /// The time of the record, in seconds since 1970.
    pub at: u64,
    /// The version of the longhaul that answered, if any.
    pub software: Option<String>,
    /// The SFTP extensions that it announced, with versions, in its order.
    #[serde(default)]
    pub extensions: Vec<(String, String)>,
    /// The SHA-256 of the binary that was sent there.
    #[serde(default)]
    pub placed: Option<String>,
    /// A longhaul may be there, but could not serve files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unusable: bool,
}

/// Operations that an SFTP server refuses, and when they were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedOperationsRecord {
    /// The time of the record, in seconds since 1970.
    pub at: u64,
    /// The refused operations.
    pub refusals: RefusedOperations,
}

/// Stored cost of further logins at a host, and the time at which it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginCostRecord {
    /// The time of the record, in seconds since 1970.
    pub at: u64,
    /// The cost.
    pub cost: LoginCost,
}

impl RemoteLonghaulRecord {
    /// Returns the age of the record; `None` if its time is in the future.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        seconds(now).checked_sub(self.at).map(Duration::from_secs)
    }
}

impl HostMemory {
    /// Returns the TCP round trip.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt_us.map(|us| Duration::from_micros(us.into()))
    }

    /// Stores the round trip if it differs by more than a factor of two, which means another path.
    pub fn note_rtt(&mut self, rtt: Duration) {
        let known = self.rtt().unwrap_or_default();
        if !(known / 2..=known * 2).contains(&rtt) {
            self.rtt_us = u32::try_from(rtt.as_micros()).ok();
        }
    }

    /// Records that a connection failed with zlib that the user had not requested.
    pub fn note_zlib_failed(&mut self, now: SystemTime) {
        self.zlib_failed = Some(seconds(now));
    }

    /// Returns how long ago a connection failed with such zlib, while the record is valid.
    pub fn zlib_failed(&self, now: SystemTime) -> Option<Duration> {
        let age = Duration::from_secs(seconds(now).checked_sub(self.zlib_failed?)?);
        (age <= LIFETIME).then_some(age)
    }

    /// Returns the operations that the server is expected to refuse; they are tried again after a
    /// day.
    pub fn refusals(&self, now: SystemTime) -> RefusedOperations {
        let age =
            |r: &RefusedOperationsRecord| seconds(now).checked_sub(r.at).map(Duration::from_secs);
        let holds = |r: &RefusedOperationsRecord| age(r).is_some_and(|age| age <= REFUSED_FOR);
        let known = self.refused.filter(holds);
        known.map(|known| known.refusals).unwrap_or_default()
    }

    /// Adds refused operations. Those that were known keep their time, since they were not tried
    /// again.
    pub fn note_refusals(&mut self, found: RefusedOperations, now: SystemTime) {
        let known = self.refusals(now);
        let since = self.refused.filter(|_| !known.is_empty());
        self.refused = Some(RefusedOperationsRecord {
            at: since.map_or_else(|| seconds(now), |record| record.at),
            refusals: known.and(found),
        });
    }

    /// Returns what further logins are expected to cost. Refusals count for a day, since others may
    /// have logged in at that moment.
    pub fn login_cost(&self, now: SystemTime) -> LoginCost {
        let age = |l: &LoginCostRecord| seconds(now).checked_sub(l.at).map(Duration::from_secs);
        let holds = |l: &LoginCostRecord| age(l).is_some_and(|age| age <= LOGINS_REFUSED_FOR);
        let known = self.logins.filter(holds);
        known.map(|known| known.cost).unwrap_or_default()
    }

    /// Records what further logins cost. A refusal is kept, since a copy that asked for few
    /// connections says nothing about more.
    pub fn note_login_cost(&mut self, cost: LoginCost, now: SystemTime) {
        let known = self.login_cost(now);
        let refused = cost.refused_connection || cost.refused_login;
        let at = match self.logins {
            Some(logins) if !refused && known != LoginCost::default() => logins.at,
            _ => seconds(now),
        };
        self.logins = Some(LoginCostRecord {
            at,
            cost: LoginCost {
                start_up_ms: cost.start_up_ms,
                refused_connection: known.refused_connection || cost.refused_connection,
                refused_login: known.refused_login || cost.refused_login,
            },
        });
    }

    /// Returns the figures learned from transfers in this direction.
    pub fn learned(&self, direction: TransferDirection) -> Option<LearnedConcurrency> {
        let this_way = |l: &&LearnedConcurrency| l.direction == direction;
        self.learned.iter().find(this_way).copied()
    }

    /// Replaces the figures of a direction.
    pub fn learn(&mut self, learned: LearnedConcurrency) {
        self.learned.retain(|l| l.direction != learned.direction);
        self.learned.push(learned);
    }

    /// True if `path` looks like a directory but named a file before.
    pub fn was_file(&self, path: &[u8]) -> bool {
        self.files.contains(&short_hash(path, PLACE))
    }

    /// Corrects a wrong guess about `path`: it is a `file`, or else a directory.
    pub fn note_place(&mut self, path: &[u8], file: bool) {
        let hash = short_hash(path, PLACE);
        self.files.retain(|other| *other != hash);
        if file {
            self.files.push(hash);
            let over = self.files.len().saturating_sub(PLACES);
            self.files.drain(..over);
        }
    }
}

/// A public key of the user that the server accepted in a login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedLoginKey {
    /// SHA256 fingerprint of the key or certificate blob.
    pub fingerprint: String,
    /// The signature algorithm.
    pub algorithm: String,
    /// True if publickey alone completed the authentication.
    pub sufficient: bool,
}

#[derive(Serialize, Deserialize)]
struct StoredMemory {
    format: u32,
    // Stored in clear, so that users can see which host a file is about, and a collision of file
    // names cannot mix two hosts.
    host: String,
    port: u16,
    user: String,
    stored: u64,
    memory: HostMemory,
}

/// The folder with the memory of all hosts.
#[derive(Clone, Debug)]
pub struct HostMemoryStore {
    folder: PathBuf,
}

impl HostMemoryStore {
    /// Returns the folder `hosts` in the user's cache folder; `None` without a cache folder.
    pub fn of_user() -> Option<Self> {
        Some(Self::at(LonghaulDirKind::Cache.path()?.join("hosts")))
    }

    /// Uses `folder`, which is created when first needed.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the folder with the measurements of this machine's processor.
    pub fn processors(&self) -> ProcessorStore {
        let beside = self.folder.parent().unwrap_or(&self.folder);
        ProcessorStore::at(beside.join("processors"))
    }

    /// Loads the memory of a host. `None` if the file is missing, too old at time `now`, damaged or
    /// of another format.
    pub fn load(&self, host: &str, port: u16, user: &str, now: SystemTime) -> Option<HostMemory> {
        let (memory, _) = self.load_aged((host, port, user), now)?;
        Some(memory)
    }

    /// Loads the memory of a host with its age.
    pub fn load_aged(
        &self,
        (host, port, user): (&str, u16, &str),
        now: SystemTime,
    ) -> Option<(HostMemory, Duration)> {
        let mut stored: StoredMemory = read(&self.folder, &file_of(host, port, user))?;
        let ours = stored.format == FORMAT
            && stored.host == host
            && stored.port == port
            && stored.user == user;
        // A time in the future means that the clock was or is wrong.
        let age = Duration::from_secs(seconds(now).checked_sub(stored.stored)?);
        stored.memory.on_present_path();
        (ours && age <= LIFETIME).then_some((stored.memory, age))
    }

    /// Stores the memory of a host. Concurrent readers see the old or the new file, complete.
    pub fn store(
        &self,
        host: &str,
        port: u16,
        user: &str,
        memory: &HostMemory,
        now: SystemTime,
    ) -> io::Result<()> {
        let stored = StoredMemory {
            format: FORMAT,
            host: host.into(),
            port,
            user: user.into(),
            stored: seconds(now),
            memory: memory.clone(),
        };
        replace(&self.folder, &file_of(host, port, user), &stored)
    }

    /// Changes the memory of a host by `change`; false without an entry, since hosts without a
    /// login are not stored. Changes by other threads and processes at the same time are kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn change(
        &self,
        (host, port, user): (&str, u16, &str),
        now: SystemTime,
        change: impl FnOnce(&mut HostMemory),
    ) -> io::Result<bool> {
        let _lock = self.lock();
        let Some(mut memory) = self.load(host, port, user, now) else {
            return Ok(false);
        };
        change(&mut memory);
        self.store(host, port, user, &memory, now)?;
        Ok(true)
    }

    /// Locks the folder while the result lives. `None` if another process holds the lock for long or
    /// the file system has no locks: changes at the same time may then be lost, which costs round
    /// trips.
    fn lock(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&self.folder, flags, Mode::empty()).ok()?;
        for _ in 0..LOCK_TRIES {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(folder),
                Err(Errno::WOULDBLOCK) => thread::sleep(LOCK_PAUSE),
                Err(_) => return None,
            }
        }
        None
    }

    /// Removes the memory of a host, after its host key changed or an early authentication failed.
    pub fn forget(&self, host: &str, port: u16, user: &str) {
        let _ = fs::remove_file(self.folder.join(file_of(host, port, user)));
    }
}

fn file_of(host: &str, port: u16, user: &str) -> String {
    // NUL cannot occur in host, port or user.
    file_name(&format!("{host}\0{port}\0{user}"))
}

fn file_name(of: &str) -> String {
    format!("{}.json", short_hash(of.as_bytes(), 18))
}

/// Returns the first `len` bytes of the SHA-256 in base64.
fn short_hash(of: &[u8], len: usize) -> String {
    let hash = digest::digest(&digest::SHA256, of);
    URL_SAFE_NO_PAD.encode(hash.as_ref().get(..len).unwrap_or_default())
}

/// Reads a file; `None` if it is missing, damaged, too large, or in a folder that others can write.
fn read<T: DeserializeOwned>(folder: &Path, name: &str) -> Option<T> {
    let file = PrivateDir::open(folder).and_then(|dir| dir.file(name.as_ref(), false));
    let mut text = Vec::new();
    file.ok()?.take(MAX_FILE + 1).read_to_end(&mut text).ok()?;
    match text.len() as u64 > MAX_FILE {
        true => None,
        false => serde_json::from_slice(&text).ok(),
    }
}

/// Replaces a file by a rename, so that concurrent readers see the old or the new one, complete.
fn replace(folder: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(content)?;
    let dir = PrivateDir::create(folder)?;
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let temporary = OsString::from(format!("{name}.{}-{write}", std::process::id()));
    let written = dir
        .create_file(&temporary)
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| dir.rename(&temporary, name.as_ref()));
    if written.is_err() {
        let _ = dir.remove(&temporary);
    }
    written
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn memory() -> HostMemory {
        HostMemory {
            banner: "SSH-2.0-OpenSSH_9.2".into(),
            kex: "sntrup761x25519-sha512@openssh.com".into(),
            host_key: "SHA256:abc".into(),
            accepted_key: Some(AcceptedLoginKey {
                fingerprint: "SHA256:def".into(),
                algorithm: "ssh-ed25519".into(),
                sufficient: true,
            }),
            sftp_extensions: vec![("posix-rename@openssh.com".into(), "1".into())],
            ..HostMemory::default()
        }
    }

    /// Bug: what the session had noted was lost if another thread changed the memory meanwhile, and
    /// a server that refuses to rename was not remembered.
    #[test]
    fn changes_at_the_same_time_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        let memories = HostMemoryStore::at(dir.path().join("a/b"));
        let (name, now) = (("h", 22, "u"), SystemTime::now());
        memories.store("h", 22, "u", &memory(), now).unwrap();
        let place = |thread: u8, n: u8| [b'/', thread, n];
        thread::scope(|scope| {
            for of in *b"abc" {
                let memories = &memories;
                scope.spawn(move || {
                    for n in 0..20 {
                        let note = |m: &mut HostMemory| m.note_place(&place(of, n), true);
                        assert!(memories.change(name, now, note).unwrap());
                    }
                });
            }
        });
        let memory = memories.load("h", 22, "u", now).unwrap();
        for (of, n) in b"abc".iter().flat_map(|of| (0..20).map(move |n| (*of, n))) {
            assert!(memory.was_file(&place(of, n)), "{of} {n}");
        }
    }

    #[test]
    fn what_is_stored_is_found_again_for_this_host_port_and_user_only() {
        let dir = tempfile::tempdir().unwrap();
        let memories = HostMemoryStore::at(dir.path().join("a/b"));
        let now = SystemTime::now();
        assert_eq!(memories.load("h", 22, "u", now), None);
        memories.store("h", 22, "u", &memory(), now).unwrap();
        assert_eq!(memories.load("h", 22, "u", now), Some(memory()));
        assert_eq!(memories.load("h", 23, "u", now), None);
        assert_eq!(memories.load("h", 22, "v", now), None);
        let file = memories.folder.join(file_of("h", 22, "u"));
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1);
        memories.forget("h", 22, "u");
        assert_eq!(memories.load("h", 22, "u", now), None);
    }

    #[test]
    fn a_refused_login_is_remembered_for_a_day() {
        let mut memory = memory();
        let now = SystemTime::now();
        let refused = LoginCost {
            refused_connection: true,
            ..LoginCost::default()
        };
        memory.note_login_cost(refused, now);
        memory.note_login_cost(LoginCost::default(), now);
        assert!(memory.login_cost(now).refused_connection);
        let later = now + LOGINS_REFUSED_FOR + Duration::from_secs(1);
        assert_eq!(memory.login_cost(later), LoginCost::default());
    }

    /// Bug: a server that was repaired counted for a week, and longer after each further finding, as one
    /// that does not rename.
    #[test]
    fn a_refused_rename_was_remembered_after_the_server_was_repaired() {
        let mut memory = memory();
        let now = SystemTime::now();
        memory.refused = None;
        let renames = RefusedOperations {
            renames: true,
            ..RefusedOperations::default()
        };
        let attributes = RefusedOperations {
            attributes: true,
            ..RefusedOperations::default()
        };
        memory.note_refusals(renames, now);
        let later = now + REFUSED_FOR - Duration::from_secs(60);
        memory.note_refusals(attributes, later);
        assert_eq!(memory.refusals(later), renames.and(attributes));
        let next_day = now + REFUSED_FOR + Duration::from_secs(1);
        assert!(memory.refusals(next_day).is_empty());
        memory.note_refusals(attributes, next_day);
        assert_eq!(memory.refusals(next_day), attributes);
        assert!(REFUSED_FOR <= Duration::from_secs(24 * 3600));
    }

    #[test]
    fn what_was_learned_is_kept_for_each_direction() {
        let dir = tempfile::tempdir().unwrap();
        let memories = HostMemoryStore::at(dir.path().into());
        let now = SystemTime::now();
        let record = |direction, connections| LearnedConcurrency {
            direction,
            connections,
            channels: 2,
            rate: 1,
            rtt_us: 114_000,
            at: 5,
        };
        let mut kept = memory();
        assert_eq!(kept.learned(TransferDirection::Up), None);
        for learned in [
            record(TransferDirection::Up, 3),
            record(TransferDirection::Down, 8),
            record(TransferDirection::Up, 5),
        ] {
            kept.learn(learned);
        }
        memories.store("h", 22, "u", &kept, now).unwrap();
        let kept = memories.load("h", 22, "u", now).unwrap();
        assert_eq!(kept.learned.len(), 2);
        assert_eq!(
            kept.learned(TransferDirection::Up),
            Some(record(TransferDirection::Up, 5))
        );
        assert_eq!(
            kept.learned(TransferDirection::Down),
            Some(record(TransferDirection::Down, 8))
        );
    }

    #[test]
    fn paths_that_were_no_directories_are_kept_until_they_are() {
        let mut kept = memory();
        kept.note_place(b"/srv/copy", true);
        kept.note_place(b"/srv/copy", true);
        assert_eq!(kept.files.len(), 1);
        assert!(kept.was_file(b"/srv/copy") && !kept.was_file(b"/srv/other"));
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<HostMemory>(&text).unwrap(), kept);
        assert!(!text.contains("/srv/copy"));
        kept.note_place(b"/srv/copy", false);
        assert_eq!(kept, memory());
        for n in 0..2 * PLACES {
            kept.note_place(format!("/srv/{n}").as_bytes(), true);
        }
        assert_eq!(kept.files.len(), PLACES);
        assert!(kept.was_file(format!("/srv/{}", 2 * PLACES - 1).as_bytes()));
    }

    #[test]
    fn a_memory_from_before_there_was_learning_is_one() {
        let text = serde_json::to_string(&memory()).unwrap();
        let before = text.replace(r#","learned":[]"#, "");
        assert_ne!(text, before);
        assert_eq!(
            serde_json::from_str::<HostMemory>(&before).unwrap(),
            memory()
        );
    }

    #[test]
    fn a_memory_from_before_there_were_two_ends_is_one() {
        let text = serde_json::to_string(&memory()).unwrap();
        let before = text.replace(r#","far":null"#, "");
        assert_ne!(text, before);
        assert_eq!(
            serde_json::from_str::<HostMemory>(&before).unwrap(),
            memory()
        );
        let mut found = memory();
        found.far = Some(RemoteLonghaulRecord {
            at: 5,
            software: Some("0.1.0".into()),
            extensions: vec![("a@longhaul".into(), "1".into())],
            ..RemoteLonghaulRecord::default()
        });
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<HostMemory>(&text).unwrap(), found);
    }

    #[test]
    fn a_memory_that_others_could_have_written_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("hosts");
        let (memories, now) = (HostMemoryStore::at(folder.clone()), SystemTime::now());
        memories.store("h", 22, "u", &memory(), now).unwrap();
        let file = folder.join(file_of("h", 22, "u"));
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (path, loose, tight) in [(&folder, 0o777, 0o700), (&file, 0o666, 0o600)] {
            set(path, loose);
            assert_eq!(memories.load("h", 22, "u", now), None);
            set(path, tight);
            assert_eq!(memories.load("h", 22, "u", now), Some(memory()));
        }
        set(&folder, 0o777);
        assert!(memories.store("h", 22, "u", &memory(), now).is_err());
        set(&folder, 0o700);
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        assert_eq!(memories.load("h", 22, "u", now), None);
    }

    #[test]
    fn old_future_damaged_and_foreign_files_are_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let memories = HostMemoryStore::at(dir.path().into());
        let now = SystemTime::now();
        memories.store("h", 22, "u", &memory(), now).unwrap();
        let day = Duration::from_secs(24 * 3600);
        assert!(memories.load("h", 22, "u", now + 29 * day).is_some());
        assert_eq!(memories.load("h", 22, "u", now + 31 * day), None);
        assert_eq!(memories.load("h", 22, "u", now - day), None);
        let file = memories.folder.join(file_of("h", 22, "u"));
        let whole = fs::read(&file).unwrap();
        for end in 0..whole.len() {
            fs::write(&file, &whole[..end]).unwrap();
            assert_eq!(memories.load("h", 22, "u", now), None);
        }
        fs::write(&file, vec![b' '; 100_000]).unwrap();
        assert_eq!(memories.load("h", 22, "u", now), None);
        fs::write(
            &file,
            String::from_utf8(whole)
                .unwrap()
                .replace("\"h\"", "\"other\""),
        )
        .unwrap();
        assert_eq!(memories.load("h", 22, "u", now), None);
    }
}
