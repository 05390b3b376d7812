use serde::{Deserialize, Serialize};

/// Directory at the receiving end for the temporaries of all files of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TempDir(Vec<u8>);

impl TempDir {
    /// Wraps a path at the receiving end, absolute or relative as the target.
    pub fn new(path: &[u8]) -> Self {
        Self(path.to_vec())
    }

    /// Returns the path.
    pub fn path(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path, in this directory, beside which the temporary of `target` is created.
    pub fn place_of(&self, target: &[u8]) -> Vec<u8> {
        let name = target.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let mut path = self.0.clone();
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}
