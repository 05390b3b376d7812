//! Mistakes in settings that are well-formed by themselves.

use std::fmt::{self, Display};

use wire::escape;

/// A setting that cannot be used: its name and value, and what is wrong or conflicts with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SettingError {
    setting: String,
    problem: String,
}

impl SettingError {
    /// Creates the error of `name = value` in a file; `value` is as in the file.
    pub(crate) fn option(name: &str, value: impl Display, problem: impl Into<String>) -> Self {
        Self {
            setting: format!("{name} = {value}"),
            problem: problem.into(),
        }
    }

    /// Creates the error of a flag or an operand as the user wrote it.
    pub(crate) fn written(setting: &str, problem: impl Into<String>) -> Self {
        Self {
            setting: setting.to_owned(),
            problem: problem.into(),
        }
    }
}

impl std::error::Error for SettingError {}

impl Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.problem)
    }
}

/// The value of an option as a string of TOML, for a message.
pub(crate) fn quoted(text: impl AsRef<[u8]>) -> String {
    format!("\"{}\"", escape::name(text.as_ref()))
}
