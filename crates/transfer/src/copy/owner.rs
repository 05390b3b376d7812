//! Owners, which `-a` keeps where that is permitted.

use plan::{Attributes, JobKind, RemotePath};

use super::engine::{End, Engine, Purpose};
use super::local;
use crate::report::Name;
use crate::walk::local_path;

/// chown(2) takes setuid and setgid away: the mode to set once the owner stands.
#[derive(Debug)]
pub(super) struct SpecialBits {
    pub(super) path: Vec<u8>,
    pub(super) mode: u32,
}

impl Engine<'_> {
    /// With `-a`, gives the owner at the target, where that is permitted.
    pub(super) fn keep_owner(&mut self, target: &[u8], attributes: Attributes) {
        if !self.options.archive || self.owners_refused || attributes.owner.is_none() {
            return;
        }
        let name = self.shown(End::Target, target);
        if self.target.is_none() {
            if let Err(e) = local::set_owner(&local_path(target), &attributes) {
                self.on_owner_refused(name, &crate::disk::os_words(&e));
            }
            return;
        }
        let kind = JobKind::SetAttributes {
            path: RemotePath(target.to_vec()),
            attributes: Attributes {
                owner: attributes.owner,
                ..Attributes::default()
            },
            follow: true,
        };
        let special = attributes.mode.filter(|mode| mode & 0o6000 != 0);
        let special = special.map(|mode| SpecialBits {
            path: target.to_vec(),
            mode,
        });
        self.submit(End::Target, kind, Purpose::Owner(name, special));
    }

    pub(super) fn on_owner_kept(&mut self, name: Name, special: SpecialBits) {
        let kind = JobKind::SetAttributes {
            path: RemotePath(special.path),
            attributes: Attributes {
                mode: Some(special.mode),
                ..Attributes::default()
            },
            follow: true,
        };
        self.submit(End::Target, kind, Purpose::SpecialBits(name));
    }

    pub(super) fn on_owner_refused(&mut self, path: Name, what: &str) {
        if !std::mem::replace(&mut self.owners_refused, true) {
            let message = format!("the owner could not be kept ({what}); not tried for the rest");
            self.warn(Some(path), message);
        }
    }
}
