use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use wire::{PayloadBlock, RemainingBytes};

use crate::message::{Init, ReplyKind, Version};
use crate::pending::{PendingRequest, fit};
use crate::{
    Error, Handle, MessageSplitter, MessageSplitterOutput, Reply, Request, RequestId, Response,
    ServerInfo, printable,
};

/// Maximum message length in bytes. OpenSSH sends no message above 256 KiB (SFTP_MAX_MSG_LENGTH);
/// the rest is for servers that apply the limit to the data alone.
pub const MAX_MESSAGE: u32 = 256 * 1024 + 1024;

/// Data length in bytes below which a block is copied behind other requests: one full packet costs
/// less than two half empty ones.
const COPY_BELOW: usize = 8 * 1024;
/// Length in bytes, about one channel packet, from which a buffer of small requests is closed.
const GATHER: usize = 32 * 1024;

/// Order of the two paths in SYMLINK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SymlinkOrder {
    /// Target path first, as in OpenSSH and its followers.
    #[default]
    OpenSsh,
    /// Path of the link first, as the draft defines it.
    Draft,
}

/// Options of a [`SftpClient`] for the server that it talks to.
#[derive(Clone, Debug, Default)]
pub struct SftpClientOptions {
    /// Order in which the server reads the paths of SYMLINK.
    pub symlink_order: SymlinkOrder,
    /// Longest message accepted, in bytes; 0 selects [`MAX_MESSAGE`].
    pub max_message: u32,
}

/// Bytes to send on the channel, in order.
#[derive(Debug)]
pub enum ClientOutput {
    /// Small requests, coalesced.
    Bytes(Vec<u8>),
    /// A WRITE whose data is in the packets that will carry it.
    Block(PayloadBlock),
}

impl ClientOutput {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Block(block) => block.len(),
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First message of every client, with its length: INIT with version 3.
pub const INIT: [u8; 9] = [0, 0, 0, 5, 1, 0, 0, 0, 3];

/// Client side of an SFTP session, without I/O.
///
/// After [`SftpClient::handle_input`], drain [`SftpClient::poll_reply`]; after any call, drain
/// [`SftpClient::poll_output`]. INIT is queued from the start; requests may follow it before
/// VERSION has arrived, if the caller knows the server. After an error the session is over.
#[derive(Debug)]
pub struct SftpClient {
    options: SftpClientOptions,
    next: u32,
    pending: BTreeMap<u32, PendingRequest>,
    splitter: MessageSplitter,
    replies: VecDeque<(RequestId, Reply)>,
    /// Output with the ID of its request, so that a block can be withdrawn.
    out: VecDeque<(Option<RequestId>, ClientOutput)>,
    queued: usize,
    limit: Option<RequestLimit>,
    info: Option<ServerInfo>,
    /// First bytes received, kept until VERSION arrives, to quote them in the error if they are not
    /// SFTP.
    head: Vec<u8>,
    failed: Option<Error>,
}

/// Limit on the requests that the server has at once.
#[derive(Clone, Copy, Debug)]
struct RequestLimit {
    most: usize,
    /// Number of requests that have not been sent.
    unsent: usize,
}

/// Returns the length of the first `most` requests of `bytes`, and their number. INIT is no
/// request: its answer, VERSION, has no ID.
fn first_requests(bytes: &[u8], most: usize) -> (usize, usize) {
    let (mut at, mut count) = (0, 0);
    while let Some((len, [kind, ..])) = bytes.get(at..).and_then(<[u8]>::split_first_chunk::<4>) {
        let is_request = *kind != INIT[4];
        if is_request && count == most {
            break;
        }
        count += usize::from(is_request);
        at += 4 + u32::from_be_bytes(*len) as usize;
    }
    (at.min(bytes.len()), count)
}

/// Returns the number of requests in `output`.
fn requests(output: &ClientOutput) -> usize {
    match output {
        ClientOutput::Bytes(bytes) => first_requests(bytes, usize::MAX).1,
        ClientOutput::Block(_) => 1,
    }
}

impl SftpClient {
    /// Creates a session with INIT queued.
    pub fn new(options: SftpClientOptions) -> Self {
        let bound = match options.max_message {
            0 => MAX_MESSAGE,
            bound => bound,
        };
        let mut client = Self {
            options,
            next: 0,
            pending: BTreeMap::new(),
            splitter: MessageSplitter::streaming_data(bound),
            replies: VecDeque::new(),
            out: VecDeque::new(),
            queued: 0,
            limit: None,
            info: None,
            head: Vec::new(),
            failed: None,
        };
        let init = Init {
            version: 3,
            extensions: RemainingBytes(&[]),
        };
        client.gather(|out| crate::frame(out, |out| init.encode(out)));
        client
    }

    /// Queues a request; returns its ID.
    pub fn request(&mut self, request: &Request<'_>) -> RequestId {
        let len = match request {
            Request::Read { len, .. }
            | Request::GetFile { len, .. }
            | Request::GetFileZstd { len, .. }
            | Request::ReadZstd { len, .. }
            | Request::ReadSparse { len, .. } => *len,
            _ => 0,
        };
        let id = self.expect(request.name(), request.expects(), len);
        self.gather(|out| request.encode(id, out));
        id
    }

    /// Queues a WRITE of the data in `block`, whose reserve must have room for the header
    /// ([`SftpClient::write_reserve`]).
    pub fn write(&mut self, handle: &Handle, offset: u64, block: PayloadBlock) -> RequestId {
        let write = Request::Write {
            handle: handle.as_bytes(),
            offset,
            data: &[],
        };
        self.request_with(&write, block)
    }

    /// Queues a request that ends in data. `request` has empty data; the data is in `block`, whose
    /// reserve must have room for the header ([`SftpClient::reserve_for`]).
    pub fn request_with(&mut self, request: &Request<'_>, block: PayloadBlock) -> RequestId {
        let id = self.expect(request.name(), request.expects(), 0);
        let header = request.encode_before(id, block.len());
        self.send_block(id, &header, block);
        id
    }

    /// Returns the bytes of `request` in front of its data.
    pub fn reserve_for(request: &Request<'_>) -> usize {
        request.encode_before(RequestId(0), 0).len()
    }

    fn send_block(&mut self, id: RequestId, header: &[u8], mut block: PayloadBlock) {
        if block.len() < COPY_BELOW && !block.lies_outside() {
            self.gather(|out| {
                out.extend_from_slice(header);
                for packet in block.packets() {
                    out.extend_from_slice(packet.payload());
                }
            });
        } else {
            block.prepend(header);
            self.queued += block.len();
            self.out.push_back((Some(id), ClientOutput::Block(block)));
        }
    }

    /// Queues a WRITE of zstd data in `block` that decompresses to `len` bytes. The reserve of
    /// `block` must have room for the header ([`SftpClient::write_zstd_reserve`]).
    pub fn write_zstd(
        &mut self,
        handle: &Handle,
        offset: u64,
        len: u32,
        block: PayloadBlock,
    ) -> RequestId {
        let write = Request::WriteZstd {
            handle: handle.as_bytes(),
            offset,
            len,
            data: &[],
        };
        self.request_with(&write, block)
    }

    /// Returns the bytes of a zstd WRITE in front of its data, for a handle of `handle` bytes.
    pub fn write_zstd_reserve(handle: usize) -> usize {
        4 + 1 + 4 + (4 + "write-zstd@longhaul".len()) + 4 + handle + 8 + 4 + 4
    }

    /// Returns the bytes of a WRITE in front of its data, for a handle of `handle` bytes.
    pub fn write_reserve(handle: usize) -> usize {
        4 + 1 + 4 + 4 + handle + 8 + 4
    }

    /// Queues a request to create a symlink at `link` to `points_to`, with the paths in the order
    /// that the server reads.
    pub fn symlink(&mut self, link: &[u8], points_to: &[u8]) -> RequestId {
        let (first, second) = match self.options.symlink_order {
            SymlinkOrder::OpenSsh => (points_to, link),
            SymlinkOrder::Draft => (link, points_to),
        };
        self.request(&Request::Symlink { first, second })
    }

    /// Processes bytes from the channel.
    pub fn handle_input(&mut self, mut input: Bytes) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.take(&mut input).inspect_err(|error| {
            self.failed = Some(error.clone());
        })
    }

    /// Returns the next reply, in order of arrival.
    pub fn poll_reply(&mut self) -> Option<(RequestId, Reply)> {
        self.replies.pop_front()
    }

    /// Returns the next bytes to send.
    pub fn poll_output(&mut self) -> Option<ClientOutput> {
        if let Some(limit) = self.limit {
            return self.poll_limited(limit);
        }
        let (_, output) = self.out.pop_front()?;
        self.queued -= output.len();
        Some(output)
    }

    /// Limits the requests at the server to `most`: further ones wait here for answers. At least
    /// one request is sent.
    pub fn limit_requests(&mut self, most: u64) {
        let most = usize::try_from(most.max(1)).unwrap_or(usize::MAX);
        let unsent = match self.limit {
            Some(limit) => limit.unsent,
            None => self.out.iter().map(|(_, output)| requests(output)).sum(),
        };
        self.limit = Some(RequestLimit { most, unsent });
    }

    /// Returns the number of further requests that the limit permits.
    fn room(&self, limit: RequestLimit) -> usize {
        let sent = self.pending.len().saturating_sub(limit.unsent);
        limit.most.saturating_sub(sent)
    }

    fn poll_limited(&mut self, mut limit: RequestLimit) -> Option<ClientOutput> {
        let room = self.room(limit);
        let (_, output) = self.out.front_mut()?;
        let (len, count) = match output {
            ClientOutput::Block(block) if room > 0 => (block.len(), 1),
            ClientOutput::Block(_) => (0, 0),
            ClientOutput::Bytes(bytes) => first_requests(bytes, room),
        };
        if len == 0 {
            return None;
        }
        limit.unsent = limit.unsent.saturating_sub(count);
        self.limit = Some(limit);
        self.queued -= len;
        if let ClientOutput::Bytes(bytes) = output
            && len < bytes.len()
        {
            let rest = bytes.split_off(len);
            return Some(ClientOutput::Bytes(std::mem::replace(bytes, rest)));
        }
        self.out.pop_front().map(|(_, output)| output)
    }

    /// Returns true if [`SftpClient::poll_output`] has something.
    pub fn has_output(&self) -> bool {
        match (self.limit, self.out.front()) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(limit), Some((_, ClientOutput::Block(_)))) => self.room(limit) > 0,
            (Some(limit), Some((_, ClientOutput::Bytes(bytes)))) => {
                first_requests(bytes, self.room(limit).min(1)).0 > 0
            }
        }
    }

    /// Withdraws a WRITE that still waits for [`SftpClient::poll_output`]; returns false if it was
    /// sent or copied behind other requests.
    pub fn withdraw(&mut self, id: RequestId) -> bool {
        let Some(at) = self.out.iter().position(|(of, _)| *of == Some(id)) else {
            return false;
        };
        if let Some((_, output)) = self.out.remove(at) {
            self.queued -= output.len();
        }
        self.pending.remove(&id.0);
        if let Some(limit) = &mut self.limit {
            limit.unsent = limit.unsent.saturating_sub(1);
        }
        true
    }

    /// Returns the bytes that wait for [`SftpClient::poll_output`].
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Returns the server's version and extensions, once VERSION has arrived.
    pub fn info(&self) -> Option<&ServerInfo> {
        self.info.as_ref()
    }

    /// Returns the number of requests without a reply.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn expect(&mut self, name: &'static str, expects: ReplyKind, len: u32) -> RequestId {
        // IDs repeat after 2^32 requests; an ID that is still in use is skipped.
        while self.pending.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let pending = PendingRequest { name, expects, len };
        self.pending.insert(id, pending);
        if let Some(limit) = &mut self.limit {
            limit.unsent += 1;
        }
        RequestId(id)
    }

    fn gather(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let full =
            !matches!(self.out.back(), Some((_, ClientOutput::Bytes(b))) if b.len() < GATHER);
        if full {
            let bytes = Vec::with_capacity(512);
            self.out.push_back((None, ClientOutput::Bytes(bytes)));
        }
        if let Some((_, ClientOutput::Bytes(bytes))) = self.out.back_mut() {
            let before = bytes.len();
            // A second request usually means that many follow.
            if before > 0 && bytes.capacity() < GATHER {
                bytes.reserve_exact(GATHER + COPY_BELOW);
            }
            write(bytes);
            self.queued += bytes.len() - before;
        }
    }

    fn take(&mut self, input: &mut Bytes) -> Result<(), Error> {
        if self.info.is_none() {
            self.take_first(input)?;
        }
        while let Some(piece) = self.splitter.next(input)? {
            match piece {
                MessageSplitterOutput::Message(message) => self.message(&message)?,
                // Only a splitter that streams WRITEs returns this.
                MessageSplitterOutput::Write { .. } => {}
                MessageSplitterOutput::Data {
                    id,
                    total,
                    at,
                    bytes,
                } => self.data(id, total, at, bytes)?,
            }
        }
        Ok(())
    }

    /// Processes input up to and including VERSION.
    fn take_first(&mut self, input: &mut Bytes) -> Result<(), Error> {
        const KEPT: usize = 400;
        let room = KEPT.saturating_sub(self.head.len()).min(input.len());
        self.head.extend_from_slice(&input[..room]);
        let not_sftp = |head: &[u8], error| {
            let text = head
                .iter()
                .take(4)
                .all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace() || *b == 0x1b);
            if text {
                let text = printable(head.trim_ascii(), 300);
                Error::NotSftp { text }
            } else {
                error
            }
        };
        let piece = match self.splitter.next(input) {
            Ok(Some(piece)) => piece,
            Ok(None) => return Ok(()),
            Err(error) => return Err(not_sftp(&self.head, error)),
        };
        let MessageSplitterOutput::Message(message) = piece else {
            return Err(Error::OutOfOrder);
        };
        let malformed = |cause| Error::Malformed {
            message: "VERSION",
            cause,
        };
        let version =
            Version::decode(&message).map_err(|cause| not_sftp(&self.head, malformed(cause)))?;
        if version.version != 3 {
            return Err(Error::Version(version.version));
        }
        self.head = Vec::new();
        self.info = Some(ServerInfo {
            version: version.version,
            extensions: ServerInfo::read_extensions(version.extensions.0).map_err(malformed)?,
            limits: None,
        });
        Ok(())
    }

    fn data(&mut self, id: u32, total: u32, at: u32, bytes: Bytes) -> Result<(), Error> {
        let pending = *self.pending.get(&id).ok_or(Error::UnknownId(id))?;
        if !matches!(
            pending.expects,
            ReplyKind::Data | ReplyKind::Packed | ReplyKind::Sparse
        ) {
            return Err(Error::WrongReply {
                request: pending.name,
                reply: 103,
            });
        }
        if total > pending.len {
            return Err(Error::TooMuchData {
                asked: pending.len,
                got: total,
            });
        }
        let last = u64::from(at) + bytes.len() as u64 == u64::from(total);
        if last {
            self.pending.remove(&id);
        }
        let reply = Reply::Data { at, bytes, last };
        self.replies.push_back((RequestId(id), reply));
        Ok(())
    }

    fn message(&mut self, message: &Bytes) -> Result<(), Error> {
        let malformed = |cause| Error::Malformed {
            message: Response::name_of(message.first().copied().unwrap_or(0)),
            cause,
        };
        let (id, response) = Response::decode(message).map_err(malformed)?;
        let pending = self.pending.remove(&id.0).ok_or(Error::UnknownId(id.0))?;
        let reply = fit(&pending, message, response, malformed)?;
        if let (Reply::Limits(limits), Some(info)) = (&reply, &mut self.info) {
            info.limits = Some(*limits);
        }
        self.replies.push_back((id, reply));
        Ok(())
    }
}
