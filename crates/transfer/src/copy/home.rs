//! Paths of the form `~user`, which the server expands.

use schedule::{JobKind, RemotePath};

use super::jobs::PathQueryAnswer;
use super::names::{RemotePathForm, written};
use super::server_inquiry::ServerInquiry;
use super::sides::CopySide;
use crate::walk::join;

/// Path to send to the server for a path that the user wrote. The server is only queried to expand
/// `~user`. Returns `None`, after reporting it, if that fails.
pub(super) async fn path_at_server<'a>(
    server: &mut impl ServerInquiry<'a>,
    end: CopySide,
    path: &[u8],
) -> Option<Vec<u8>> {
    match written(path) {
        RemotePathForm::Plain(path) => Some(path),
        RemotePathForm::Home { user, below } => {
            let home = home_of(server, end, user).await?;
            Some(in_home(&home, &below))
        }
    }
}

/// Asks the server for the home directory of `~user`. Only this part of a path is the server's to
/// choose: an answer for the whole path would choose local names as well (CVE-2019-6111). Returns
/// `None`, after reporting it, if that fails.
pub(super) async fn home_of<'a>(
    server: &mut impl ServerInquiry<'a>,
    end: CopySide,
    user: Vec<u8>,
) -> Option<Vec<u8>> {
    let kind = JobKind::RealPath {
        path: RemotePath(user.clone()),
    };
    let answer = server.ask(end, kind).await.map(PathQueryAnswer::into_path);
    let error = match answer {
        Ok(None) => return Some(user),
        Ok(Some(home)) if home.starts_with(b"/") && !home.contains(&0) => return Some(home),
        Ok(Some(_)) => {
            "the server answered with a path that is not absolute (SFTP protocol error)".into()
        }
        Err(error) => error,
    };
    server.context_mut().fail_at(end, &user, error);
    None
}

/// Path of `below` in a home directory; its contents (`.`) where `below` is empty.
pub(super) fn in_home(home: &[u8], below: &[u8]) -> Vec<u8> {
    match below.is_empty() {
        true => join(home, b"."),
        false => join(home, below),
    }
}
