//! Tests of writing and finishing local files.

use super::*;
use std::cell::Cell;
use std::os::unix::fs::{PermissionsExt, symlink};

type Result = io::Result<()>;

thread_local! {
    /// The error that the next close(2) in this thread returns.
    pub(super) static CLOSE_FAILS: Cell<Option<Errno>> = const { Cell::new(None) };
}

fn finish(size: u64, mode: u32, preserve: bool) -> TargetFinishSettings {
    TargetFinishSettings {
        size,
        attributes: Attributes {
            mode: Some(0o100_000 | mode),
            times: Some((1_000_000_000, 1_100_000_000)),
            ..Attributes::default()
        },
        preserve,
        fsync: false,
        beyond: ExtraMetadata::default(),
    }
}

/// Creates a target whose whole path the user named.
fn create(path: &Path, inplace: bool) -> io::Result<LocalTarget> {
    create_with(&path.into(), inplace, None)
}

fn create_with(
    path: &LocalTargetPath,
    inplace: bool,
    mode: Option<u32>,
) -> io::Result<LocalTarget> {
    create_target(CreateSettings {
        directories: &OpenDirectoryCache::default(),
        path,
        inplace,
        keep: None,
        mode,
        fresh: false,
    })
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[test]
fn a_file_appears_only_when_finished_and_with_its_mode() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    let target = create(&path, false)?;
    target.write(3, vec![Bytes::from_static(b"lo")])?;
    target.write(
        0,
        vec![
            Bytes::from_static(b"h"),
            Bytes::new(),
            Bytes::from_static(b"el"),
        ],
    )?;
    assert!(!path.exists());
    let temp = names(dir.path())?;
    assert!(
        temp[0].starts_with(".f.") && temp[0].ends_with(".longhaul"),
        "{temp:?}"
    );
    target.finish(finish(5, 0o4751, true))?;
    // Checked before the file is read, which changes its access time.
    let meta = fs::metadata(&path)?;
    assert_eq!(meta.mode() & 0o7777, 0o4751);
    assert_eq!((meta.atime(), meta.mtime()), (1_000_000_000, 1_100_000_000));
    assert_eq!(fs::read(&path)?, b"hello");
    assert_eq!(names(dir.path())?, ["f"]);
    Ok(())
}

#[test]
fn given_up_leaves_nothing() -> Result {
    let dir = tempfile::tempdir()?;
    drop(create(&dir.path().join("f"), false)?);
    assert!(names(dir.path())?.is_empty());
    Ok(())
}

#[test]
fn an_existing_file_keeps_its_bits_and_a_shorter_one_cuts_it() -> Result {
    let dir = tempfile::tempdir()?;
    for inplace in [false, true] {
        let path = dir.path().join("f");
        fs::write(&path, "something longer")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640))?;
        let target = create(&path, inplace)?;
        target.write(0, vec![Bytes::from_static(b"short")])?;
        target.finish(finish(5, 0o777, false))?;
        assert_eq!(fs::read(&path)?, b"short");
        assert_eq!(fs::metadata(&path)?.mode() & 0o7777, 0o640);
    }
    Ok(())
}

#[test]
fn a_file_that_cannot_be_closed_does_not_get_its_name() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    fs::write(&path, "old")?;
    let target = create(&path, false)?;
    target.write(0, vec![Bytes::from_static(b"new")])?;
    CLOSE_FAILS.set(Some(Errno::DQUOT));
    let said = target.finish(finish(3, 0o644, false)).err();
    CLOSE_FAILS.set(None);
    assert_eq!(
        said.and_then(|e| e.raw_os_error()),
        Some(Errno::DQUOT.raw_os_error())
    );
    assert_eq!(fs::read(&path)?, b"old");
    assert_eq!(names(dir.path())?, ["f"]);
    Ok(())
}

#[test]
fn new_contents_do_not_run_as_the_owner_of_the_old_ones() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    for (had, has) in [(0o4755, 0o755), (0o2755, 0o755), (0o6711, 0o711)] {
        fs::write(&path, "old")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(had))?;
        create(&path, false)?.finish(finish(0, 0o4777, false))?;
        assert_eq!(fs::metadata(&path)?.mode() & 0o7777, has);
    }
    Ok(())
}

#[test]
fn a_file_that_is_replaced_stays_its_owners() -> Result {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    fs::write(&path, "old")?;
    std::os::unix::fs::chown(&path, Some(1234), Some(4321))?;
    let target = create(&path, false)?;
    let stored = target.finish(finish(0, 0o644, false))?;
    assert_eq!(stored, StoredTarget::default());
    let meta = fs::metadata(&path)?;
    assert_eq!((meta.uid(), meta.gid()), (1234, 4321));
    // New contents must not run with the old owner's rights.
    let target = create(&path, false)?;
    target.finish(finish(0, 0o4755, true))?;
    let meta = fs::metadata(&path)?;
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o4755));
    // An explicitly requested owner is set nevertheless.
    let target = create(&path, false)?;
    let mut finish = finish(0, 0o644, true);
    finish.beyond.owner = Some((1, 2));
    target.finish(finish)?;
    let meta = fs::metadata(&path)?;
    assert_eq!((meta.uid(), meta.gid()), (1, 2));
    Ok(())
}

#[test]
fn a_file_that_is_replaced_keeps_its_access_list() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    fs::write(&path, "old")?;
    // Owner, user 77, group, mask, others (acl(5), in the kernel's format).
    let entry = |(tag, bits, id): (u16, u16, u32)| {
        let [a, b] = tag.to_le_bytes();
        let [c, d] = bits.to_le_bytes();
        let [e, f, g, h] = id.to_le_bytes();
        [a, b, c, d, e, f, g, h]
    };
    const NOBODY: u32 = u32::MAX;
    let entries = [
        (1, 6, NOBODY),
        (2, 6, 77),
        (4, 0, NOBODY),
        (16, 6, NOBODY),
        (32, 0, NOBODY),
    ];
    let value = [&2_u32.to_le_bytes()[..], &entries.map(entry).concat()].concat();
    let acl = vec![(b"system.posix_acl_access".to_vec(), value)];
    let of = sys::XattrTarget::Path(&path);
    if sys::replace_xattrs(of, &acl, |_| true).is_err() {
        return Ok(());
    }
    let target = create(&path, false)?;
    let stored = target.finish(finish(0, 0o644, false))?;
    assert_eq!(stored, StoredTarget::default());
    assert_eq!(
        metadata::xattrs_of(&path, schedule::MetadataFlags::ACLS)?,
        acl
    );
    assert_eq!(fs::metadata(&path)?.mode() & 0o7777, 0o660);
    // The request says that the file has no ACL.
    let target = create(&path, false)?;
    let mut finish = finish(0, 0o640, true);
    let kinds = schedule::MetadataFlags::ACLS;
    let list = Vec::new();
    finish.beyond.xattrs = Some(Box::new(schedule::Xattrs { kinds, list }));
    target.finish(finish)?;
    assert_eq!(metadata::xattrs_of(&path, kinds)?, Vec::new());
    Ok(())
}

/// Makes this thread access files as another user while it lives. Created after the directory of a
/// test, it is dropped before it, so that the directory can be removed.
struct AnotherUser;

impl AnotherUser {
    /// `None` if this process may not act as others.
    fn become_one() -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        root.then(|| {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(1234));
            Self
        })
    }
}

impl Drop for AnotherUser {
    fn drop(&mut self) {
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(0));
    }
}

#[test]
fn a_file_whose_owner_cannot_be_kept_is_told_of() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    fs::write(&path, "old")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    let Some(_user) = AnotherUser::become_one() else {
        return Ok(());
    };
    let target = create(&path, false)?;
    let stored = target.finish(finish(0, 0o644, false))?;
    assert!(!stored.in_place);
    assert_eq!(stored.belonged, Some((0, fs::metadata(dir.path())?.gid())));
    // The file belongs to the user from here on.
    let target = create(&path, false)?;
    let stored = target.finish(finish(0, 0o644, false))?;
    assert_eq!(stored.belonged, None);
    Ok(())
}

#[test]
fn a_file_in_a_directory_where_nothing_can_be_made_is_told_to_be_written_in_place() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    fs::write(&path, "what was there")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    let Some(_user) = AnotherUser::become_one() else {
        return Ok(());
    };
    let target = create(&path, false)?;
    target.write(0, vec![Bytes::from_static(b"new")])?;
    let stored = target.finish(finish(3, 0o644, false))?;
    let told = StoredTarget {
        in_place: true,
        why_in_place: Some(schedule::UNWRITABLE.to_owned()),
        ..StoredTarget::default()
    };
    assert_eq!(stored, told);
    assert_eq!(fs::read(&path)?, b"new");
    // With in-place writing requested, the directory is not mentioned.
    let stored = create(&path, true)?.finish(finish(3, 0o644, false))?;
    assert!(stored.in_place && stored.why_in_place.is_none());
    Ok(())
}

#[test]
fn symlinks_are_followed_dangling_ones_too() -> Result {
    let dir = tempfile::tempdir()?;
    fs::create_dir(dir.path().join("d"))?;
    let link = dir.path().join("link");
    symlink("d/new", &link)?;
    create(&link, false)?.finish(finish(0, 0o644, false))?;
    assert!(fs::symlink_metadata(&link)?.is_symlink());
    assert!(dir.path().join("d/new").is_file());
    let circle = dir.path().join("circle");
    symlink("circle", &circle)?;
    assert!(create(&circle, false).is_err());
    Ok(())
}

#[test]
fn a_directory_is_not_replaced() -> Result {
    let dir = tempfile::tempdir()?;
    let error = create(dir.path(), false).err();
    assert_eq!(
        error.and_then(|e| e.raw_os_error()),
        Some(Errno::ISDIR.raw_os_error())
    );
    Ok(())
}

#[test]
fn a_fifo_gets_its_bytes_in_order_and_never_blocks_the_open() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    assert!(create(&path, false).is_err());
    let reader = openat(CWD, &path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let target = create(&path, false)?;
    target.write(3, vec![Bytes::from_static(b"def")])?;
    target.write(0, vec![Bytes::from_static(b"abc")])?;
    target.finish(finish(6, 0o644, true))?;
    let mut read = [0; 16];
    let n = rustix::io::read(&reader, &mut read)?;
    assert_eq!(&read[..n], b"abcdef");
    Ok(())
}

#[test]
fn a_symlink_below_what_was_named_is_replaced_and_not_followed() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = LocalTargetPath::beneath(dir.path(), "link", false);
    let (outside, link) = (dir.path().join("outside"), dir.path().join("link"));
    for there in [false, true] {
        if there {
            fs::write(&outside, "mine")?;
        }
        for inplace in [false, true] {
            let _ = fs::remove_file(&link);
            symlink(&outside, &link)?;
            create_with(&path, inplace, None)?.finish(finish(0, 0o644, false))?;
            assert!(fs::symlink_metadata(&link)?.is_file());
            assert_eq!(outside.exists(), there);
        }
    }
    assert_eq!(fs::read(&outside)?, b"mine");
    Ok(())
}

#[test]
fn one_that_is_here_as_a_whole_has_its_bits_from_the_beginning() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    let temporary = |dir: &Path| -> io::Result<u32> {
        let names = names(dir)?;
        let temp = names.iter().find(|name| name.ends_with(".longhaul"));
        let temp = temp.ok_or(io::ErrorKind::NotFound)?;
        Ok(fs::metadata(dir.join(temp))?.mode() & 0o7777)
    };
    for (replaces, mode, while_written, preserve, then) in [
        (
            None,
            0o444,
            0o444 & !sys::umask(),
            false,
            0o444 & !sys::umask(),
        ),
        (None, 0o666, 0o666 & !sys::umask(), true, 0o666),
        (None, 0o4755, 0o755 & !sys::umask(), true, 0o4755),
        (Some(0o600), 0o644, 0o600, false, 0o600),
    ] {
        let _ = fs::remove_file(&path);
        if let Some(mode) = replaces {
            fs::write(&path, "mine")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        let target = create_with(&path.as_path().into(), false, Some(mode & 0o777))?;
        assert_eq!(temporary(dir.path())?, while_written, "{mode:o}");
        target.finish(finish(0, mode, preserve))?;
        assert_eq!(fs::metadata(&path)?.mode() & 0o7777, then, "{mode:o}");
    }
    Ok(())
}

/// Builds a default ACL of owner, group, mask and others (acl(5), in the kernel's format).
fn default_acl(bits: [u16; 4]) -> Vec<u8> {
    let [user, group, mask, other] = bits;
    let entries = [(1_u16, user), (4, group), (16, mask), (32, other)];
    let entry = |(tag, bits): (u16, u16)| {
        let [a, b] = tag.to_le_bytes();
        let [c, d] = bits.to_le_bytes();
        [a, b, c, d, 255, 255, 255, 255]
    };
    [&2_u32.to_le_bytes()[..], &entries.map(entry).concat()].concat()
}

#[test]
fn a_new_file_gets_what_the_default_access_list_of_its_folder_grants() -> Result {
    let dir = tempfile::tempdir()?;
    let acl = default_acl([7, 5, 5, 0]);
    let list = vec![(b"system.posix_acl_default".to_vec(), acl)];
    if sys::replace_xattrs(sys::XattrTarget::Path(dir.path()), &list, |_| true).is_err() {
        return Ok(());
    }
    let path = dir.path().join("f");
    // The mode is that of open(2) in this directory: the umask does not apply, and no other user
    // gains access.
    for known in [None, Some(0o666)] {
        for (mode, has) in [(0o666, 0o640), (0o600, 0o600), (0o755, 0o750)] {
            let known = known.map(|_| mode);
            create_with(&path.as_path().into(), false, known)?.finish(finish(0, mode, false))?;
            assert_eq!(fs::metadata(&path)?.mode() & 0o7777, has, "{mode:o}");
            fs::remove_file(&path)?;
        }
        create(&path, true)?.finish(finish(0, 0o666, false))?;
        assert_eq!(fs::metadata(&path)?.mode() & 0o7777, 0o640);
        fs::remove_file(&path)?;
    }
    // A file older than the default ACL does not get that ACL with its new contents.
    fs::write(&path, "old")?;
    sys::replace_xattrs(sys::XattrTarget::Path(&path), &[], |_| true)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    create(&path, false)?.finish(finish(0, 0o666, false))?;
    assert_eq!(fs::metadata(&path)?.mode() & 0o7777, 0o644);
    let kinds = schedule::MetadataFlags::ACLS;
    assert_eq!(metadata::xattrs_of(&path, kinds)?, Vec::new());
    Ok(())
}

#[test]
fn attributes_that_are_the_users_stay_with_a_file_that_is_replaced() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    fs::write(&path, "old")?;
    let tag = vec![(b"user.tag".to_vec(), b"mine".to_vec())];
    if sys::add_xattrs(sys::XattrTarget::Path(&path), &tag).is_err() {
        return Ok(());
    }
    let stored = create(&path, false)?.finish(finish(0, 0o644, false))?;
    assert_eq!(stored, StoredTarget::default());
    let kinds = schedule::MetadataFlags::XATTRS;
    assert_eq!(metadata::xattrs_of(&path, kinds)?, tag);
    // The source's attributes are requested, and it has none.
    let mut finish = finish(0, 0o644, false);
    let list = Vec::new();
    finish.beyond.xattrs = Some(Box::new(schedule::Xattrs { kinds, list }));
    create(&path, false)?.finish(finish)?;
    assert_eq!(metadata::xattrs_of(&path, kinds)?, Vec::new());
    Ok(())
}

#[test]
fn other_names_of_a_file_that_is_replaced_are_told_of() -> Result {
    let dir = tempfile::tempdir()?;
    let (path, other) = (dir.path().join("f"), dir.path().join("other"));
    fs::write(&path, "old")?;
    fs::hard_link(&path, &other)?;
    let stored = create(&path, false)?.finish(finish(0, 0o644, false))?;
    assert_eq!(stored.other_names, 1);
    assert_eq!(fs::read(&other)?, b"old");
    Ok(())
}

#[test]
fn a_file_that_may_only_be_read_is_replaced_where_the_kernel_lets_it_be() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    fs::write(&path, "old")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444))?;
    std::os::unix::fs::chown(dir.path(), Some(1234), Some(1234))
        .and_then(|()| std::os::unix::fs::chown(&path, Some(1234), Some(1234)))
        .ok();
    let _user = AnotherUser::become_one();
    let target = create(&path, false)?;
    target.write(0, vec![Bytes::from_static(b"new")])?;
    target.finish(finish(3, 0o644, false))?;
    assert_eq!(fs::read(&path)?, b"new");
    assert_eq!(fs::metadata(&path)?.mode() & 0o7777, 0o444);
    Ok(())
}

#[test]
fn a_file_that_cannot_be_replaced_and_may_be_written_is_written_as_scp_does() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    fs::write(&path, "what was there")?;
    // Every user may create files here and replace only their own, as in /tmp.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    let Some(_user) = AnotherUser::become_one() else {
        return Ok(());
    };
    let target = create(&path, false)?;
    target.write(0, vec![Bytes::from_static(b"new")])?;
    let stored = target.finish(finish(3, 0o644, false))?;
    assert!(stored.in_place && stored.belonged.is_none(), "{stored:?}");
    assert_eq!(
        stored.why_in_place.as_deref(),
        Some("the file at the target cannot be replaced (operation not permitted)")
    );
    assert_eq!(fs::read(&path)?, b"new");
    assert_eq!(names(dir.path())?, ["f"]);
    Ok(())
}

#[test]
fn a_name_that_cannot_be_given_is_told_with_both_names() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    let target = create(&path, false)?;
    // Another process creates a directory of that name.
    fs::create_dir(&path)?;
    let said = target.finish(finish(0, 0o644, false)).err();
    let said = said.map(|e| e.to_string()).unwrap_or_default();
    assert!(
        said.starts_with("cannot rename .f.") && said.ends_with(" to f: is a directory"),
        "{said}"
    );
    assert_eq!(names(dir.path())?, ["f"]);
    Ok(())
}

#[test]
fn what_a_process_has_open_is_written_through_its_descriptor() -> Result {
    let (reader, writer) = rustix::pipe::pipe()?;
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let target = create(Path::new(&path), false)?;
    target.write(0, vec![Bytes::from_static(b"piped")])?;
    target.finish(finish(5, 0o644, false))?;
    let mut read = [0; 16];
    let n = rustix::io::read(&reader, &mut read)?;
    assert_eq!(&read[..n], b"piped");
    // A file behind standard output is written in place.
    let dir = tempfile::tempdir()?;
    let file = File::create(dir.path().join("out"))?;
    let link = dir.path().join("stdout");
    symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), &link)?;
    let target = create(&link, false)?;
    target.write(0, vec![Bytes::from_static(b"in it")])?;
    target.finish(finish(5, 0o644, false))?;
    assert_eq!(file.metadata()?.len(), 5);
    Ok(())
}

#[test]
fn what_the_system_refuses_to_set_is_told_and_the_file_is_there() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f");
    fs::write(&path, "what was there")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    // chmod(2) and utimes(2) fail on another user's file.
    let Some(_user) = AnotherUser::become_one() else {
        return Ok(());
    };
    let target = create(&path, true)?;
    target.write(0, vec![Bytes::from_static(b"new")])?;
    let stored = target.finish(finish(3, 0o600, true))?;
    let refused = |part| (part, "operation not permitted".to_owned());
    assert_eq!(
        stored.not_kept,
        [refused(Parts::MODE), refused(Parts::TIMES)]
    );
    assert_eq!(fs::read(&path)?, b"new");
    Ok(())
}

/// The temporary's name fits, so that all data of such a file were fetched before its rename failed.
#[test]
fn a_file_whose_name_is_too_long_fails_before_its_data_arrive() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x".repeat(256));
    let created = create_target(CreateSettings {
        directories: &OpenDirectoryCache::default(),
        path: &path.as_path().into(),
        inplace: false,
        keep: None,
        mode: None,
        fresh: true,
    });
    let error = created.expect_err("no file can have the name");
    assert_eq!(
        error.raw_os_error(),
        Some(Errno::NAMETOOLONG.raw_os_error())
    );
    assert!(names(dir.path())?.is_empty());
    Ok(())
}
