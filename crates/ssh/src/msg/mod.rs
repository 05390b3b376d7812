//! All SSH messages: number, type, the phases in which each is legal, and the side that may send
//! it.
//!
//! [`TABLE`] is the single source: the transport calls [`legal`] for each packet before any other
//! code sees it, so the state machines need no such checks.

mod auth;
mod channel;
mod transport;

pub use auth::*;
pub use channel::*;
pub use transport::*;

use std::fmt;

use crate::EndpointRole;
use crate::error::{Error, PeerMisbehaved};

/// Phase of a connection for the messages of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPhase {
    /// Before the sender's first NEWKEYS.
    KeyExchange,
    /// Before the sender's first NEWKEYS, if both sides have offered strict KEX (OpenSSH PROTOCOL
    /// section 1.10).
    StrictKeyExchange,
    /// Between the sender's KEXINIT and its NEWKEYS in a later exchange.
    Rekey,
    /// With keys in use, before authentication has succeeded.
    Auth,
    /// After USERAUTH_SUCCESS.
    Connection,
}

/// Phases in which a message is legal; a column of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegalPhases {
    /// Legal at any time, even in a strict first key exchange.
    Always,
    /// Legal at any time except in a strict first key exchange (Terrapin, CVE-2023-48795).
    NotInStrict,
    /// Legal in the first key exchange or to start another: KEXINIT.
    Exchange,
    /// Legal during a key exchange: its other messages.
    KeyExchange,
    /// Legal with keys in use and outside of a key exchange.
    Keyed,
    /// Legal until authentication has succeeded.
    Auth,
    /// Legal after authentication has succeeded.
    Connection,
}

/// Side that may send a message; a column of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedSender {
    /// The client only.
    Client,
    /// The server only.
    Server,
    /// Both sides.
    Both,
}

/// Properties of a message, an entry of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSpec {
    /// The message number, the first byte of the payload.
    pub number: u8,
    /// Name of the message without `SSH_MSG_`.
    pub name: &'static str,
    /// Phases in which the message is legal.
    pub when: LegalPhases,
    /// Side that may send the message.
    pub from: AllowedSender,
}

macro_rules! table {
    ($($number:literal $name:ident $when:ident $from:ident : $ty:ident;)*) => {
        /// All messages by number.
        pub const TABLE: &[MessageSpec] = &[$(MessageSpec {
            number: $number,
            name: stringify!($name),
            when: LegalPhases::$when,
            from: AllowedSender::$from,
        }),*];
        $(const _: () = assert!($ty::NUMBER == $number);)*
    };
}

table! {
    // RFC 4253 sections 11 and 10, RFC 8308. Some servers send EXT_INFO after every NEWKEYS, not
    // only after the first, so it is legal whenever keys are in use.
    1 DISCONNECT Always Both: Disconnect;
    2 IGNORE NotInStrict Both: Ignore;
    3 UNIMPLEMENTED NotInStrict Both: Unimplemented;
    4 DEBUG NotInStrict Both: Debug;
    5 SERVICE_REQUEST Auth Client: ServiceRequest;
    6 SERVICE_ACCEPT Auth Server: ServiceAccept;
    7 EXT_INFO Keyed Both: ExtInfo;
    // RFC 4253 sections 7 and 8, RFC 5656 section 4.
    20 KEXINIT Exchange Both: KexInit;
    21 NEWKEYS KeyExchange Both: NewKeys;
    30 KEX_ECDH_INIT KeyExchange Client: KexEcdhInit;
    31 KEX_ECDH_REPLY KeyExchange Server: KexEcdhReply;
    // RFC 4252, RFC 4256. The meaning of 60 depends on the method of the pending request:
    // USERAUTH_PK_OK, USERAUTH_PASSWD_CHANGEREQ or USERAUTH_INFO_REQUEST.
    50 USERAUTH_REQUEST Auth Client: UserauthRequest;
    51 USERAUTH_FAILURE Auth Server: UserauthFailure;
    52 USERAUTH_SUCCESS Auth Server: UserauthSuccess;
    53 USERAUTH_BANNER Auth Server: UserauthBanner;
    60 USERAUTH_METHOD_SPECIFIC Auth Server: UserauthInfoRequest;
    61 USERAUTH_INFO_RESPONSE Auth Client: UserauthInfoResponse;
    // RFC 4254.
    80 GLOBAL_REQUEST Connection Both: GlobalRequest;
    81 REQUEST_SUCCESS Connection Both: RequestSuccess;
    82 REQUEST_FAILURE Connection Both: RequestFailure;
    90 CHANNEL_OPEN Connection Both: ChannelOpen;
    91 CHANNEL_OPEN_CONFIRMATION Connection Both: ChannelOpenConfirmation;
    92 CHANNEL_OPEN_FAILURE Connection Both: ChannelOpenFailure;
    93 CHANNEL_WINDOW_ADJUST Connection Both: ChannelWindowAdjust;
    94 CHANNEL_DATA Connection Both: ChannelData;
    95 CHANNEL_EXTENDED_DATA Connection Both: ChannelExtendedData;
    96 CHANNEL_EOF Connection Both: ChannelEof;
    97 CHANNEL_CLOSE Connection Both: ChannelClose;
    98 CHANNEL_REQUEST Connection Both: ChannelRequest;
    99 CHANNEL_SUCCESS Connection Both: ChannelSuccess;
    100 CHANNEL_FAILURE Connection Both: ChannelFailure;
    // OpenSSH's PROTOCOL, section 1.9 (ping@openssh.com).
    192 PING Keyed Both: Ping;
    193 PONG Keyed Both: Pong;
}

/// Returns the table entry of a message number.
pub fn lookup(number: u8) -> Option<&'static MessageSpec> {
    TABLE
        .binary_search_by_key(&number, |entry| entry.number)
        .ok()
        .and_then(|at| TABLE.get(at))
}

impl fmt::Display for ConnectionPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyExchange => "in the first key exchange",
            Self::StrictKeyExchange => "in a strict first key exchange",
            Self::Rekey => "in a later key exchange",
            Self::Auth => "before authentication has succeeded",
            Self::Connection => "after authentication has succeeded",
        })
    }
}

/// Message number that is displayed by name, for errors and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageName(pub u8);

impl fmt::Display for MessageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match lookup(self.0) {
            Some(entry) => f.write_str(entry.name),
            None => write!(f, "message {}", self.0),
        }
    }
}

/// Checks that `from` may send message `number` in this phase.
///
/// A number that [`lookup`] does not know is legal, to be answered with UNIMPLEMENTED (RFC 4253
/// section 11.4), except in a strict or later key exchange.
///
/// # Errors
/// [`PeerMisbehaved::OutOfPhase`] and [`PeerMisbehaved::WrongSide`].
pub fn legal(number: u8, phase: ConnectionPhase, from: EndpointRole) -> Result<(), Error> {
    let out_of_phase = || Error::from(PeerMisbehaved::OutOfPhase { number, phase });
    let Some(entry) = lookup(number) else {
        return match phase {
            // No message has number 0 (RFC 4250 section 4.1.2).
            _ if number == 0 => Err(out_of_phase()),
            ConnectionPhase::StrictKeyExchange | ConnectionPhase::Rekey => Err(out_of_phase()),
            _ => Ok(()),
        };
    };
    let now = match entry.when {
        LegalPhases::Always => true,
        LegalPhases::NotInStrict => phase != ConnectionPhase::StrictKeyExchange,
        // A second KEXINIT within an exchange is illegal; in the first exchange the transport
        // counts.
        LegalPhases::Exchange => phase != ConnectionPhase::Rekey,
        LegalPhases::KeyExchange => matches!(
            phase,
            ConnectionPhase::KeyExchange
                | ConnectionPhase::StrictKeyExchange
                | ConnectionPhase::Rekey
        ),
        LegalPhases::Keyed => matches!(phase, ConnectionPhase::Auth | ConnectionPhase::Connection),
        LegalPhases::Auth => phase == ConnectionPhase::Auth,
        LegalPhases::Connection => phase == ConnectionPhase::Connection,
    };
    if !now {
        return Err(out_of_phase());
    }
    match (entry.from, from) {
        (AllowedSender::Client, EndpointRole::Server)
        | (AllowedSender::Server, EndpointRole::Client) => {
            Err(PeerMisbehaved::WrongSide(number).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [ConnectionPhase; 5] = [
        ConnectionPhase::StrictKeyExchange,
        ConnectionPhase::KeyExchange,
        ConnectionPhase::Rekey,
        ConnectionPhase::Auth,
        ConnectionPhase::Connection,
    ];

    fn legal_numbers(phase: ConnectionPhase, from: EndpointRole) -> Vec<u8> {
        (0..=255)
            .filter(|n| lookup(*n).is_some() && legal(*n, phase, from).is_ok())
            .collect()
    }

    #[test]
    fn the_table_is_sorted_and_each_number_has_one_row() {
        assert!(TABLE.windows(2).all(|w| w[0].number < w[1].number));
        assert_eq!(lookup(94).map(|e| e.name), Some("CHANNEL_DATA"));
        assert_eq!(lookup(0), None);
    }

    /// Terrapin: a strict first exchange permits only its own messages and DISCONNECT.
    #[test]
    fn a_strict_first_exchange_allows_nothing_else() {
        let phase = ConnectionPhase::StrictKeyExchange;
        assert_eq!(legal_numbers(phase, EndpointRole::Server), [1, 20, 21, 31]);
        assert_eq!(legal_numbers(phase, EndpointRole::Client), [1, 20, 21, 30]);
        assert!(legal(200, phase, EndpointRole::Server).is_err());
    }

    #[test]
    fn each_phase_allows_exactly_its_messages() {
        let first = legal_numbers(ConnectionPhase::KeyExchange, EndpointRole::Server);
        assert_eq!(first, [1, 2, 3, 4, 20, 21, 31]);
        assert_eq!(
            legal_numbers(ConnectionPhase::Rekey, EndpointRole::Client),
            [1, 2, 3, 4, 21, 30]
        );
        assert_eq!(
            legal_numbers(ConnectionPhase::Auth, EndpointRole::Server),
            [1, 2, 3, 4, 6, 7, 20, 51, 52, 53, 60, 192, 193]
        );
        assert_eq!(
            legal_numbers(ConnectionPhase::Auth, EndpointRole::Client),
            [1, 2, 3, 4, 5, 7, 20, 50, 61, 192, 193]
        );
        let connection: Vec<u8> = [1, 2, 3, 4, 7, 20, 80, 81, 82]
            .into_iter()
            .chain(90..=100)
            .chain([192, 193])
            .collect();
        assert_eq!(
            legal_numbers(ConnectionPhase::Connection, EndpointRole::Server),
            connection
        );
        assert_eq!(
            legal_numbers(ConnectionPhase::Connection, EndpointRole::Client),
            connection
        );
    }

    #[test]
    fn the_error_names_the_check() {
        for phase in PHASES {
            if phase != ConnectionPhase::Auth {
                assert_eq!(
                    legal(52, phase, EndpointRole::Server),
                    Err(PeerMisbehaved::OutOfPhase { number: 52, phase }.into())
                );
            }
        }
        assert_eq!(
            legal(52, ConnectionPhase::Auth, EndpointRole::Client),
            Err(PeerMisbehaved::WrongSide(52).into())
        );
    }

    #[test]
    fn an_unknown_number_is_no_error_once_keys_are_in_use() {
        assert_eq!(
            legal(200, ConnectionPhase::Auth, EndpointRole::Server),
            Ok(())
        );
        assert_eq!(
            legal(200, ConnectionPhase::Connection, EndpointRole::Server),
            Ok(())
        );
    }
}
