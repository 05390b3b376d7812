//! Requests whose answer is a path or a name.

use sftp::{Request, RequestId, StatusCode};

use crate::accounts::expand;
use crate::answer::{Answer, Session};
use crate::answer_names::{home, tell_name};
use crate::error::Refused;

impl Session<'_> {
    pub(crate) fn carry_out_paths(
        &mut self,
        id: RequestId,
        request: Request<'_>,
        out: &mut Vec<u8>,
    ) -> Answer {
        match request {
            Request::Realpath { path } => {
                let whole = self.export.place.canonical(path)?;
                tell_name(id, &whole, out)
            }
            Request::ExpandPath { path } => {
                let path = expand(path, |user| home(self, user)).ok_or_else(nobody)?;
                let whole = self.export.place.canonical(&path)?;
                tell_name(id, &whole, out)
            }
            Request::HomeDirectory { user } => {
                let home = home(self, user).ok_or_else(nobody)?;
                tell_name(id, &home, out)
            }
            Request::UsersGroupsById { users, groups } => self.names_of_ids(id, users, groups, out),
            _ => Err(Refused::new(
                StatusCode::OP_UNSUPPORTED,
                "this server does not know the request",
            )),
        }
    }
}

fn nobody() -> Refused {
    Refused::new(StatusCode::NO_SUCH_FILE, "there is no such user")
}
