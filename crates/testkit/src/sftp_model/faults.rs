use sftp::StatusCode;

/// Fault that a test injects into the SFTP model at one request.
#[derive(Clone, Debug)]
pub struct InjectedFault {
    /// Type of the request, by [`sftp::Request::name`]; `None` counts all requests.
    pub kind: Option<&'static str>,
    /// Index among the requests of that type, from 0.
    pub nth: usize,
    /// Effect of the fault.
    pub act: Act,
}

/// Effect of a fault: the answer that the client gets instead of the right one.
#[derive(Clone, Debug)]
pub enum Act {
    /// The request is not carried out, and this status is the answer.
    Status(StatusCode),
    /// The request is carried out, and this status is the answer.
    Denied(StatusCode),
    /// The request is not carried out; the answer is FAILURE with the words of ENOSPC.
    Full,
    /// The handle in the answer is not the one in the server's table.
    OtherHandle,
    /// The answer has the id of a request that was never made.
    OtherId,
    /// The answer is truncated, with its length changed to match.
    Truncated,
    /// The answer announces this many bytes.
    Length(u32),
    /// The request is not carried out, and the answer is an EXTENDED_REPLY with this content.
    Reply(Vec<u8>),
    /// The request is not carried out, and the answer is DATA with this content.
    Data(Vec<u8>),
    /// The request is not answered.
    Silence,
}
