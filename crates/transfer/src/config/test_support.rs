//! Configurations for tests of other modules.

use super::{HostConfig, HostConfigQuery, LocalUser};

/// Returns the settings of the host `h` without a configuration file, ssh or a home directory.
pub(crate) fn host_without_files() -> HostConfig {
    let query = HostConfigQuery {
        host: "h".into(),
        file: Some("none".into()),
        ssh: Some("/nonexistent/ssh".into()),
        ..HostConfigQuery::default()
    };
    let user = LocalUser {
        home: Some("/nonexistent".into()),
        ..LocalUser::default()
    };
    query.resolve(&user).expect("settings without a file")
}
