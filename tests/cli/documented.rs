//! Runs each command of README.md and docs/guide as it is printed.
//!
//! Hosts in the documents are one temporary sshd, `/srv/` is a scratch folder, and ports are free
//! ones.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_tests::{Scene, longhaul};
use testkit::missing::checkout;
use testkit::tree::write_file;
use testkit::{PeerKind, Run, port};

/// Commands that other tests run, since they need more than a host and a folder.
const ELSEWHERE: [(&str, &str); 23] = [
    ("longhaul bench", "takes minutes: tests/cli/bench.rs"),
    (
        "longhaul bootstrap",
        "writes to the account's home: tests/cli/far.rs",
    ),
    (
        "longhaul ssh-config",
        "writes ~/.ssh/config: tests/cli/dialing.rs",
    ),
    (
        "longhaul plan",
        "needs a tree and a target: tests/cli/shards.rs",
    ),
    ("longhaul cp --plan", "needs a plan: tests/cli/shards.rs"),
    (
        "longhaul cp -r a:/data b:",
        "needs two hosts: tests/cli/host_to_host.rs",
    ),
    (
        "longhaul cp --by-host",
        "needs several hosts: tests/cli/several_hosts.rs",
    ),
    (
        "longhaul cp 'web{1..9}",
        "needs several hosts: tests/cli/several_hosts.rs",
    ),
    (
        "longhaul cp db:/dump.gz",
        "needs several hosts: tests/cli/several_hosts.rs",
    ),
    (
        "longhaul cp image.tar",
        "needs several hosts: tests/cli/several_hosts.rs",
    ),
    (
        "longhaul cp --hosts",
        "needs several hosts: tests/cli/several_hosts.rs",
    ),
    (
        "longhaul cp -r --fan-out",
        "needs several hosts: tests/cli/several_hosts.rs",
    ),
    (
        "longhaul cp --via",
        "needs a relaying host: tests/interop/via.rs",
    ),
    (
        "longhaul lab --path policed-uplink",
        "takes its time: tests/lab/doctor.rs",
    ),
    (
        "longhaul lab --rtt 130ms --rate 120Mbit --police CS1=10Mbit --sshd -- longhaul doctor",
        "takes its time: tests/lab/doctor.rs",
    ),
    ("longhaul wrap", "needs a web server named host: tests/wrap"),
    ("longhaul doctor", "takes its time: tests/lab/doctor.rs"),
    (
        "longhaul lab --rtt 10ms --rate 120Mbit --police CS1=10Mbit --sshd -- longhaul doctor",
        "takes its time: tests/lab/doctor.rs",
    ),
    (
        "longhaul relay --config",
        "needs a configuration: tests/relay/operating.rs",
    ),
    (
        "longhaul relay top",
        "needs a running relay: tests/relay/status.rs",
    ),
    (
        "longhaul relay 9022 ssh://",
        "needs a far account: tests/relay/over_ssh.rs",
    ),
    (
        "longhaul relay 9022 far:7000/pair",
        "needs two keys: tests/relay/pair.rs",
    ),
    (
        "longhaul relay '*:7000/pair'",
        "needs two keys: tests/relay/pair.rs",
    ),
];

/// Commands that run until they are ended, with the output that shows that they listen.
const SERVERS: [(&str, &str); 2] = [
    ("longhaul serve --listen", "listening"),
    ("longhaul relay 9022 host:22", "listening"),
];

struct Documented {
    page: PathBuf,
    line: usize,
    command: String,
}

#[test]
fn every_documented_command_runs() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let ground = Ground::new(&scene);
    let mut ran = 0;
    for documented in documented() {
        let Documented {
            page,
            line,
            command,
        } = &documented;
        if ELSEWHERE
            .iter()
            .any(|(begin, _)| command.starts_with(begin))
        {
            continue;
        }
        let at = format!("{}:{line}: {command}", page.display());
        match SERVERS.iter().find(|(begin, _)| command.starts_with(begin)) {
            Some((_, listening)) => ground.serves(command, listening, &at),
            None => {
                let outcome = ground.run(command).run();
                assert_eq!(outcome.code, Some(0), "{at}\n{}", outcome.err());
            }
        }
        ran += 1;
    }
    assert!(ran >= 20, "only {ran} commands were found");
}

/// Returns all commands, page by page in their order: later ones use results of earlier ones.
fn documented() -> Vec<Documented> {
    let guide = checkout().join("docs/guide");
    let mut pages: Vec<PathBuf> = fs::read_dir(&guide)
        .expect("docs/guide")
        .map(|entry| entry.expect("a page").path())
        .collect();
    pages.sort();
    pages.insert(0, checkout().join("README.md"));
    let of_page = |page: PathBuf| {
        let text = fs::read_to_string(&page).expect("a page");
        let lines = text.lines().enumerate();
        let found: Vec<Documented> = lines
            .filter_map(|(index, line)| {
                let command = line.strip_prefix("    ")?;
                let command = command.split(" # ").next()?.trim();
                command.starts_with("longhaul ").then(|| Documented {
                    page: page.clone(),
                    line: index + 1,
                    command: command.to_owned(),
                })
            })
            .collect();
        found
    };
    pages.into_iter().flat_map(of_page).collect()
}

/// Files and programs that the documents assume.
struct Ground<'a> {
    scene: &'a Scene,
    programs: PathBuf,
    work: PathBuf,
    srv: PathBuf,
    home: PathBuf,
}

impl<'a> Ground<'a> {
    fn new(scene: &'a Scene) -> Self {
        let folder = |name: &str| {
            let path = scene.path(name);
            fs::create_dir_all(&path).expect("our folder");
            path
        };
        let ground = Self {
            scene,
            programs: folder("bin"),
            work: folder("work"),
            srv: folder("srv"),
            home: folder("home"),
        };
        let config = fs::read_to_string(scene.client.dir.config()).expect("ssh_config");
        let named = config.replace("Host peer", "Host host far backup peer");
        fs::write(scene.path("ssh_config"), named).expect("our file");
        // In the lab, `far` is the lab's own server, which the lab's ssh_config names.
        let script = format!(
            "#!/bin/sh\ncommand=$1; shift\n\
             case \"$command$LONGHAUL_LAB_CONFIG\" in cp|sync) set -- -F '{config}' \"$@\";; esac\n\
             exec '{program}' \"$command\" \"$@\"\n",
            program = longhaul().display(),
            config = scene.path("ssh_config").display(),
        );
        let wrapper = ground.programs.join("longhaul");
        fs::write(&wrapper, script).expect("our file");
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("our file");
        for name in [
            "report.pdf",
            "big.iso",
            "data/one",
            "data/sub/two",
            "photos/one",
            "-odd name",
        ] {
            let file = ground.work.join(name);
            fs::create_dir_all(file.parent().expect("it is in a folder")).expect("our folder");
            write_file(&file, name.as_bytes());
        }
        fs::create_dir(scene.peer.home().join("results")).expect("our folder");
        write_file(&scene.peer.home().join("results/file"), b"a result");
        fs::create_dir(scene.peer.home().join("-odd name")).expect("our folder");
        fs::create_dir(ground.home.join("public")).expect("our folder");
        for folder in [
            scene.peer.home().join("backup/monday"),
            ground.srv.join("site"),
        ] {
            fs::create_dir_all(&folder).expect("our folder");
            write_file(&folder.join("one"), b"photos/one");
        }
        let key = scene.client.dir.key().public_line();
        write_file(&ground.work.join("friends"), key.as_bytes());
        fs::set_permissions(
            ground.work.join("friends"),
            fs::Permissions::from_mode(0o600),
        )
        .expect("our file");
        fs::copy(
            checkout().join("packaging/serve.toml"),
            ground.srv.join("serve.toml"),
        )
        .expect("our file");
        ground
    }

    fn run(&self, command: &str) -> Run {
        let slashed = |path: &Path| format!("{}/", path.display());
        let command = command
            .replace("user@host:", "host:")
            .replace("/etc/longhaul/", &slashed(&self.srv))
            .replace(":/srv/", &format!(":{}", slashed(&self.srv)))
            .replace(
                "scp://host/",
                &format!("scp://host/{}", slashed(self.scene.peer.home())),
            )
            .replace(" far:", &format!(" far:{}", slashed(&self.srv)))
            .replace(":2222", &format!("127.0.0.1:{}", port::free()))
            .replace("9022", &port::free().to_string());
        let path = std::env::var("PATH").unwrap_or_default();
        self.scene
            .client
            .dir
            .run("bash")
            .args(["-c", &command])
            .in_folder(&self.work)
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env("HOME", &self.home)
            .timeout(Duration::from_secs(60))
    }

    /// Starts a server command, waits until it listens, and ends it.
    fn serves(&self, command: &str, listening: &str, at: &str) {
        let running = self.run(&format!("exec {command}")).spawn();
        assert!(
            running.until(|| running.shows(listening)),
            "{at}: {}",
            running.wait().err()
        );
        running.terminate();
        let outcome = running.wait();
        assert_eq!(outcome.code, Some(0), "{at}\n{}", outcome.err());
    }
}
