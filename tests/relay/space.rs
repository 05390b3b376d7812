//! Network namespaces for tests of relays.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use testkit::missing::not_here;

/// Network namespace that exists as long as a process in it.
pub(crate) struct Space(Child);

impl Space {
    /// Creates a namespace. The command holds it until its standard input ends.
    pub(crate) fn new(mut makes: Command) -> Result<Self, String> {
        makes.args(["sh", "-c", "echo there; exec cat"]);
        makes.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = makes
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut line).map_err(|e| e.to_string())?;
        if line.is_empty() {
            let mut why = String::new();
            let mut stderr = child.stderr.take().expect("piped");
            stderr.read_to_string(&mut why).map_err(|e| e.to_string())?;
            return Err(why.trim().to_owned());
        }
        Ok(Self(child))
    }

    /// Creates a namespace of our own, in which we are root; `None` if that is not possible.
    pub(crate) fn first() -> Option<Self> {
        let mut makes = Command::new("unshare");
        makes.args(["--user", "--map-root-user", "--net"]);
        let made = Self::new(makes);
        made.inspect_err(|why| not_here(&format!("namespaces cannot be made: {why}")))
            .ok()
    }

    /// Returns the id of the process that keeps the namespace.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns a command that runs the program appended to it inside the namespace.
    pub(crate) fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.0.id().to_string();
        command.args(["--target", &pid, "--user", "--net"]);
        // ip and nft are in folders that are not in every PATH.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command.arg("--preserve-credentials");
        command
    }

    /// Runs shell lines inside the namespace, and returns their output.
    #[track_caller]
    pub(crate) fn shell(&self, lines: &str) -> String {
        let mut enters = self.enter();
        let done = enters.args(["sh", "-ec", lines]).output().unwrap();
        let why = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{lines}\n{why}");
        String::from_utf8(done.stdout).unwrap()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
