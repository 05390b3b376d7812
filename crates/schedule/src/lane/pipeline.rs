//! Requests in flight on a lane's channel.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sftp::{ClientOutput, Reply, Request, RequestId, SftpClient};
use wire::PayloadBlock;

use super::OldestRequest;
use super::config::LaneConfig;
use super::request_purpose::RequestPurpose;
use crate::depth::RequestStamp;
use crate::{InflightLimit, JobId};

/// SFTP client of a lane with its requests in flight, their limits and the pace.
#[derive(Debug)]
pub(super) struct RequestPipeline {
    client: SftpClient,
    now: Instant,
    sent: BTreeMap<RequestId, SentRequest>,
    /// Time of the last answer.
    answered_at: Instant,
    /// Last request that was answered, in the order of sending.
    last_answered: Option<RequestId>,
    bytes: InflightLimit,
    requests: InflightLimit,
    /// Bytes that may still be requested or sent, if the owner sets a pace.
    pace: Option<u64>,
    /// Total bytes requested and sent.
    paced: u64,
    /// Lowest response time of a READ or WRITE since it was last taken.
    answer_time: Option<Duration>,
    /// Number of times that the limits kept the lane from sending.
    stalls: u64,
}

/// A request in flight.
#[derive(Debug)]
struct SentRequest {
    job: Option<JobId>,
    what: RequestPurpose,
    at: Instant,
    /// Number of requests in flight when this one was sent.
    ahead: u64,
    bytes: RequestStamp,
    request: RequestStamp,
}

/// Weight of a request in bytes, in addition to its data.
const OVERHEAD: u64 = 64;
/// Number of bytes that may be in flight beyond the depth before another file is opened.
const AHEAD: u64 = 2 << 20;
/// Number of bytes of small files that may be in flight beyond the capacity of the path. Such
/// requests wait in sftp-server, which moves all of them in memory repeatedly: 17,900 files of 4
/// KiB per second with 256 requests (270 KiB) waiting, 11,100 with 1,024, 2,000 with 4,096
/// (docs/design/0003-small-files.md).
const SMALL_AHEAD: u64 = 640 << 10;
/// Latency from which saving slow-start time pays.
const LONG: Duration = Duration::from_millis(10);
/// Files count as small if the mean request moves fewer bytes.
const SMALL: u64 = 16 << 10;
/// Rate in bytes per second at which both ends rebuild a file by delta: hashed, copied and hashed
/// again (docs/design/0009-delta.md).
const REBUILT: f64 = 300e6;
/// Number of bytes after which a lane's rate counts as known.
const MEASURED: u64 = 64 << 20;
/// Number of bytes that READs may ask for while the rate of the path is unknown. With 256 and 512
/// KiB, downloads of 64 MiB took as long.
const LEAST_READ: u64 = 1 << 20;
/// Number of bytes that the disk side may read beyond the bytes that may be in flight.
const READ_AHEAD: u64 = 1 << 20;

impl RequestPipeline {
    pub(super) fn new(config: &LaneConfig, now: Instant) -> Self {
        let options = sftp::SftpClientOptions {
            symlink_order: config.symlink_order,
            max_message: 0,
        };
        Self {
            client: SftpClient::new(options),
            now,
            sent: BTreeMap::new(),
            answered_at: now,
            last_answered: None,
            bytes: InflightLimit::new(config.bytes),
            requests: InflightLimit::new(config.requests),
            pace: None,
            paced: 0,
            answer_time: None,
            stalls: 0,
        }
    }

    /// Sets the time.
    pub(super) fn at(&mut self, now: Instant) {
        self.now = now;
    }

    /// Returns the time.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Returns the SFTP client.
    pub(super) fn client(&self) -> &SftpClient {
        &self.client
    }

    /// Takes bytes from the channel.
    pub(super) fn handle_input(&mut self, bytes: bytes::Bytes) -> Result<(), sftp::Error> {
        self.client.handle_input(bytes)
    }

    /// Returns the next reply of the server.
    pub(super) fn poll_reply(&mut self) -> Option<(RequestId, Reply)> {
        self.client.poll_reply()
    }

    /// Returns the next bytes for the channel.
    pub(super) fn poll_output(&mut self) -> Option<ClientOutput> {
        self.client.poll_output()
    }

    /// Sends a request that is expected to bring `data` bytes.
    pub(super) fn request(
        &mut self,
        job: Option<JobId>,
        what: RequestPurpose,
        request: &Request<'_>,
        data: u64,
    ) {
        let id = self.client.request(request);
        self.sent(id, job, what, data);
    }

    /// Sends a request with its data in `block`.
    pub(super) fn request_with(
        &mut self,
        job: JobId,
        what: RequestPurpose,
        request: &Request<'_>,
        block: PayloadBlock,
    ) {
        let data = block.len() as u64;
        let id = self.client.request_with(request, block);
        self.sent(id, Some(job), what, data);
    }

    /// Sends a WRITE; `packed` is the decompressed size of `block`, if it is compressed.
    pub(super) fn write(
        &mut self,
        job: JobId,
        handle: &sftp::Handle,
        offset: u64,
        block: PayloadBlock,
        packed: Option<u64>,
    ) {
        let data = block.len() as u64;
        let (id, len) = match packed {
            Some(len) => {
                let id = self.client.write_zstd(handle, offset, len as u32, block);
                (id, len)
            }
            None => (self.client.write(handle, offset, block), data),
        };
        let what = RequestPurpose::Write { offset, len };
        self.sent(id, Some(job), what, data);
    }

    /// Sends a SYMLINK in the server's argument order.
    pub(super) fn symlink(
        &mut self,
        job: JobId,
        what: RequestPurpose,
        link: &[u8],
        points_to: &[u8],
    ) {
        let id = self.client.symlink(link, points_to);
        self.sent(id, Some(job), what, 0);
    }

    fn sent(&mut self, id: RequestId, job: Option<JobId>, what: RequestPurpose, data: u64) {
        self.paced += data + OVERHEAD;
        self.pace = self.pace.map(|left| left.saturating_sub(data + OVERHEAD));
        let sent = SentRequest {
            job,
            what,
            at: self.now,
            ahead: self.requests.in_flight(),
            bytes: self.bytes.on_sent(self.now, data + OVERHEAD),
            request: self.requests.on_sent(self.now, 1),
        };
        self.sent.insert(id, sent);
    }

    /// Returns job and purpose of the request that a reply answers; `last` completes the request.
    pub(super) fn answered(
        &mut self,
        id: RequestId,
        last: bool,
    ) -> Option<(Option<JobId>, RequestPurpose)> {
        self.answered_at = self.now;
        if !last {
            return self.sent.get(&id).map(|s| (s.job, s.what));
        }
        let sent = self.sent.remove(&id)?;
        self.last_answered = self.last_answered.max(Some(id));
        if sent.what.moves_data() {
            let took = self.now.saturating_duration_since(sent.at);
            self.answer_time = Some(self.answer_time.map_or(took, |least| least.min(took)));
        }
        self.bytes.on_answered(self.now, sent.bytes);
        self.requests.on_answered(self.now, sent.request);
        Some((sent.job, sent.what))
    }

    /// Returns the first unanswered request, without its path, and the job that sent it.
    pub(super) fn first_unanswered(&self) -> Option<(OldestRequest, Option<JobId>)> {
        let (id, sent) = self.sent.first_key_value()?;
        let oldest = OldestRequest {
            request: sent.what.name(),
            path: None,
            since: sent.at.max(self.answered_at),
            ahead: sent.ahead,
            overtaken: self.last_answered > Some(*id),
            takes_time: sent.what.takes_time(),
        };
        Some((oldest, sent.job))
    }

    /// Withdraws unsent WRITEs of `job`; returns their number.
    pub(super) fn withdraw_writes(&mut self, job: JobId) -> usize {
        if self.client.queued() == 0 {
            return 0;
        }
        let of_job =
            |s: &SentRequest| s.job == Some(job) && matches!(s.what, RequestPurpose::Write { .. });
        let writes = self.sent.iter().filter(|(_, s)| of_job(s));
        let ids: Vec<RequestId> = writes.map(|(id, _)| *id).collect();
        let mut withdrawn = 0;
        for id in ids {
            if self.client.withdraw(id)
                && let Some(sent) = self.sent.remove(&id)
            {
                self.bytes.on_withdrawn(sent.bytes);
                self.requests.on_withdrawn(sent.request);
                withdrawn += 1;
            }
        }
        withdrawn
    }

    /// Returns the limit of the bytes in flight.
    pub(super) fn bytes(&self) -> &InflightLimit {
        &self.bytes
    }

    /// Returns the limit of the requests in flight.
    pub(super) fn requests(&self) -> &InflightLimit {
        &self.requests
    }

    /// Limits the requests in flight to `most`.
    pub(super) fn limit_requests(&mut self, most: u64) {
        self.requests.limit(most);
        self.client.limit_requests(most);
    }

    /// Returns the total bytes requested and sent.
    pub(super) fn paced(&self) -> u64 {
        self.paced
    }

    /// Sets the number of bytes that may be requested or sent.
    pub(super) fn set_pace(&mut self, bytes: u64) {
        self.pace = Some(bytes);
    }

    /// Returns true if the pace leaves room for `bytes`.
    pub(super) fn has_pace_for(&self, bytes: u64) -> bool {
        self.pace.is_none_or(|left| left >= bytes)
    }

    /// Returns and forgets the lowest response time of a READ or WRITE.
    pub(super) fn take_answer_time(&mut self) -> Option<Duration> {
        self.answer_time.take()
    }

    /// Returns the number of times that the limits kept the lane from sending.
    pub(super) fn stalls(&self) -> u64 {
        self.stalls
    }

    /// Returns true if sending a file takes longer than finding unchanged parts by hashing: the
    /// path is long, or its measured rate is low.
    pub(super) fn sends_slower_than_hashing(&self) -> bool {
        let measured = self.paced >= MEASURED;
        let slow = measured && self.bytes.rate().is_some_and(|rate| rate < REBUILT);
        slow || self.is_long()
    }

    /// Returns true if the path is so long that the number of bytes matters from the start.
    pub(super) fn is_long(&self) -> bool {
        self.bytes.latency().is_some_and(|latency| latency >= LONG)
    }

    /// Returns true if a small request may be sent while the disk side reads `reading` bytes.
    pub(super) fn has_room(&mut self, reading: u64) -> bool {
        if !self.is_in_pace(reading) {
            return false;
        }
        let requests = self.requests.in_flight() < self.requests.target();
        let flying = self.bytes.in_flight() + reading;
        let bytes = flying < self.bytes.target() + AHEAD;
        if !self.note(requests, bytes) {
            return false;
        }
        let small = flying < self.requests.in_flight() * SMALL;
        // Capacity of the path: its best so far, or the expected amount of the next round trip.
        let holds = match self.bytes.latency() {
            Some(latency) if latency >= LONG => self.bytes.target_of(1.0).max(self.bytes.soon()),
            // On a short path, one burst of answers spans many round trips.
            _ => self.bytes.target_of(2.0),
        };
        let may = !small || flying < holds + SMALL_AHEAD;
        self.stalls += u64::from(!may);
        may
    }

    /// Returns true if more upload data may be read from the disk, in pieces of `piece` bytes,
    /// beside the `reading` bytes that are being read.
    pub(super) fn may_read_disk(&mut self, reading: u64, piece: u32) -> bool {
        if !self.is_in_pace(reading) {
            return false;
        }
        // Each disk read becomes a WRITE, and a server may drop requests beyond its queue.
        let coming = reading.div_ceil(u64::from(piece.max(1)));
        let requests = self.requests.in_flight() + coming < self.requests.target();
        let bytes = self.bytes.in_flight() < self.bytes.target()
            && self.bytes.in_flight() + reading < self.bytes.target() + READ_AHEAD;
        self.note(requests, bytes)
    }

    /// Returns true if another READ may be sent.
    pub(super) fn may_read_remote(&mut self, reading: u64) -> bool {
        if !self.is_in_pace(reading) {
            return false;
        }
        let requests = self.requests.in_flight() < self.requests.target();
        let bytes = self.bytes.in_flight() < self.most_read();
        self.note(requests, bytes)
    }

    /// Returns the bytes that READs may ask for. Over a long path the queue in the server is kept
    /// short.
    fn most_read(&self) -> u64 {
        match self.bytes.latency() {
            Some(latency) if latency < LONG => self.bytes.target(),
            _ => self.bytes.short_queue(LEAST_READ),
        }
    }

    fn is_in_pace(&self, reading: u64) -> bool {
        self.pace.is_none_or(|left| left > reading)
    }

    fn note(&mut self, requests: bool, bytes: bool) -> bool {
        if !requests {
            self.requests.note_blocked();
        }
        if !bytes {
            self.bytes.note_blocked();
        }
        let may = requests && bytes;
        self.stalls += u64::from(!may);
        may
    }
}
