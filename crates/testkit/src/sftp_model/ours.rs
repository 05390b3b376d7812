//! Extensions of `longhaul serve` beyond stock SFTP.

use sftp::packed::BlockCompressor;
use sftp::{
    Attrs, EntryType, LinkLimit, NameRecord, OWNER_NOT_SET, OpenFlags, PutFlags, Request,
    RequestId, Response, StatusCode, StatusText, TreeFlags, TreeRecord, tagged_name,
};
use wire::{Field, RemainingBytes};

use std::collections::VecDeque;

use super::server::SftpModel;
use super::{Errno, Kind};

type Answer = Result<(), StatusCode>;

impl SftpModel {
    /// True if the request expects another entry than the one that it would change (expect@longhaul).
    pub(super) fn is_unexpected(&mut self, request: &Request<'_>) -> bool {
        let (attrs, inode) = match *request {
            Request::Open { path, flags, attrs } if !flags.contains(OpenFlags::CREAT) => {
                (attrs, self.fs.lookup(path, false).ok())
            }
            Request::Setstat { path, attrs } => (attrs, self.fs.lookup(path, true).ok()),
            Request::Lsetstat { path, attrs } => (attrs, self.fs.lookup(path, false).ok()),
            Request::Fsetstat { handle, attrs } => (attrs, self.inode(handle, false).ok()),
            _ => return false,
        };
        let Some(expected) = attrs.expected else {
            return false;
        };
        self.expected.push(expected);
        if !self.announces("expect@longhaul") {
            return false;
        }
        let Some(Ok(node)) = inode.map(|inode| self.fs.node(inode)) else {
            return false;
        };
        let kind = match node.kind {
            Kind::File(_) => Some(EntryType::File),
            Kind::Dir => Some(EntryType::Directory),
            Kind::Symlink(_) => Some(EntryType::Symlink),
            Kind::Device(_) => None,
        };
        let listed = expected.listed.owner;
        let other_owner = listed.is_some_and(|owner| owner != node.owner);
        let is_other = other_owner && self.announces("expect-listed@longhaul");
        let names = self.fs.names.values().filter(|to| Some(**to) == inode);
        let has_more = match expected.links {
            LinkLimit::AtMost(most) => {
                names.count() > most as usize && kind != Some(EntryType::Directory)
            }
            LinkLimit::AnyNumber => false,
        };
        (expected.kind.is_some() && expected.kind != kind) || has_more || is_other
    }

    fn announces(&self, extension: &str) -> bool {
        let mut announced = self.personality.extensions.iter();
        announced.any(|(name, _)| name == extension.as_bytes())
    }

    pub(super) fn put_file(
        &mut self,
        id: RequestId,
        (path, flags): (&[u8], PutFlags),
        (tag, mode): (u64, u32),
        attrs: &Attrs,
        data: &[u8],
    ) -> Answer {
        let found = self.fs.lookup(path, false);
        let mut attrs = *attrs;
        if let (Ok(inode), false) = (found, flags.contains(PutFlags::FRESH)) {
            let node = self.fs.node(inode).map_err(Errno::status)?;
            match node.kind {
                Kind::Dir => {
                    let text = b"it is a directory at the far end: choose another name";
                    return self.refuse(id, StatusCode::FAILURE, text);
                }
                Kind::File(_) if node.mode & 0o200 == 0 => return Err(StatusCode::OP_UNSUPPORTED),
                Kind::File(_) => {
                    let replaced = Some(node.mode & 0o777);
                    attrs.permissions = attrs.permissions.or(replaced);
                }
                Kind::Symlink(_) if flags.contains(PutFlags::REPLACE_LINK) => {}
                _ => return Err(StatusCode::OP_UNSUPPORTED),
            }
        }
        let temporary = tagged_name(path, tag);
        let how = (true, false, true);
        let opened = self.fs.open(&temporary, true, how, mode);
        let inode = match (opened, found) {
            // The existing file may still be writable in place.
            (Err(Errno::Access), Ok(_)) => return Err(StatusCode::OP_UNSUPPORTED),
            (Err(e), _) => {
                let text = format!("cannot create the file: {}", e.status().words());
                return self.refuse(id, e.status(), text.as_bytes());
            }
            (Ok(inode), _) => inode,
        };
        let written = self.fs.write(inode, 0, data);
        let owner = Attrs {
            owner: attrs.owner.take(),
            ..Attrs::default()
        };
        let is_owner_set = self.fs.set(inode, &owner).is_ok();
        let set = written.and_then(|()| self.fs.set(inode, &attrs));
        if flags.contains(PutFlags::FSYNC) {
            self.fs.sync(inode);
        }
        if let Err(e) = set.and_then(|()| self.fs.rename(&temporary, path, true)) {
            self.fs.remove(&temporary, false).map_err(Errno::status)?;
            return Err(e.status());
        }
        if !is_owner_set {
            let text = format!("{OWNER_NOT_SET}permission denied");
            return self.refuse(id, StatusCode::OK, text.as_bytes());
        }
        Err(StatusCode::OK)
    }

    fn refuse(&mut self, id: RequestId, code: StatusCode, message: &[u8]) -> Answer {
        let text = StatusText { message };
        self.say(id, &Response::Status { code, text });
        Ok(())
    }

    pub(super) fn get_file(&mut self, id: RequestId, path: &[u8], len: u32, pack: bool) -> Answer {
        let inode = self.fs.lookup(path, true).map_err(Errno::status)?;
        let attrs = self.fs.stat(inode).map_err(Errno::status)?;
        let node = self.fs.node(inode).map_err(Errno::status)?;
        if node.mode & 0o400 == 0 {
            return Err(StatusCode::PERMISSION_DENIED);
        }
        let most = u64::from(len) + self.excess;
        let mut data = match &node.kind {
            Kind::File(data) if data.len() as u64 <= most => Some(data.clone()),
            _ => None,
        };
        if let (Some(data), Some(len)) = (&mut data, self.cut_at) {
            data.truncate(len);
        }
        let mut packed = Vec::new();
        if let (true, Some(data)) = (pack, &data)
            && BlockCompressor::new().is_some_and(|mut p| p.pack(data, &mut packed))
        {
            self.packed += data.len() as u64;
            let len = data.len() as u32 + u32::from(self.lies_about_lengths);
            self.say_with(|out| Response::encode_packed_file(id, &attrs, len, &packed, out));
            return Ok(());
        }
        let mut body = Vec::new();
        attrs.write(&mut body);
        data.is_some().write(&mut body);
        if let Some(data) = data {
            data.as_slice().write(&mut body);
        }
        let body = RemainingBytes(&body);
        self.say(id, &Response::ExtendedReply { body });
        Ok(())
    }

    pub(super) fn list_tree(
        &mut self,
        id: RequestId,
        tree: u32,
        flags: TreeFlags,
        path: &[u8],
    ) -> Answer {
        /// Maximum number of entries in one answer.
        const STEPS: usize = 50;
        if flags.contains(TreeFlags::END) {
            self.trees.remove(&tree);
            return Err(StatusCode::OK);
        }
        if flags.contains(TreeFlags::BEGIN) {
            let top = self.fs.resolve(path, true).map_err(Errno::status)?;
            let inode = self.fs.lookup(&top, true).map_err(Errno::status)?;
            if self.fs.node(inode).map_err(Errno::status)?.kind != Kind::Dir {
                return Err(Errno::NotDir.status());
            }
            let mut steps = VecDeque::new();
            for filename in self.hostile.clone() {
                let name = NameRecord {
                    filename,
                    attrs: Attrs::with_permissions(0o040_755),
                };
                let below = NameRecord {
                    filename: b"below".to_vec(),
                    attrs: Attrs::with_permissions(0o100_644),
                };
                steps.push_back(TreeRecord::Entry(name.clone()));
                steps.push_back(TreeRecord::Enter(name));
                steps.push_back(TreeRecord::Enter(below.clone()));
                steps.push_back(TreeRecord::Leave);
                steps.push_back(TreeRecord::Entry(below));
                steps.push_back(TreeRecord::Leave);
            }
            self.walk(&top, &mut steps)?;
            if flags.contains(TreeFlags::COUNT) {
                let (mut files, mut bytes) = (0, 0);
                for step in &steps {
                    if let TreeRecord::Entry(name) = step {
                        files += 1;
                        bytes += name.attrs.size.unwrap_or(0);
                    }
                }
                steps.push_front(TreeRecord::Count { files, bytes });
            }
            self.trees.insert(tree, steps);
            self.packed_trees.remove(&tree);
            if flags.contains(TreeFlags::PACK) {
                self.packed_trees.insert(tree);
            }
        }
        let left = self.trees.get_mut(&tree).ok_or(StatusCode::EOF)?;
        let mut body = Vec::new();
        for step in left.drain(..left.len().min(STEPS)) {
            step.write(&mut body);
        }
        if left.is_empty() {
            self.trees.remove(&tree);
        }
        let mut packed = Vec::new();
        if self.packed_trees.contains(&tree)
            && BlockCompressor::new().is_some_and(|mut packer| packer.pack(&body, &mut packed))
        {
            let len = u32::try_from(body.len()).expect("some steps");
            body.clear();
            sftp::pack_steps(len, &packed, &mut body);
        }
        let body = RemainingBytes(&body);
        self.say(id, &Response::ExtendedReply { body });
        Ok(())
    }

    fn walk(&mut self, dir: &[u8], steps: &mut VecDeque<TreeRecord>) -> Answer {
        let at = self.fs.lookup(dir, true).map_err(Errno::status)?;
        if self.fs.node(at).map_err(Errno::status)?.mode & 0o400 == 0 {
            steps.push_back(TreeRecord::Failed(
                StatusCode::PERMISSION_DENIED,
                Vec::new(),
            ));
            steps.push_back(TreeRecord::Leave);
            return Ok(());
        }
        for filename in self.fs.list(dir) {
            let path = [dir, b"/", filename.as_slice()].concat();
            let inode = self.fs.lookup(&path, false).map_err(Errno::status)?;
            let attrs = self.fs.stat(inode).map_err(Errno::status)?;
            let name = NameRecord { filename, attrs };
            match attrs.is_dir() {
                true => {
                    steps.push_back(TreeRecord::Enter(name));
                    self.walk(&path, steps)?;
                }
                false => steps.push_back(TreeRecord::Entry(name)),
            }
        }
        steps.push_back(TreeRecord::Leave);
        Ok(())
    }
}
