//! Environment of a real copy: sessions on their own threads, the system's clock and files.

use std::cell::RefCell;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crossbeam_channel::{Receiver, Select, TryRecvError};
use schedule::{Job, RemotePath, TransferDirection};
use sftp::ServerInfo;

use super::environment::{
    ConnectedSession, CopyEnvironment, NextEventResult, RemoteCommandStep, RemoteSession,
};
use super::equal_names::NamedSource;
use super::local_file_ops::LocalFileOps;
use super::this_machine::LocalFiles;
use super::transfer_estimate::{FileCountThread, TransferEstimate};
use super::wait_conditions::WaitConditions;
use super::{HostId, SessionConnector};
use crate::cancel::CancelToken;
use crate::connect::ConnectError;
use crate::disk::{HostToHostBuffer, MadeDirectories, OpenDirectoryCache, ReadBackCheck};
use crate::journal::{JournalFile, JournalStore, boot_here};
use crate::session::{RemoteCommandId, Session, SessionEvent, SessionSummary};
use crate::sums::ChecksumLedger;

/// Environment whose sessions, disks and journal work on other threads.
pub(super) struct ThreadedEnvironment<'a> {
    connect: &'a dyn SessionConnector,
    cancel: &'a CancelToken,
    /// Receivers of the sessions' events, by the session's number.
    sessions: RefCell<Vec<Receiver<SessionEvent>>>,
    /// Signal of the journal that records are durable, once there is a journal.
    waker: Rc<RefCell<Option<Receiver<()>>>>,
    conditions: RefCell<WaitConditions>,
    made: Arc<MadeDirectories>,
}

impl<'a> ThreadedEnvironment<'a> {
    pub(super) fn new(connect: &'a dyn SessionConnector, cancel: &'a CancelToken) -> Self {
        Self {
            connect,
            cancel,
            sessions: RefCell::default(),
            waker: Rc::default(),
            conditions: RefCell::default(),
            made: Arc::default(),
        }
    }

    /// Runs a copy to its end on this thread.
    pub(super) fn drive<T>(&self, copy: impl Future<Output = T>) -> T {
        let mut copy = pin!(copy);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match copy.as_mut().poll(&mut context) {
                Poll::Ready(result) => return result,
                Poll::Pending => self.wait(&self.conditions.take()),
            }
        }
    }

    /// Blocks until `conditions` is fulfilled.
    fn wait(&self, conditions: &WaitConditions) {
        let sessions = self.sessions.borrow();
        let waker = self.waker.borrow();
        let mut select = Select::new();
        for number in &conditions.sessions {
            if let Some(events) = sessions.get(*number) {
                select.recv(events);
            }
        }
        if let Some(waker) = waker.as_ref().filter(|_| conditions.journal) {
            select.recv(waker);
        }
        if conditions.cancel {
            select.recv(self.cancel.receiver());
        }
        match conditions.until {
            Some(until) => drop(select.ready_deadline(until)),
            None => drop(select.ready()),
        }
    }
}

impl CopyEnvironment for ThreadedEnvironment<'_> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn random(&self) -> u64 {
        let mut number = [0; 8];
        // O_EXCL guarantees unique names.
        let _ = aws_lc_rs::rand::fill(&mut number);
        u64::from_be_bytes(number)
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    fn connect(
        &self,
        host: HostId,
        coming: Option<TransferEstimate>,
    ) -> Result<ConnectedSession, ConnectError> {
        let session = self.connect.connect(host, coming, self.cancel)?;
        let mut sessions = self.sessions.borrow_mut();
        sessions.push(session.events().clone());
        session.directories().share_made(Arc::clone(&self.made));
        Ok(ConnectedSession {
            number: sessions.len() - 1,
            local: Rc::new(LocalFiles::new(
                Arc::clone(session.directories()),
                self.cancel,
            )),
            remote: Box::new(session),
            login: self.connect.login(host),
        })
    }

    fn admit(&self, sources: &[NamedSource], differ: bool) -> bool {
        self.connect.admit(sources, differ, self.cancel)
    }

    fn name(&self, host: HostId) -> String {
        self.connect.name(host)
    }

    fn identity(&self, host: HostId) -> String {
        self.connect.identity(host)
    }

    fn are_one(&self, one: HostId, other: HostId) -> bool {
        self.connect.are_one(one, other)
    }

    fn ledger(&self) -> Option<Arc<ChecksumLedger>> {
        self.connect.ledger()
    }

    fn local(&self) -> Rc<dyn LocalFileOps> {
        let directories = Arc::<OpenDirectoryCache>::default();
        directories.share_made(Arc::clone(&self.made));
        Rc::new(LocalFiles::new(directories, self.cancel))
    }

    fn count(&self, paths: &[Vec<u8>], recursive: bool) -> FileCountThread {
        FileCountThread::of(paths, recursive)
    }

    fn journal(
        &self,
        command: &[u8],
        target: Option<&Path>,
        folder: Option<&Path>,
    ) -> Box<dyn JournalStore> {
        let waker = Rc::clone(&self.waker);
        Box::new(JournalFile::new(command, target, folder, waker))
    }

    fn boot(&self) -> Vec<u8> {
        boot_here()
    }

    fn conditions(&self, conditions: WaitConditions) {
        *self.conditions.borrow_mut() = conditions;
    }
}

impl RemoteSession for Session {
    fn submit(&self, job: Job, size: Option<u64>) {
        self.submit(job, size);
    }

    fn submit_relayed(&self, job: Job, relay: Arc<HostToHostBuffer>, size: Option<u64>) {
        self.submit_relayed(job, relay, size);
    }

    fn submit_check(&self, job: Job, check: Arc<ReadBackCheck>) {
        self.submit_check(job, check);
    }

    fn command(&self, id: RemoteCommandId, step: RemoteCommandStep) {
        match step {
            RemoteCommandStep::Run(start) => self.exec(id, start),
            RemoteCommandStep::Input(bytes) => self.exec_input(id, bytes),
            RemoteCommandStep::EndInput => self.exec_end(id),
            RemoteCommandStep::Stop => self.exec_stop(id),
        }
    }

    fn expect(&self, direction: TransferDirection, files: u64, bytes: u64) {
        self.expect(direction, files, bytes);
    }

    fn foresee(&self, direction: TransferDirection, files: u64, bytes: u64) {
        self.foresee(direction, files, bytes);
    }

    fn hold_lists(&self, hold: bool) {
        self.hold_lists(hold);
    }

    fn hold_root(&self, root: RemotePath) {
        self.hold_root(root);
    }

    fn cancel(&self, reason: &str) {
        self.cancel(reason);
    }

    fn cancel_resumable(&self, reason: &str) {
        self.cancel_resumable(reason);
    }

    fn heard(&self) -> Option<Instant> {
        self.heard()
    }

    fn server_info(&self) -> Option<&ServerInfo> {
        self.server_info()
    }

    fn far_info(&self) -> Option<&ServerInfo> {
        self.far_info()
    }

    fn lists_trees(&self) -> bool {
        self.lists_trees()
    }

    fn is_settled(&self) -> bool {
        self.is_settled()
    }

    fn was_file(&self, path: &[u8]) -> bool {
        self.connection_source()
            .is_some_and(|connection_source| connection_source.was_file(path))
    }

    fn note_place(&self, path: &[u8], file: bool) {
        if let Some(connection_source) = self.connection_source() {
            connection_source.note_place(path, file);
        }
    }

    fn next_event(&self) -> NextEventResult {
        match self.events().try_recv() {
            Ok(event) => NextEventResult::Event(event),
            Err(TryRecvError::Empty) => NextEventResult::Pending,
            Err(TryRecvError::Disconnected) => NextEventResult::Ended,
        }
    }

    fn finish(self: Box<Self>) -> SessionSummary {
        Self::finish(*self)
    }
}
