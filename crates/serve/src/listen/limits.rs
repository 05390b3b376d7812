/// How many may be there at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Of those, how many may not have logged in yet (as MaxStartups of sshd, without its dice).
    pub strangers: usize,
    /// And how many of those from one address, or one IPv6 network of 64 bits: whoever holds them
    /// open keeps nobody else out. A copy of ours logs in with eight at a time at most.
    pub strangers_per_source: usize,
    /// Connections of one account.
    pub per_user: usize,
    /// New connections in a second.
    pub per_second: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            strangers: 100,
            strangers_per_source: 20,
            per_user: usize::MAX,
            per_second: usize::MAX,
        }
    }
}
