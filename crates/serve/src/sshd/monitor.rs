//! The privileged side of one connection: it reads no client input and does not trust the process
//! that does.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ssh::key::{PrivateKey, PublicKey};
use tracing::{Span, field, info};
use wire::{WireError, escape};

use super::accounts::KeyAuthorizer;
use super::connection::{self, LoggedInConnection};
use super::connection_limiter::ConnectionPermit;
use super::keys::LoginKey;
use super::message::{
    BeginSession, ConnectionHandover, EndedWithoutLogin, HostKeyProofRequest, HostKeySignRequest,
    KeyCheckRequest, KeyQuery, KeyVerdict, LogMessage, SessionEnded, SignatureCheckRequest,
    SignatureReply,
};
use super::monitor_message_socket::{MessageBuffer, MonitorMessageSocket, nonsense, readable};
use super::refusal::KeyRefusal;
use super::signing::{prove_with, sign_with};
use super::spare_processes::ConnectionProcesses;
use super::untrusted_log::{ConnectionAlgorithms, escaped, fingerprint, tell};
use super::{ServedClientSettings, ServerSettings, ServerShared, StopSignal};
use crate::TransferCounters;
use crate::error::ConnectionEndCause;

/// Extra time before the monitor enforces the login time; the preauth process tells the client in
/// time by itself.
const SLACK: Duration = Duration::from_secs(2);
/// Maximum number of key exchanges before the login: the first one and repeated ones.
const MOST_SIGNATURES: u32 = 8;
/// Maximum number of questions about keys: six refusals, and an accepted key may be asked about
/// twice.
const MOST_QUESTIONS: u32 = 32;
/// Maximum number of log lines before the login.
const MOST_LINES: u32 = 64;
/// Refusals are sent at multiples of this time after the question, so that timing does not tell the
/// reason.
const BEAT: Duration = Duration::from_millis(20);

/// State of one connection in the monitor.
pub(super) struct MonitoredConnection<'s> {
    settings: &'s ServerSettings,
    peer: SocketAddr,
    client: TcpStream,
    shared: &'s ServerShared,
    place: ConnectionPermit,
    template: Option<Arc<MonitorMessageSocket>>,
    exchange: Option<FirstKeyExchange>,
    signatures: u32,
    questions: u32,
    lines: u32,
    /// The requested account and the authorizer for its keys.
    asked: Option<(Vec<u8>, KeyAuthorizer)>,
    /// The key that the authorizer accepted with a signature.
    proved: Option<LoginKey>,
}

/// The first key exchange, which sets the session identifier.
struct FirstKeyExchange {
    session_id: Vec<u8>,
    host_key: Arc<PrivateKey>,
}

impl<'s> MonitoredConnection<'s> {
    pub(super) fn new(
        settings: &'s ServerSettings,
        shared: &'s ServerShared,
        (client, peer): (TcpStream, SocketAddr),
        place: ConnectionPermit,
    ) -> Self {
        Self {
            settings,
            peer,
            client,
            shared,
            place,
            template: None,
            exchange: None,
            signatures: 0,
            questions: 0,
            lines: 0,
            asked: None,
            proved: None,
        }
    }

    /// Lets the client log in and serves it until it leaves.
    ///
    /// # Errors
    /// The reason for an abnormal end.
    pub(super) fn run(
        mut self,
        ready: ConnectionProcesses,
        stopping: &StopSignal,
    ) -> Result<(), ConnectionEndCause> {
        let until = Instant::now() + self.settings.login_time + SLACK;
        let (preauth, template) = ready.into_parts();
        self.template = template;
        preauth.link().hand(&[self.client.as_fd()])?;
        let message = self.log_in(preauth.link(), until, stopping);
        // The preauth process, even if compromised, is gone before the client is served.
        drop(preauth);
        let message = message?;
        let nobody =
            || io::Error::other("internal error: a connection was passed on without a login");
        let ((user, judge), entrant) = self
            .asked
            .take()
            .zip(self.proved.take())
            .ok_or_else(nobody)?;
        let host_key = self.exchange.as_ref().map(|e| e.host_key.public());
        let protection = ConnectionAlgorithms::of(&message, host_key.map(PublicKey::key_type))?;
        let user = escape::field(&user);
        protection.tell_login(&user, &entrant);
        Span::current().record("user", field::display(&user));
        self.shared.figures.logged_in();
        self.place.known();
        let served = self.settings.served(&entrant, judge.account());
        self.serve(&served, judge, message, stopping)
    }

    /// Answers the preauth process until the client is logged in.
    fn log_in(
        &mut self,
        link: &MonitorMessageSocket,
        until: Instant,
        stopping: &StopSignal,
    ) -> Result<MessageBuffer, ConnectionEndCause> {
        loop {
            let [said, stop] = readable([link.as_fd(), stopping.0.as_fd()], Some(until))?;
            if stop {
                return Err(ConnectionEndCause::Stopped);
            }
            if Instant::now() >= until {
                return Err(ConnectionEndCause::LoginTime);
            }
            if !said {
                continue;
            }
            let message = link.receive()?;
            let Some(number) = message.first().copied() else {
                return Err(ConnectionEndCause::Preauth);
            };
            match number {
                HostKeySignRequest::NUMBER => {
                    let blob = self.sign_early(&message)?;
                    link.send(&SignatureReply { blob: &blob }.to_bytes())?;
                }
                KeyQuery::NUMBER | SignatureCheckRequest::NUMBER => {
                    let asked = Instant::now();
                    let verdict = self.decide(&message)?;
                    if !verdict.allowed {
                        on_the_beat(asked);
                    }
                    link.send(&verdict.to_bytes())?;
                }
                LogMessage::NUMBER => {
                    self.lines += 1;
                    if self.lines <= MOST_LINES {
                        tell(&message)?;
                    }
                }
                ConnectionHandover::NUMBER => return Ok(message),
                EndedWithoutLogin::NUMBER => {
                    let why = EndedWithoutLogin::decode(&message).map_err(nonsense)?.why;
                    return match why {
                        b"" => Err(ConnectionEndCause::Gone),
                        why => Err(ConnectionEndCause::Ended(escaped(why))),
                    };
                }
                number => return Err(nonsense(unexpected(number)).into()),
            }
        }
    }

    /// Signs for a key exchange before the login. The first one sets the session identifier.
    fn sign_early(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        self.signatures += 1;
        if self.signatures > MOST_SIGNATURES {
            return Err(io::Error::other(
                "the client requested too many key exchanges before the login",
            ));
        }
        let sign = HostKeySignRequest::decode(message).map_err(nonsense)?;
        let (host_key, blob) = sign_with(self.settings, &sign)?;
        if self.exchange.is_none() {
            self.exchange = Some(FirstKeyExchange {
                session_id: sign.hash.to_vec(),
                host_key,
            });
        }
        Ok(blob)
    }

    /// Decides whether a key could log in to an account, or does with this signature.
    fn decide(&mut self, message: &[u8]) -> io::Result<KeyVerdict> {
        self.questions += 1;
        if self.questions > MOST_QUESTIONS {
            return Err(io::Error::other(
                "the client offered too many keys: set IdentitiesOnly yes and an IdentityFile in \
                 its ssh_config",
            ));
        }
        let prove = question(message)?;
        let exchange = self.exchange.as_ref();
        let exchange = exchange.ok_or_else(|| {
            io::Error::other(
                "the client sent SSH_MSG_USERAUTH_REQUEST before the first key exchange (SSH \
                 protocol error)",
            )
        })?;
        let proved = message.first() == Some(&SignatureCheckRequest::NUMBER);
        let (user, judge) = match &mut self.asked {
            Some(asked) => asked,
            asked => {
                let entrance = &self.settings.entrance;
                let judge = entrance.judge(
                    prove.user,
                    &self.client,
                    self.peer,
                    self.settings,
                    self.template.as_deref(),
                )?;
                asked.insert((prove.user.to_vec(), judge))
            }
        };
        if user != prove.user {
            return Err(io::Error::other(
                "the client requested two accounts on one connection",
            ));
        }
        let decided = judge.decide(&KeyCheckRequest {
            blob: prove.blob,
            authority: prove.authority,
            signed_len: prove.signed_len,
            proved,
            session_id: &exchange.session_id,
            host_key: exchange.host_key.public_blob(),
            algorithm: prove.algorithm,
            host_bound: prove.host_bound,
            signature: prove.signature,
        })?;
        let mut full = false;
        let decided = match decided {
            Ok(entrant) if proved => {
                let room = self.place.count_for(
                    &judge.account().name,
                    judge.claim(),
                    &self.settings.limits,
                );
                full = room.is_err();
                room.map(|()| entrant).map_err(KeyRefusal::Full)
            }
            decided => decided,
        };
        let allowed = decided.is_ok();
        match decided {
            Ok(entrant) => {
                if proved {
                    self.proved = Some(entrant);
                }
            }
            Err(why) => {
                self.shared.figures.refused();
                tell_refusal(user, &prove, &why);
            }
        }
        Ok(KeyVerdict { allowed, full })
    }

    /// Serves a logged-in client, in an account process or in this thread.
    fn serve(
        self,
        served: &ServedClientSettings,
        judge: KeyAuthorizer,
        message: MessageBuffer,
        stopping: &StopSignal,
    ) -> Result<(), ConnectionEndCause> {
        let logged_in = ConnectionHandover::decode(&message).map_err(nonsense)?;
        let Self {
            settings,
            shared,
            client,
            exchange,
            // The permit is held until the connection ends.
            place: _place,
            ..
        } = self;
        let over = |moved: TransferCounters| {
            let TransferCounters {
                files,
                sent,
                received,
            } = moved;
            shared.figures.session_ended(moved);
            info!(opened = files, sent, received, "session closed");
        };
        let Some(account) = judge.into_process() else {
            let keys = settings.host_keys.iter().cloned();
            let handed = LoggedInConnection::new(
                keys.map(|key| key as _).collect(),
                &settings.algorithms,
                (logged_in.state, logged_in.unread),
            );
            drop(message);
            let served = (served, &shared.losses);
            return connection::serve(served, client, handed, &over, stopping);
        };
        let json = serde_json::to_vec(served).map_err(io::Error::other)?;
        let begin = BeginSession {
            served: &json,
            state: logged_in.state,
            unread: logged_in.unread,
        };
        account.link().send(&begin.to_bytes())?;
        // From here on only the account process holds the connection and its keys.
        drop((message, client));
        let session_id = exchange.as_ref().map(|first| &*first.session_id);
        follow(settings, account.link(), session_id, &over)
    }
}

/// Answers the account process until it ends.
fn follow(
    settings: &ServerSettings,
    link: &MonitorMessageSocket,
    session_id: Option<&[u8]>,
    over: &dyn Fn(TransferCounters),
) -> Result<(), ConnectionEndCause> {
    let mut ended = false;
    loop {
        let message = link.receive()?;
        match message.first() {
            None => break,
            Some(&HostKeySignRequest::NUMBER) => {
                let sign = HostKeySignRequest::decode(&message).map_err(nonsense)?;
                let (_, blob) = sign_with(settings, &sign)?;
                link.send(&SignatureReply { blob: &blob }.to_bytes())?;
            }
            Some(&HostKeyProofRequest::NUMBER) => {
                let prove = HostKeyProofRequest::decode(&message).map_err(nonsense)?;
                let blob = prove_with(settings, session_id, &prove)?;
                link.send(&SignatureReply { blob: &blob }.to_bytes())?;
            }
            Some(&LogMessage::NUMBER) => tell(&message)?,
            // The process has already logged the reason.
            Some(&EndedWithoutLogin::NUMBER) => ended = true,
            Some(&SessionEnded::NUMBER) => {
                let SessionEnded {
                    files,
                    sent,
                    received,
                } = SessionEnded::decode(&message).map_err(nonsense)?;
                over(TransferCounters {
                    files,
                    sent,
                    received,
                });
            }
            Some(&number) => return Err(nonsense(unexpected(number)).into()),
        }
    }
    match ended {
        true => Ok(()),
        false => Err(ConnectionEndCause::Process),
    }
}

/// Decodes a question about a key; one without a signature gets an empty one.
fn question(message: &[u8]) -> io::Result<SignatureCheckRequest<'_>> {
    match message.first() {
        Some(&KeyQuery::NUMBER) => {
            let ask = KeyQuery::decode(message).map_err(nonsense)?;
            Ok(SignatureCheckRequest {
                user: ask.user,
                blob: ask.blob,
                authority: ask.authority,
                signed_len: ask.signed_len,
                algorithm: b"",
                host_bound: false,
                signature: b"",
            })
        }
        _ => SignatureCheckRequest::decode(message).map_err(nonsense),
    }
}

/// Logs why a key was refused.
fn tell_refusal(user: &[u8], prove: &SignatureCheckRequest<'_>, why: &KeyRefusal) {
    let user = escape::field(user);
    let why = escaped(why.to_string().as_bytes());
    // Fields of a certificate are not parsed before its authority is known.
    match prove.authority {
        b"" => info!(%user, key = fingerprint(prove.blob), "refused: {why}"),
        ca => info!(%user, ca = fingerprint(ca), "certificate refused: {why}"),
    }
}

fn unexpected(got: u8) -> WireError {
    WireError::WrongMessage { expected: 0, got }
}

fn on_the_beat(asked: Instant) {
    let spent = asked.elapsed();
    let beats = spent.as_nanos() / BEAT.as_nanos() + 1;
    let until = BEAT.saturating_mul(u32::try_from(beats).unwrap_or(u32::MAX));
    thread::sleep(until.saturating_sub(spent));
}

#[cfg(test)]
#[path = "monitor_tests.rs"]
mod tests;
