//! Opens a session with each host that the operands name.

mod program;

use transfer::cancel::Cancel;
use transfer::copy::{Connect, HostId};
use transfer::operand::Destination;
use transfer::session::Session;

use crate::flags::low::CopyArgs;
use crate::output::Output;

/// The hosts of a run, and how they are reached.
pub(crate) struct Hosts<'a> {
    hosts: Vec<Destination>,
    flags: CopyArgs,
    output: &'a Output,
}

impl<'a> Hosts<'a> {
    pub(crate) fn new(hosts: Vec<Destination>, flags: CopyArgs, output: &'a Output) -> Self {
        Self {
            hosts,
            flags,
            output,
        }
    }
}

impl Connect for Hosts<'_> {
    fn connect(&self, host: HostId, _cancel: &Cancel) -> Result<Session, String> {
        // Questions and the bar share the terminal.
        let _hold = self.output.console().hold();
        let _ = &self.flags;
        Err(format!("{}: no engine is linked in", self.name(host)))
    }

    fn name(&self, host: HostId) -> String {
        self.hosts
            .get(host.0)
            .map_or_else(String::new, ToString::to_string)
    }
}
