//! Looks at the existing entry at the target of an upload.

use sftp::{Attrs, OpenFlags, Reply, StatusCode};

use super::ending::{UploadAttemptAbort, UploadRetryReason};
use crate::attributes::OWNER_WRITE;
use crate::lane::messages::remote;
use crate::{FileCopyOptions, UploadTemp};

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const FIFO: u32 = 0o010_000;
const SOCKET: u32 = 0o140_000;
const IS_DIRECTORY: &str = "it is a directory at the far end: choose another name";
const IS_FIFO: &str =
    "it is a FIFO, into which the server cannot write: use ssh HOST 'cat > FIFO' < FILE";
const IS_SOCKET: &str = "it is a socket at the far end: choose another name";

fn in_place() -> OpenFlags {
    OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC
}

/// Target of an upload, as far as it is known.
#[derive(Debug)]
pub(super) struct UploadTargetInfo {
    state: UploadTargetState,
    /// The server says that nothing exists at the target.
    missing: bool,
    /// A symlink, FIFO, socket or device that is to be replaced exists at the target.
    replaces_node: bool,
    /// A read-only file may be written, as an OPEN has shown.
    writable: bool,
    /// The path is the one that a symlink points to.
    followed: bool,
}

/// Kind of the upload's target, which decides between a temporary and writing in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadTargetState {
    /// The LSTAT is in flight.
    Unknown,
    /// Nothing exists at the target.
    New,
    /// A regular file exists; its attributes are kept, as scp does.
    Existing(ReplacedAttributes),
    /// Write in place, opened with these flags.
    Direct(OpenFlags),
}

/// Attributes of the replaced file, as far as the server sends them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplacedAttributes {
    /// Permission bits.
    mode: Option<u32>,
    owner: Option<(u32, u32)>,
}

impl ReplacedAttributes {
    pub(super) fn mode(self) -> Option<u32> {
        self.mode
    }

    pub(super) fn owner(self) -> Option<(u32, u32)> {
        self.owner
    }
}

impl UploadTargetInfo {
    pub(super) fn new(options: &FileCopyOptions) -> Self {
        // A symlink that must be replaced is found by an LSTAT before anything is opened.
        let looks = options.existing.replace_node && !options.existing.fresh;
        let state = match (options.inplace && !looks, options.existing.fresh) {
            (true, _) => UploadTargetState::Direct(in_place()),
            (false, true) => UploadTargetState::New,
            (false, false) => UploadTargetState::Unknown,
        };
        Self {
            state,
            missing: false,
            replaces_node: false,
            writable: false,
            followed: false,
        }
    }

    /// Creates the target of a temporary that is to be renamed.
    pub(super) fn of(temp: &UploadTemp) -> Self {
        let state = match temp.replaces {
            true => UploadTargetState::Existing(ReplacedAttributes {
                mode: temp.mode,
                owner: temp.owner,
            }),
            false => UploadTargetState::New,
        };
        Self {
            state,
            ..Self::new(&FileCopyOptions::default())
        }
    }

    pub(super) fn state(&self) -> UploadTargetState {
        self.state
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.state == UploadTargetState::Unknown
    }

    /// Returns true if the target is written in place.
    pub(super) fn is_direct(&self) -> bool {
        matches!(self.state, UploadTargetState::Direct(_))
    }

    /// Returns the attributes of the file that the rename replaces.
    pub(super) fn replaced(&self) -> Option<ReplacedAttributes> {
        match self.state {
            UploadTargetState::Existing(was) => Some(was),
            _ => None,
        }
    }

    /// Returns true if the server says that nothing exists at the target.
    pub(super) fn is_missing(&self) -> bool {
        self.missing
    }

    /// Returns true for a device or FIFO. Its data are written, and its attributes stay: `cp -p
    /// file host:/dev/null` as root left a device that nobody else could write.
    pub(super) fn is_special(&self) -> bool {
        self.state == UploadTargetState::Direct(OpenFlags::WRITE)
    }

    /// Returns true if a symlink, FIFO, socket or device is to be replaced.
    pub(super) fn replaces_node(&self) -> bool {
        self.replaces_node
    }

    /// Returns true if the path is the one that a symlink points to.
    pub(super) fn is_followed(&self) -> bool {
        self.followed
    }

    /// Records that the target must be written in place, with these flags.
    pub(super) fn write_in_place(&mut self, flags: OpenFlags) {
        self.state = UploadTargetState::Direct(flags);
    }

    /// Records that a read-only file may be written.
    pub(super) fn may_be_written(&mut self) {
        self.writable = true;
    }

    /// Forgets the target, since the file that its symlink points to takes its place.
    pub(super) fn follow(&mut self) {
        self.followed = true;
        self.state = UploadTargetState::Unknown;
    }

    /// Handles the answer to LSTAT; returns what the job must do instead of creating a temporary
    /// and renaming it. `fifos` says that the server writes to FIFOs.
    pub(super) fn looked(
        &mut self,
        reply: &Reply,
        options: &FileCopyOptions,
        fifos: bool,
    ) -> Option<UploadAttemptAbort> {
        match reply {
            Reply::Attrs(attrs) => self.decide(attrs, options, fifos),
            // Without attributes (the user may lack the right to look at the file), the server
            // decides at the rename.
            _ => {
                self.missing = matches!(reply, Reply::Status(status)
                    if status.code == StatusCode::NO_SUCH_FILE);
                self.state = match options.inplace {
                    true => UploadTargetState::Direct(in_place()),
                    false => UploadTargetState::New,
                };
                None
            }
        }
    }

    fn decide(
        &mut self,
        attrs: &Attrs,
        options: &FileCopyOptions,
        fifos: bool,
    ) -> Option<UploadAttemptAbort> {
        let owner = attrs.owner;
        let Some(mode) = attrs.permissions else {
            // A server without modes: it is only known that a file exists.
            if options.inplace {
                self.state = UploadTargetState::Direct(in_place());
                return None;
            }
            self.state = UploadTargetState::Existing(ReplacedAttributes { mode: None, owner });
            return None;
        };
        let retry = |reason| Some(UploadAttemptAbort::Retry(reason));
        match mode & TYPE {
            REGULAR | 0 if options.inplace => {
                self.state = UploadTargetState::Direct(in_place());
                None
            }
            // Some servers omit the type.
            REGULAR | 0 => {
                // scp can open the file for writing as root or by its group's rights, so the server
                // decides, unless the file is replaced in any case.
                let replaces = options.existing.read_only.replaces(attrs.size);
                let protected = mode & OWNER_WRITE == 0 && !replaces;
                let probes = protected && !self.writable;
                let mode = Some(mode & 0o777);
                self.state = UploadTargetState::Existing(ReplacedAttributes { mode, owner });
                probes.then_some(UploadAttemptAbort::Retry(UploadRetryReason::Probe))
            }
            DIRECTORY => Some(UploadAttemptAbort::Failed(remote(IS_DIRECTORY))),
            // OPEN of a FIFO would block a server for ever, or hand the data to whoever made it.
            _ if options.existing.replace_node => {
                self.replaces_node = true;
                self.state = UploadTargetState::New;
                None
            }
            SYMLINK if !self.followed => retry(UploadRetryReason::Follow),
            SYMLINK => retry(UploadRetryReason::Direct(
                OpenFlags::WRITE | OpenFlags::TRUNC,
            )),
            kind => match unwritable(kind, fifos) {
                Some(what) => Some(UploadAttemptAbort::Failed(remote(what))),
                None => retry(UploadRetryReason::Direct(OpenFlags::WRITE)),
            },
        }
    }

    /// Handles the answer to STAT through the symlink at the target.
    pub(super) fn followed(&mut self, reply: &Reply, fifos: bool) -> Option<UploadAttemptAbort> {
        let create = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC;
        match reply {
            Reply::Attrs(Attrs {
                permissions: Some(mode),
                ..
            }) => match mode & TYPE {
                REGULAR | 0 => {}
                DIRECTORY => return Some(UploadAttemptAbort::Failed(remote(IS_DIRECTORY))),
                kind => match unwritable(kind, fifos) {
                    Some(what) => return Some(UploadAttemptAbort::Failed(remote(what))),
                    None => self.write_in_place(OpenFlags::WRITE),
                },
            },
            // A dangling symlink: open(2) creates the file that it points to.
            _ => self.write_in_place(create),
        }
        None
    }

    /// Handles the answer to REALPATH: returns the path of the file that the symlink points to, or
    /// has the symlink's own path written through.
    pub(super) fn resolved(&mut self, reply: &Reply) -> Option<Vec<u8>> {
        if !self.is_unknown() {
            return None;
        }
        let name = match reply {
            Reply::Names(names) if names.len() == 1 => names.first(),
            _ => None,
        };
        let sound =
            |name: &&sftp::NameRecord| !name.filename.is_empty() && !name.filename.contains(&0);
        let path = name.filter(sound).map(|name| name.filename.clone());
        if path.is_none() {
            self.write_in_place(OpenFlags::WRITE | OpenFlags::TRUNC);
        }
        path
    }
}

/// Says why nothing of this type can be written. An OPEN of a FIFO would block a server that waits
/// for a reader.
fn unwritable(kind: u32, fifos: bool) -> Option<&'static str> {
    match kind {
        FIFO if !fifos => Some(IS_FIFO),
        SOCKET => Some(IS_SOCKET),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sftp::Status;

    use super::*;
    use crate::{ExistingTargetPolicy, ReadOnlyFilePolicy};

    fn look(
        target: &mut UploadTargetInfo,
        mode: Option<u32>,
        options: &FileCopyOptions,
    ) -> Option<UploadAttemptAbort> {
        let attrs = Attrs {
            permissions: mode,
            owner: Some((1, 2)),
            ..Attrs::default()
        };
        target.looked(&Reply::Attrs(attrs), options, false)
    }

    fn retry(reason: UploadRetryReason) -> Option<UploadAttemptAbort> {
        Some(UploadAttemptAbort::Retry(reason))
    }

    #[test]
    fn the_type_of_what_stands_there_decides() {
        let options = FileCopyOptions::default();
        let through = OpenFlags::WRITE | OpenFlags::TRUNC;
        for (mode, ending) in [
            (Some(0o100_644), None),
            (Some(0o644), None),
            (None, None),
            (Some(0o100_444), retry(UploadRetryReason::Probe)),
            (
                Some(0o010_600),
                Some(UploadAttemptAbort::Failed(remote(IS_FIFO))),
            ),
            (
                Some(0o140_755),
                Some(UploadAttemptAbort::Failed(remote(IS_SOCKET))),
            ),
            (Some(0o120_777), retry(UploadRetryReason::Follow)),
            (
                Some(0o020_600),
                retry(UploadRetryReason::Direct(OpenFlags::WRITE)),
            ),
            (
                Some(0o040_755),
                Some(UploadAttemptAbort::Failed(remote(IS_DIRECTORY))),
            ),
        ] {
            let mut target = UploadTargetInfo::new(&options);
            assert_eq!(look(&mut target, mode, &options), ending, "{mode:?}");
        }
        let mut target = UploadTargetInfo::new(&options);
        target.follow();
        let link = look(&mut target, Some(0o120_777), &options);
        assert_eq!(
            link,
            retry(UploadRetryReason::Direct(through)),
            "a link to a link"
        );
    }

    #[test]
    fn a_symlink_may_be_replaced_and_a_probed_file_is_not_probed_again() {
        let replace = FileCopyOptions {
            existing: ExistingTargetPolicy::REPLACED_NODE,
            ..FileCopyOptions::default()
        };
        let mut target = UploadTargetInfo::new(&replace);
        assert_eq!(look(&mut target, Some(0o120_777), &replace), None);
        assert!(target.replaces_node() && target.replaced().is_none());
        // Bug: a FIFO below the target was opened, which blocked sftp-server for ever.
        for node in [0o010_600, 0o020_600, 0o140_755] {
            let mut target = UploadTargetInfo::new(&replace);
            assert_eq!(look(&mut target, Some(node), &replace), None);
            assert!(target.replaces_node() && !target.is_special());
        }
        // Bug: `cp -a` between two hosts, which keeps no special bits of a server, failed for each
        // read-only file of its own earlier copy.
        let archive = FileCopyOptions {
            existing: ExistingTargetPolicy {
                read_only: ReadOnlyFilePolicy::Replace,
                ..ExistingTargetPolicy::default()
            },
            ..FileCopyOptions::default()
        };
        let mut target = UploadTargetInfo::new(&archive);
        assert_eq!(look(&mut target, Some(0o100_444), &archive), None);
        // `cp -p --preserve-setuid` keeps scp's behaviour.
        let mut special = FileCopyOptions::default();
        special.beyond.special_bits = true;
        let mut target = UploadTargetInfo::new(&special);
        let probed = look(&mut target, Some(0o100_444), &special);
        assert_eq!(probed, retry(UploadRetryReason::Probe));
        let mut target = UploadTargetInfo::new(&replace);
        target.may_be_written();
        assert_eq!(look(&mut target, Some(0o100_444), &replace), None);
        let replaced = target.replaced().map(|was| (was.mode(), was.owner()));
        assert_eq!(replaced, Some((Some(0o444), Some((1, 2)))));
    }

    /// `--inplace` opened the symlink's target for writing.
    #[test]
    fn a_symlink_is_looked_for_before_a_file_is_written_in_place() {
        let options = FileCopyOptions {
            existing: ExistingTargetPolicy::REPLACED_NODE,
            inplace: true,
            ..FileCopyOptions::default()
        };
        let mut target = UploadTargetInfo::new(&options);
        assert!(target.is_unknown());
        assert_eq!(look(&mut target, Some(0o120_777), &options), None);
        assert!(target.replaces_node() && !target.is_direct());
        let mut target = UploadTargetInfo::new(&options);
        assert_eq!(look(&mut target, Some(0o100_644), &options), None);
        assert!(target.is_direct());
        let existing = ExistingTargetPolicy {
            fresh: true,
            ..options.existing
        };
        let fresh = FileCopyOptions {
            existing,
            ..options
        };
        assert!(UploadTargetInfo::new(&fresh).is_direct());
    }

    #[test]
    fn only_no_such_file_means_that_nothing_stands_there() {
        for code in [StatusCode::NO_SUCH_FILE, StatusCode::PERMISSION_DENIED] {
            let mut target = UploadTargetInfo::new(&FileCopyOptions::default());
            let message = String::new();
            let reply = Reply::Status(Status { code, message });
            assert_eq!(
                target.looked(&reply, &FileCopyOptions::default(), false),
                None
            );
            assert_eq!(target.state(), UploadTargetState::New);
            assert_eq!(target.is_missing(), code == StatusCode::NO_SUCH_FILE);
        }
    }

    #[test]
    fn a_path_with_a_nul_is_not_followed() {
        let named = |path: &[u8]| {
            Reply::Names(vec![sftp::NameRecord {
                filename: path.to_vec(),
                attrs: Attrs::default(),
            }])
        };
        let mut target = UploadTargetInfo::new(&FileCopyOptions::default());
        target.follow();
        assert_eq!(target.resolved(&named(b"/real")), Some(b"/real".to_vec()));
        for bad in [&b""[..], b"a\0b"] {
            let mut target = UploadTargetInfo::new(&FileCopyOptions::default());
            target.follow();
            assert_eq!(target.resolved(&named(bad)), None);
            assert!(target.is_direct(), "written through the symlink itself");
        }
    }
}
