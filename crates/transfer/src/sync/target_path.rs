//! Finds out if a directory that the user names lies in the target, where the source chooses what stands
//! under each name.

use std::path::{Component, Path, PathBuf};

use super::ends::SyncEnds;
use crate::copy::PlannedCopySide;
use crate::walk::local_path;

/// Returns the path below the target of `path`, a directory at the target's end as the user wrote it;
/// `None` if it lies elsewhere, or if the server tells no canonical paths.
///
/// Symlinks are followed as far as the target, and not below it: an earlier sync may have brought them.
pub(super) async fn path_below_target(ends: &mut SyncEnds<'_>, path: &Path) -> Option<PathBuf> {
    let root = local_path(ends.root(PlannedCopySide::Target));
    let target = real_place(ends, &root).await?;
    // A path that begins as the target's is not asked for component by component.
    let below = path.strip_prefix(&root);
    let (mut position, rest) = match below
        .ok()
        .filter(|_| path.is_absolute() == root.is_absolute())
    {
        Some(below) => (Position::Inside(PathBuf::new()), below),
        None => (Position::Outside(PathBuf::new()), path),
    };
    for part in rest.components() {
        position = position.enter(part, &target);
        if let Position::Outside(walked) = &position
            && let Some(real) = real_place(ends, walked).await
            && let Ok(below) = real.strip_prefix(&target)
        {
            position = Position::Inside(below.to_path_buf());
        }
    }
    match position {
        Position::Inside(below) => Some(below),
        Position::Outside(_) => None,
    }
}

/// Returns true if a symlink below the target leads to `path`, which lies there at `below`.
pub(super) async fn leads_through_symlink(
    ends: &mut SyncEnds<'_>,
    path: &Path,
    below: &Path,
) -> bool {
    let target = ends.root(PlannedCopySide::Target).to_vec();
    let target = real_place(ends, &local_path(&target)).await;
    let real = real_place(ends, path).await;
    real != target.map(|target| target.join(below))
}

async fn real_place(ends: &mut SyncEnds<'_>, path: &Path) -> Option<PathBuf> {
    let path = path.as_os_str().as_encoded_bytes();
    let real = ends.real_place(PlannedCopySide::Target, path).await?;
    Some(local_path(&real))
}

/// Place that a path has led to.
#[derive(Debug, PartialEq, Eq)]
enum Position {
    /// The path so far, outside the target.
    Outside(PathBuf),
    /// Path below the target.
    Inside(PathBuf),
}

impl Position {
    /// Follows the next component; `target` is the canonical path of the target.
    fn enter(self, part: Component<'_>, target: &Path) -> Self {
        match (self, part) {
            (Self::Inside(below), Component::CurDir) => Self::Inside(below),
            (Self::Inside(mut below), Component::ParentDir) => match below.pop() {
                true => Self::Inside(below),
                false => Self::Outside(target.parent().unwrap_or(target).to_path_buf()),
            },
            (Self::Inside(below), part) => Self::Inside(below.join(part)),
            (Self::Outside(walked), part) => Self::Outside(walked.join(part)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_target_names_count_and_no_symlinks() {
        let target = Path::new("/srv/z");
        let follow = |mut position: Position, path: &str| {
            for part in Path::new(path).components() {
                position = position.enter(part, target);
            }
            position
        };
        let inside = |path: &str| Position::Inside(path.into());
        assert_eq!(follow(inside(""), "a/./b"), inside("a/b"));
        assert_eq!(follow(inside("a"), "../b"), inside("b"));
        assert_eq!(
            follow(inside("a"), "../../z"),
            Position::Outside("/srv/z".into())
        );
        assert_eq!(follow(inside(""), ".."), Position::Outside("/srv".into()));
    }
}
