use sftp::StatusCode;

/// Something to go wrong at one request.
#[derive(Clone, Debug)]
pub struct Inject {
    /// Which kind, by [`sftp::Request::name`]; `None` counts all.
    pub kind: Option<&'static str>,
    /// Which of that kind, from 0.
    pub nth: usize,
    /// What happens.
    pub act: Act,
}

/// How it goes wrong.
#[derive(Clone, Debug)]
pub enum Act {
    /// It is not done, and this is the answer.
    Status(StatusCode),
    /// The handle in the answer is another than the server's table says.
    OtherHandle,
    /// The answer names a request that was never made.
    OtherId,
    /// The answer ends early, its length changed to match.
    Truncated,
    /// The answer announces this many bytes.
    Length(u32),
    /// It is not done, and the answer is an EXTENDED_REPLY with this.
    Reply(Vec<u8>),
    /// There is no answer.
    Silence,
}
