//! Compares longhaul's decision about a host key with that of OpenSSH's ssh, for seeded known_hosts
//! files and settings.
//!
//! ssh connects to one temporary sshd without any authentication method; its standard error shows
//! the decision. For longhaul, the function that a connection calls is used. It may be stricter in
//! two cases that `known_hosts::decide` names: a revoked key under StrictHostKeyChecking=no, and a
//! line or file that cannot be read. It must never be less strict.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longhaul_tests::longhaul;
use ssh::key::PublicKey;
use testkit::{KeyKind, KeyPair, PeerBuilder, PeerServer, Run, Seed};
use transfer::config::{AlgorithmList, StrictHostKeyChecking as Strict, TokenValues};
use transfer::known_hosts::{
    self, AcceptedHostKey, HostKeyError, HostKeyLookupPurpose, HostKeyVerdict, HostName,
    KnownHosts, KnownHostsCommand, RevokedKeys,
};
use transfer::prompt::{EchoMode, Prompt, PromptAnswer, PromptError};

/// Number of cases in `make test`, about 40 ms each.
const FEW: u64 = 200;
/// Number of cases that run the binary.
const BY_BINARY: u64 = 24;
/// Environment variable for the number of cases and the first seed: `5000` or `5000:17`.
const MANY: &str = "LONGHAUL_HOST_KEY_CASES";

const ADDRESS: &str = "127.0.0.1";

/// Returns the line with `name` hashed by ssh-keygen.
fn hashed(folder: &Path, name: &str, key: &str) -> String {
    let file = folder.join("to-hash");
    fs::write(&file, format!("{name} {key}\n")).expect("a file of ours");
    let run = Run::new("ssh-keygen").args(["-q", "-H", "-f"]).arg(&file);
    run.run().expect_code(0);
    let line = fs::read_to_string(&file).expect("a file of ours");
    line.split(' ').next().expect("a word").to_owned()
}

/// Returns key revocation lists made by ssh-keygen.
fn krls(folder: &Path, keys: &[String], authority: &str) -> Vec<Vec<u8>> {
    let ca = folder.join("ca-key");
    fs::write(&ca, format!("{authority}\n")).expect("a file of ours");
    let by_key = keys
        .iter()
        .flat_map(|key| [format!("sha256: {key}\n"), format!("{key}\n")]);
    let others = ["id: test\n", "serial: 1-9\n", "# nothing\n"].map(str::to_owned);
    let specs = by_key.chain(others).chain([format!("{authority}\n")]);
    let made = specs.map(|spec| {
        let (from, to) = (folder.join("krl-spec"), folder.join("krl"));
        fs::write(&from, spec).expect("a file of ours");
        let run = Run::new("ssh-keygen").args(["-q", "-k", "-s"]).arg(&ca);
        run.arg("-f").arg(&to).arg(&from).run().expect_code(0);
        fs::read(&to).expect("a file of ours")
    });
    made.chain([b"SSHKRL\n\0cut".to_vec()]).collect()
}

/// Server, and the keys for known_hosts lines.
struct World {
    peer: PeerServer,
    folder: tempfile::TempDir,
    /// `type blob` of each key: the server's first, then unrelated ones.
    keys: Vec<String>,
    authorities: Vec<String>,
    hashed: Vec<String>,
    krls: Vec<Vec<u8>>,
}

/// One comparison.
#[derive(Debug)]
struct Case {
    user: Vec<File>,
    global: File,
    revoked: Option<File>,
    /// File that KnownHostsCommand prints; the command fails for a missing one.
    command: Option<File>,
    alias: Option<&'static str>,
    strict: Strict,
    algorithms: &'static str,
}

#[derive(Debug)]
enum File {
    Text(Vec<u8>),
    Missing,
    Folder,
    Null,
}

/// Outcome of the host key check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decision {
    asks: bool,
    goes_on: bool,
    /// Without password authentication and forwarding.
    unverified: bool,
    records: bool,
}

const ALIASES: [Option<&str>; 4] = [None, None, Some("alias"), Some("127.0.0.1")];
const STRICT: [(Strict, &str); 4] = [
    (Strict::Yes, "yes"),
    (Strict::Ask, "ask"),
    (Strict::AcceptNew, "accept-new"),
    (Strict::No, "no"),
];
const SHOWN: [&str; 5] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "rsa-sha2-512",
    "ssh-ed25519-cert-v01@openssh.com,ssh-ed25519",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com,ecdsa-sha2-nistp256",
];

fn pick<'a, T>(seed: &mut Seed, of: &'a [T]) -> &'a T {
    &of[usize::try_from(seed.below(of.len() as u64)).expect("small")]
}

impl World {
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| KeyPair::generate(folder.path(), name, KeyKind::Ed25519);
        let (authority, other) = (at("ca"), at("other-ca"));
        let kinds = [KeyKind::Ed25519, KeyKind::Ecdsa256, KeyKind::Rsa2048];
        let peer = PeerBuilder::openssh()
            .host_keys(&kinds)
            .host_certificates(&authority)
            .option("MaxStartups", "500:30:1000")
            .start()?;
        let strangers = [
            at("stranger"),
            KeyPair::generate(folder.path(), "stranger-rsa", KeyKind::Rsa2048),
        ];
        let bare = |key: &KeyPair| {
            let line = key.public_line();
            line.split(' ').take(2).collect::<Vec<_>>().join(" ")
        };
        let keys: Vec<String> = peer
            .host_keys()
            .iter()
            .chain(&strangers)
            .map(bare)
            .collect();
        let names = [ADDRESS.to_owned(), format!("[{ADDRESS}]:{}", peer.port())];
        let names = names
            .iter()
            .map(String::as_str)
            .chain(["alias", "elsewhere"]);
        let hashed = names
            .map(|name| hashed(folder.path(), name, &keys[0]))
            .collect();
        Some(Self {
            authorities: vec![bare(&authority), bare(&other)],
            krls: krls(folder.path(), &keys, &bare(&authority)),
            peer,
            folder,
            keys,
            hashed,
        })
    }

    fn hosts(&self, seed: &mut Seed) -> String {
        let port = self.peer.port();
        let own = format!("[{ADDRESS}]:{port}");
        let plain = [
            own.clone(),
            own.clone(),
            ADDRESS.to_owned(),
            "alias".to_owned(),
            "ALIAS".to_owned(),
            "*".to_owned(),
            "elsewhere".to_owned(),
            format!("elsewhere,{own},alias"),
            format!("[127.0.0.*]:{port},a*s"),
            format!("*,!{own}"),
            "!alias,*".to_owned(),
            "[127.?.0.1]:*".to_owned(),
            format!(",,{own},"),
            format!("{},{own}", "x".repeat(1100)),
            format!("{},{own}", "y,".repeat(900)),
            "|1|AAAA|BBBB".to_owned(),
            "|2|a|b".to_owned(),
        ];
        match seed.below(4) {
            0 => pick(seed, &self.hashed).clone(),
            _ => pick(seed, &plain).clone(),
        }
    }

    fn line(&self, seed: &mut Seed) -> Vec<u8> {
        let marker = pick(
            seed,
            &[
                "",
                "",
                "",
                "",
                "",
                "@cert-authority ",
                "@cert-authority ",
                "@revoked ",
                "@revoked\t",
                "@new ",
            ],
        );
        let hosts = self.hosts(seed);
        let key = match (*marker, seed.below(4)) {
            ("@cert-authority ", 1..) | (_, 0) => pick(seed, &self.authorities),
            _ => pick(seed, &self.keys),
        };
        let (kind, blob) = key.split_once(' ').expect("type and blob");
        let mut line = format!("{marker}{hosts} {key}").into_bytes();
        let again = |text: String| text.into_bytes();
        match seed.below(26) {
            0 => line.extend_from_slice(b" caf\xe9 \xff comment"),
            1 => line.push(b'\r'),
            2 => line.extend_from_slice(b"  \t "),
            3 => line.extend_from_slice(b"\0 behind"),
            4 => line = [b" \t".to_vec(), line].concat(),
            5 => line = again(format!("{marker}{hosts}\t\t{kind}\t{blob}\tx")),
            6 => line.truncate(line.len() - 4),
            7 => line = again(format!("{marker}{hosts} {kind} {blob}=")),
            8 => line = again(format!("{marker}{hosts} {kind}")),
            9 => line = again(format!("{marker}{hosts}")),
            10 => line = again(format!("{marker}{hosts} ssh-dss {blob}")),
            11 => line = again(format!("{marker}{hosts} rsa-sha2-512 {blob}")),
            12 => line = again(format!("{marker}@revoked {hosts} {key}")),
            13 => line = again(format!("#{marker}{hosts} {key}")),
            14 => line = [b"\xef\xbb\xbf".to_vec(), line].concat(),
            15 => line.extend(vec![b'c'; 70_000].iter()),
            16 => line = again(format!("{marker}{hosts} 1024 35 12345678901234567890")),
            17 => line = [line.clone(), b"\n".to_vec(), line].concat(),
            18 => line = Vec::new(),
            19 => line.insert(marker.len(), 0),
            _ => {}
        }
        line
    }

    fn file(&self, seed: &mut Seed) -> File {
        match seed.below(24) {
            0 => return File::Missing,
            1 => return File::Folder,
            2 => return File::Null,
            _ => {}
        }
        let mut text = Vec::new();
        for _ in 0..seed.below(4) {
            text.extend(self.line(seed));
            text.extend_from_slice(if seed.below(12) == 0 { b"\r\n" } else { b"\n" });
        }
        if seed.below(6) == 0 {
            text.pop();
        }
        File::Text(text)
    }

    fn case(&self, seed: &mut Seed) -> Case {
        let files = if seed.below(12) == 0 {
            0
        } else {
            1 + seed.below(2)
        };
        let revoked = (seed.below(8) == 0).then(|| match seed.below(8) {
            5..=7 => File::Text(pick(seed, &self.krls).clone()),
            0 => File::Missing,
            1 => File::Text(b"# none\n\n".to_vec()),
            2 => File::Text(b"ssh-ed25519 AAAA\n".to_vec()),
            3 => File::Text(format!("{}\n", pick(seed, &self.authorities)).into_bytes()),
            _ => File::Text(format!("{}\n", pick(seed, &self.keys)).into_bytes()),
        });
        Case {
            user: (0..files).map(|_| self.file(seed)).collect(),
            global: if seed.below(3) == 0 {
                self.file(seed)
            } else {
                File::Missing
            },
            revoked,
            alias: *pick(seed, &ALIASES),
            strict: pick(seed, &STRICT).0,
            algorithms: pick::<&str>(seed, &SHOWN),
            // Drawn last, so that other values of a seed stay as they were.
            command: (seed.below(4) == 0).then(|| self.file(seed)),
        }
    }

    /// Returns the key that the server presents for these algorithms.
    fn shown(&self, case: &Case) -> PublicKey {
        let first = case.algorithms.split(',').next().expect("a name");
        let kind = match first {
            ecdsa if ecdsa.starts_with("ecdsa") => 1,
            rsa if rsa.starts_with("rsa") => 2,
            _ => 0,
        };
        let key = &self.peer.host_keys()[kind];
        let line = match first.contains("-cert-") {
            true => fs::read_to_string(key.certificate()).expect("a certificate"),
            false => key.public_line(),
        };
        let blob = line.split(' ').nth(1).expect("a blob").trim().to_owned();
        PublicKey::from_blob(&STANDARD.decode(blob).expect("base64")).expect("a key")
    }
}

/// Files of a case, in a folder of its own.
struct Laid {
    user: Vec<PathBuf>,
    global: PathBuf,
    revoked: Option<PathBuf>,
    command: Option<PathBuf>,
}

impl Laid {
    /// Returns the value of KnownHostsCommand, if the case has one.
    fn known_hosts_command(&self) -> Option<String> {
        let file = self.command.as_ref()?;
        Some(format!("/bin/cat '{}'", file.display()))
    }
}

fn lay(folder: &Path, case: &Case) -> Laid {
    let put = |name: &str, file: &File| {
        let path = folder.join(name);
        match file {
            File::Text(text) => fs::write(&path, text).expect("a file of ours"),
            File::Missing => {}
            File::Folder => fs::create_dir(&path).expect("a folder of ours"),
            File::Null => return PathBuf::from("/dev/null"),
        }
        path
    };
    let user = case.user.iter().enumerate();
    Laid {
        user: user
            .map(|(at, file)| put(&format!("user{at}"), file))
            .collect(),
        global: put("global", &case.global),
        revoked: case.revoked.as_ref().map(|file| put("revoked", file)),
        command: case.command.as_ref().map(|file| put("command", file)),
    }
}

fn options(world: &World, case: &Case, laid: &Laid) -> Vec<String> {
    let paths = |paths: &[PathBuf]| match paths {
        [] => "none".to_owned(),
        some => some
            .iter()
            .map(|p| p.display().to_string())
            .collect::<Vec<_>>()
            .join(" "),
    };
    let strict = STRICT
        .iter()
        .find(|(s, _)| *s == case.strict)
        .expect("one")
        .1;
    let mut options = vec![
        format!("Port={}", world.peer.port()),
        format!("UserKnownHostsFile={}", paths(&laid.user)),
        format!("GlobalKnownHostsFile={}", laid.global.display()),
        format!("StrictHostKeyChecking={strict}"),
        format!("HostKeyAlgorithms={}", case.algorithms),
        "PreferredAuthentications=none".to_owned(),
        "UpdateHostKeys=no".to_owned(),
        "CheckHostIP=no".to_owned(),
        "HashKnownHosts=no".to_owned(),
        "IdentityFile=/nonexistent".to_owned(),
        "IdentityAgent=none".to_owned(),
    ];
    options.extend(case.alias.map(|alias| format!("HostKeyAlias={alias}")));
    let command = laid.known_hosts_command();
    options.extend(command.map(|command| format!("KnownHostsCommand={command}")));
    options.extend(
        laid.revoked
            .iter()
            .map(|p| format!("RevokedHostKeys={}", p.display())),
    );
    options
}

/// Gets the decision of OpenSSH's ssh.
fn theirs(world: &World, case: &Case, laid: &Laid) -> (Decision, String) {
    let askpass = world.folder.path().join("askpass");
    let mut run = Run::new("ssh").args(["-F", "none"]);
    for option in options(world, case, laid) {
        run = run.args(["-o", &option]);
    }
    let outcome = run
        .args(["nobody@127.0.0.1", "true"])
        .env("SSH_ASKPASS", &askpass)
        .env("SSH_ASKPASS_REQUIRE", "force")
        .timeout(Duration::from_secs(60))
        .run();
    let said = outcome.err();
    let has = |text: &str| said.contains(text);
    let decision = Decision {
        asks: has("host-key-question"),
        goes_on: has("Permission denied ("),
        unverified: has("is disabled to avoid man-in-the-middle attacks"),
        records: has("Permanently added") || has("Failed to add the host"),
    };
    assert!(
        decision.goes_on || has("Host key verification failed") || has("KnownHostsCommand failed"),
        "{case:?}\n{said}"
    );
    (decision, said)
}

/// Prompt that answers no, and records that it was asked.
struct No(bool);

impl Prompt for No {
    fn ask(&mut self, _: &str, _: EchoMode) -> Result<PromptAnswer, PromptError> {
        self.0 = true;
        Err(PromptError::Cancelled)
    }

    fn show(&mut self, _: &str) {}
}

/// Gets the decision of longhaul's function.
fn ours(world: &World, case: &Case, laid: &Laid) -> (Decision, Option<HostKeyVerdict>) {
    let refused = Decision {
        asks: false,
        goes_on: false,
        unverified: false,
        records: false,
    };
    let mut known = KnownHosts::load(&laid.user, std::slice::from_ref(&laid.global));
    if let Some(revoked) = &laid.revoked {
        match RevokedKeys::load([revoked]) {
            Ok(keys) => known.revoke(keys),
            Err(_) => return (refused, None),
        }
    }
    let name = HostName::new(ADDRESS, world.peer.port(), case.alias);
    let key = world.shown(case);
    if let Some(command) = laid.known_hosts_command() {
        let command = KnownHostsCommand::parse(&command).expect("a command");
        let command = command.expect("not none");
        let lookup = HostKeyLookupPurpose::HostName;
        match command.run(&TokenValues::default(), lookup, &name, Some(&key)) {
            Ok(lines) => known.add_command_output(&lines),
            Err(_) => return (refused, None),
        }
    }
    let now = 1_780_000_000;
    let checked = known.check(&name, &key, now, &AlgorithmList::Default);
    let mut prompt = No(false);
    let decided: Result<AcceptedHostKey, HostKeyError> = known_hosts::decide(
        case.strict,
        &checked,
        (&name, None),
        &key,
        &known,
        &mut prompt,
    );
    let decision = match decided {
        Ok(accepted) => Decision {
            asks: false,
            goes_on: true,
            unverified: accepted.distrusted,
            records: accepted.record,
        },
        Err(_) => Decision {
            asks: prompt.0,
            ..refused
        },
    };
    (decision, Some(checked.verdict))
}

/// Reports the only reasons for which longhaul may be stricter.
fn may_be_stricter(verdict: Option<&HostKeyVerdict>) -> bool {
    matches!(
        verdict,
        Some(HostKeyVerdict::Revoked(_) | HostKeyVerdict::Unreadable(_))
    )
}

fn is_no_weaker(ours: Decision, theirs: Decision) -> bool {
    let weaker = ours.goes_on && !theirs.goes_on
        || ours.goes_on && !ours.unverified && theirs.unverified
        || ours.asks && !theirs.asks && !theirs.goes_on;
    !weaker
}

fn compare(world: &World, number: u64, by_binary: bool) -> Decision {
    let mut seed = Seed::new(number);
    let case = world.case(&mut seed);
    let folder = tempfile::tempdir_in(world.folder.path()).expect("a folder");
    let laid = lay(folder.path(), &case);
    let (our, verdict) = ours(world, &case, &laid);
    if by_binary {
        binary_agrees(world, number, &case, &laid, our);
        return our;
    }
    let (their, said) = theirs(world, &case, &laid);
    let context = || {
        let texts = case
            .user
            .iter()
            .chain([&case.global])
            .map(|file| match file {
                File::Text(text) => String::from_utf8_lossy(text).chars().take(3000).collect(),
                other => format!("{other:?}"),
            });
        let texts = texts.collect::<Vec<String>>().join("\n--\n");
        format!(
            "case {number}: ours {our:?} ({verdict:?}), ssh {their:?}\n{:?} {:?} {} revoked \
             {:?}\n{texts}\n== ssh:\n{said}",
            case.strict,
            case.alias,
            case.algorithms,
            (&case.revoked, &case.command)
        )
    };
    assert!(is_no_weaker(our, their), "we are weaker: {}", context());
    if !may_be_stricter(verdict.as_ref()) {
        assert_eq!(our, their, "{}", context());
    }
    our
}

fn binary_agrees(world: &World, number: u64, case: &Case, laid: &Laid, our: Decision) {
    let home = laid.global.parent().expect("a folder");
    let mut run = Run::new(longhaul()).args(["cp", "-F", "none", "-B"]);
    for option in options(world, case, laid) {
        run = run.args(["-o", &option]);
    }
    let outcome = run
        .arg(world.folder.path().join("askpass"))
        .arg("nobody@127.0.0.1:x")
        .env("HOME", home)
        .env("XDG_STATE_HOME", home)
        .run()
        .expect_code(255);
    let said = outcome.err();
    let denied = format!(
        "nobody@127.0.0.1 port {}; the server accepts",
        world.peer.port()
    );
    let logs_in = said.contains(&denied);
    assert_eq!(logs_in, our.goes_on, "case {number}: {case:?} {outcome}");
    let unverified = said.contains("the connection is not verified");
    assert_eq!(
        unverified, our.unverified,
        "case {number}: {case:?} {outcome}"
    );
}

fn world() -> Option<World> {
    let world = World::start()?;
    let askpass = world.folder.path().join("askpass");
    let script = "#!/bin/sh\necho host-key-question >&2\necho no\n";
    fs::write(&askpass, script).expect("a file of ours");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&askpass, mode).expect("a file of ours");
    Some(world)
}

#[test]
fn host_keys_are_accepted_asked_about_and_refused_as_by_ssh() {
    let Some(world) = world() else {
        return;
    };
    let many = std::env::var(MANY).unwrap_or_default();
    let (count, first) = many.split_once(':').unwrap_or((&many, "1"));
    let count = count.parse().unwrap_or(FEW);
    let first: u64 = first.parse().unwrap_or(1);
    let next = std::sync::atomic::AtomicU64::new(first);
    let seen = std::sync::Mutex::new(std::collections::BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if number >= first + count {
                        break;
                    }
                    let decision = compare(&world, number, false);
                    let mut seen = seen.lock().expect("no thread has failed");
                    *seen.entry(format!("{decision:?}")).or_insert(0) += 1;
                }
            });
        }
    });
    let seen = seen.into_inner().expect("no thread has failed");
    eprintln!("{seen:#?}");
    // Refused, asked, accepted and recorded, accepted as known, and unverified.
    assert!(seen.len() >= 5, "too few kinds of decision: {seen:?}");
}

#[test]
fn the_program_decides_about_host_keys_as_its_function_does() {
    let Some(world) = world() else {
        return;
    };
    for number in 1..=BY_BINARY {
        compare(&world, 1_000_000 + number, true);
    }
}

/// Logs in with `run` and returns the arguments of each KnownHostsCommand that it ran.
fn lookups_of(run: Run, operands: &[&str], world: &World, extra: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir_in(world.folder.path()).expect("a folder");
    let (log, port) = (folder.path().join("log"), world.peer.port());
    // At the same place for every program, since the command's own name is no argument.
    let script = world.folder.path().join("print keys.sh");
    let text = format!(
        "#!/bin/sh\nfor a; do printf '<%s>' \"$a\"; done >> \"$LOOKUPS\"\necho >> \"$LOOKUPS\"\n\
         echo '[{ADDRESS}]:{port} {}'\necho '@cert-authority [{ADDRESS}]:{port} {}'\n",
        world.keys[0], world.authorities[0]
    );
    fs::write(&script, text).expect("a file of ours");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&script, mode).expect("a file of ours");
    let command = format!(
        "\"{}\" %I %H %t %f %K 'n=%n h=%h p=%p r=%r k=%k' a\\ b ${{VALUE}} %% \"%u  %i\" '' %C",
        script.display()
    );
    // The host is known by what the script prints, and by that alone.
    let options = [
        format!("KnownHostsCommand={command}"),
        format!("Port={port}"),
        "UserKnownHostsFile=/dev/null".to_owned(),
        "GlobalKnownHostsFile=/dev/null".to_owned(),
        "StrictHostKeyChecking=yes".to_owned(),
        "UpdateHostKeys=no".to_owned(),
        "PreferredAuthentications=none".to_owned(),
        "IdentityFile=/nonexistent".to_owned(),
        "IdentityAgent=none".to_owned(),
    ];
    let mut run = run.args(["-F", "none"]);
    for option in options
        .iter()
        .map(String::as_str)
        .chain(extra.iter().copied())
    {
        run = run.args(["-o", option]);
    }
    let outcome = run
        .args(operands)
        .env("HOME", folder.path())
        .env("XDG_STATE_HOME", folder.path())
        .env("LOOKUPS", &log)
        .env("VALUE", "a value %h")
        .run()
        .expect_code(255);
    assert!(outcome.err().contains("ermission denied"), "{outcome}");
    let said = fs::read_to_string(&log).expect("the script has run");
    said.lines().map(str::to_owned).collect()
}

#[test]
fn known_hosts_command_gets_the_arguments_that_ssh_gives_it() {
    let Some(world) = world() else {
        return;
    };
    let source = world.folder.path().join("askpass");
    let source = source.to_str().expect("a plain name");
    for extra in [
        &[][..],
        &[
            "HostKeyAlgorithms=-*-cert-v01@openssh.com",
            "CheckHostIP=yes",
        ],
        &["HostKeyAlgorithms=ssh-ed25519"],
        &["HostKeyAlgorithms=ssh-ed25519-cert-v01@openssh.com,ssh-ed25519"],
    ] {
        let (ssh, cp) = (Run::new("ssh"), Run::new(longhaul()).args(["cp", "-B"]));
        let theirs = lookups_of(ssh, &["nobody@127.0.0.1", "true"], &world, extra);
        let ours = lookups_of(cp, &[source, "nobody@127.0.0.1:x"], &world, extra);
        let of = |all: &[String], purpose: &str| -> Vec<String> {
            let all = all.iter().filter(|line| line.starts_with(purpose));
            all.cloned().collect()
        };
        // ssh asks for an order only where HostKeyAlgorithms does not fix it.
        let own = format!("<[{ADDRESS}]:{}>", world.peer.port());
        // Older versions, such as 9.2, give the name without its port there.
        let orders = of(&theirs, "<ORDER>").into_iter();
        let with_port = |line: String| line.replacen(&format!("<{ADDRESS}>"), &own, 1);
        let orders: Vec<String> = orders.map(with_port).collect();
        assert!(
            orders.is_empty() || orders == of(&ours, "<ORDER>"),
            "{extra:?}: {theirs:?}"
        );
        let fixed = extra.first().is_some_and(|option| !option.contains("=-"));
        assert_eq!(orders.is_empty(), fixed, "{extra:?}");
        // Which of its keys the server shows may differ if the order is not fixed.
        let shown = |all: &[String]| match orders.is_empty() {
            true => of(all, "<HOSTNAME>"),
            false => vec![of(all, "<HOSTNAME>").len().to_string()],
        };
        assert_eq!(shown(&ours), shown(&theirs), "{extra:?}");
        assert_eq!(of(&ours, "<HOSTNAME>").len(), 1, "{extra:?}: {ours:?}");
    }
}
