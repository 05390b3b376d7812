//! Makes the paths of the command line absolute, since the server changes its folder.

use std::io;
use std::path::{self, Path};

use crate::flags::low::ServeArgs;

impl ServeArgs {
    /// Returns the arguments with absolute paths. A server of a single user changes to the home
    /// folder, and rereads these files with SIGHUP. Later code must take paths from the result
    /// only.
    ///
    /// # Errors
    /// The current directory no longer exists.
    pub(super) fn absolute(&self) -> io::Result<Self> {
        let mut args = self.clone();
        let Self {
            stdio: _,
            once: _,
            ports: _,
            marker: _,
            sum: _,
            listen: _,
            config,
            check: _,
            authorized_keys,
            host_keys,
            old_clients: _,
            root,
            access: _,
            renounced: _,
            no_window_poll: _,
            allow: _,
            verbose: _,
        } = &mut args;
        let single = [config, authorized_keys, root];
        for path in single.into_iter().flatten().chain(host_keys) {
            if !begins_at_home(path) || self.stdio || self.once {
                *path = path::absolute(&*path)?;
            }
        }
        Ok(args)
    }
}

/// Returns true if the path is absolute, or will be after expansion of %h, the home.
pub(super) fn is_absolute(path: &Path) -> bool {
    path.is_absolute() || begins_at_home(path)
}

fn begins_at_home(path: &Path) -> bool {
    path.starts_with("%h")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn no_path_of_the_command_line_is_left_to_where_the_server_goes() {
        let here = std::env::current_dir().expect("somewhere");
        let given = |path: &str| Some(PathBuf::from(path));
        let args = ServeArgs {
            config: given("serve.toml"),
            authorized_keys: given("%h/keys"),
            host_keys: vec!["a".into(), "/b".into()],
            root: given("./files"),
            ..ServeArgs::default()
        };
        let args = args.absolute().expect("there is a current directory");
        assert_eq!(args.config, Some(here.join("serve.toml")));
        assert_eq!(args.authorized_keys, given("%h/keys"));
        assert_eq!(args.host_keys, [here.join("a"), "/b".into()]);
        assert_eq!(args.root, Some(here.join("files")));
    }
}
