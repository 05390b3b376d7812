//! Tests of the buffer between two hosts, without threads.

use schedule::{Attributes, ExtraMetadata};
use wire::PacketPool;

use super::*;

/// Replies so far.
#[derive(Default)]
struct Replies(Mutex<Vec<DiskReply>>);

impl DiskReplyReceiver for Replies {
    fn reply(&self, reply: DiskReply) {
        self.0.lock().expect("no test panics here").push(reply);
    }
}

impl Replies {
    fn take(&self) -> Vec<DiskReply> {
        std::mem::take(&mut *self.0.lock().expect("no test panics here"))
    }
}

fn read(job: JobId, offset: u64) -> DiskRequest {
    DiskRequest::Read {
        job,
        offset,
        len: 1000,
        block: PayloadBlock::new(&PacketPool::new(32_768, 8), 32_768, 100, 1000),
    }
}

fn write(job: JobId, offset: u64) -> DiskRequest {
    DiskRequest::Write {
        job,
        offset,
        pieces: vec![Bytes::from(vec![b'a'; 1000])],
    }
}

fn finish(job: JobId, size: u64) -> DiskRequest {
    DiskRequest::FinishTarget {
        job,
        size,
        attributes: Attributes::default(),
        preserve: false,
        fsync: false,
        beyond: ExtraMetadata::default(),
    }
}

/// Bug: an upload that gave up while it waited for data, because the disk at its target was full or
/// its connection was lost, waited for ever for the answer to its READ if its download ended in the
/// meantime.
#[test]
fn an_upload_that_gave_up_waited_for_data_for_ever() {
    let (get, put) = (JobId(1), JobId(2));
    let replies = Arc::new(Replies::default());
    let receiver: Arc<dyn DiskReplyReceiver> = Arc::<Replies>::clone(&replies);
    for late in [false, true] {
        let relay = HostToHostBuffer::new(SourceFileMeta::default());
        let mut requests = vec![read(put, 1000), DiskRequest::CloseSource { job: put }];
        if late {
            requests.reverse();
        }
        requests.insert(0, write(get, 0));
        requests.push(finish(get, 2000));
        for request in requests {
            relay.handle(request, &receiver);
        }
        let replies = replies.take();
        let of_put = replies.iter().filter(|reply| reply.job() == put);
        assert_eq!(of_put.count(), 2, "{replies:?}");
    }
}

/// Bug: the upload of a file with a symlink or a read-only file at its target closed its source and
/// began again. It failed with "the copy failed at the other host" if its download had noticed the
/// first end before; the file was to be read again.
#[test]
fn an_upload_that_begins_again_asks_for_another_buffer() {
    let (get, put) = (JobId(1), JobId(2));
    let replies = Arc::new(Replies::default());
    let receiver: Arc<dyn DiskReplyReceiver> = Arc::<Replies>::clone(&replies);
    let close = || DiskRequest::CloseSource { job: put };
    for begins in [read(put, 0), DiskRequest::AwaitSource { job: put }] {
        let relay = HostToHostBuffer::new(SourceFileMeta::default());
        for request in [write(get, 0), read(put, 0), close()] {
            relay.handle(request, &receiver);
        }
        relay.break_off(other_failed());
        replies.take();
        relay.handle(begins, &receiver);
        let kinds = replies.take().into_iter().map(|reply| match reply {
            DiskReply::Failed { fault, .. } => fault.kind,
            other => panic!("{other:?}"),
        });
        assert_eq!(kinds.collect::<Vec<_>>(), [JobFailureKind::ReadAgain]);
    }
}
