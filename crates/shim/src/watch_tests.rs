use core::cell::{Cell, RefCell};
use std::string::String;

use super::*;
use crate::table::ConnectionEntryValues;

/// Socket in memory that records the options set on it; `permitted` allows congestion controls.
struct Fake {
    cookie: Cell<u64>,
    rtt: Cell<Option<u32>>,
    tos: Cell<u8>,
    congestion: RefCell<String>,
    lowat: Cell<u32>,
    permitted: bool,
}

impl TunableSocket for Fake {
    fn cookie(&self) -> u64 {
        self.cookie.get()
    }
    fn rtt_us(&self) -> Option<u32> {
        self.rtt.get()
    }
    fn mark(&self) -> Option<u8> {
        Some(self.tos.get())
    }
    fn set_mark(&self, tos: u8) -> bool {
        self.tos.set(tos);
        true
    }
    fn set_congestion(&self, name: &str) -> bool {
        if self.permitted {
            *self.congestion.borrow_mut() = name.into();
        }
        self.permitted
    }
    fn set_notsent_lowat(&self, bytes: u32) -> bool {
        self.lowat.set(bytes);
        true
    }
}

/// A freshly connected socket with a DSCP and this round trip.
fn connected(rtt: Option<u32>) -> (ConnectionEntry, Fake) {
    let entry = ConnectionEntry::new();
    let beginning = ConnectionEntryValues {
        owner: 1,
        cookie: 7,
        now_us: 0,
        mark: NO_MARK,
        changed: 0,
        peer: "192.0.2.1:22".parse().unwrap(),
        via: None,
    };
    entry.begin(&beginning, ConnectionTuningState::New);
    let socket = Fake {
        cookie: Cell::new(7),
        rtt: Cell::new(rtt),
        tos: Cell::new(0x20),
        congestion: RefCell::default(),
        lowat: Cell::new(0),
        permitted: true,
    };
    (entry, socket)
}

#[test]
fn a_near_host_is_left_alone() {
    let (rules, memory) = (WrapRules::default(), HostDistanceTable::new());
    let (entry, socket) = connected(Some(999));
    writing(&rules, &memory, &entry, &socket);
    wrote(&rules, &entry, &socket, 1 << 30);
    assert_eq!((socket.tos.get(), socket.lowat.get()), (0x20, 0));
    assert!(!keeps_off(&entry, &socket, 0x20));
    let ip = entry.peer().ip();
    assert_eq!(outset(&rules, &memory, ip), ConnectDecision::Ignore);
}

#[test]
fn a_far_one_loses_its_mark_at_the_first_write_and_never_gets_it_back() {
    let (rules, memory) = (WrapRules::default(), HostDistanceTable::new());
    let (entry, socket) = connected(Some(1_000));
    // Until then the program's DSCP passes.
    assert!(!keeps_off(&entry, &socket, 0x20));
    writing(&rules, &memory, &entry, &socket);
    assert_eq!(socket.tos.get(), 0);
    assert_eq!(entry.mark.load(Relaxed), table::mark(0x20));
    assert!(keeps_off(&entry, &socket, 0x48));
    assert_eq!(entry.mark.load(Relaxed), table::mark(0x48));
    assert_eq!(
        outset(&rules, &memory, entry.peer().ip()),
        ConnectDecision::Far
    );
}

#[test]
fn bulk_begins_at_the_threshold_and_congestion_control_is_for_the_far() {
    for (rtt, permitted, name) in [(3_999, true, ""), (4_000, true, "bbr"), (4_000, false, "")] {
        let (rules, memory) = (WrapRules::default(), HostDistanceTable::new());
        let (entry, socket) = connected(Some(rtt));
        let socket = Fake {
            permitted,
            ..socket
        };
        writing(&rules, &memory, &entry, &socket);
        wrote(&rules, &entry, &socket, BULK - 1);
        assert_eq!(socket.lowat.get(), 0);
        wrote(&rules, &entry, &socket, 1);
        assert_eq!(socket.lowat.get(), NOTSENT_LOWAT);
        assert_eq!(socket.congestion.borrow().as_str(), name);
        let done = entry.changed.load(Relaxed);
        assert_eq!(done & changed::CONGESTION != 0, name == "bbr");
        assert_eq!(entry.state(), ConnectionTuningState::Done);
    }
}

#[test]
fn another_socket_with_the_same_number_is_not_touched() {
    let (rules, memory) = (WrapRules::default(), HostDistanceTable::new());
    for cookie in [8, 0] {
        let (entry, socket) = connected(Some(50_000));
        socket.cookie.set(cookie);
        writing(&rules, &memory, &entry, &socket);
        assert_eq!(socket.tos.get(), 0x20);
        assert_eq!(entry.state(), ConnectionTuningState::Free);

        let (entry, socket) = connected(Some(50_000));
        writing(&rules, &memory, &entry, &socket);
        socket.cookie.set(cookie);
        assert!(!keeps_off(&entry, &socket, 0x20));
        wrote(&rules, &entry, &socket, BULK);
        assert_eq!(
            (socket.lowat.get(), entry.state()),
            (0, ConnectionTuningState::Free)
        );
    }
}

#[test]
fn what_is_no_tcp_is_left_and_what_has_no_round_trip_yet_is_asked_again() {
    let (rules, memory) = (WrapRules::default(), HostDistanceTable::new());
    let (entry, socket) = connected(None);
    writing(&rules, &memory, &entry, &socket);
    assert_eq!(
        (socket.tos.get(), entry.state()),
        (0x20, ConnectionTuningState::Free)
    );
    let (entry, socket) = connected(Some(0));
    writing(&rules, &memory, &entry, &socket);
    assert_eq!(entry.state(), ConnectionTuningState::New);
    socket.rtt.set(Some(20_000));
    writing(&rules, &memory, &entry, &socket);
    assert_eq!(entry.state(), ConnectionTuningState::DscpRemoved);
}

#[test]
fn the_rules_decide_before_anything_is_known() {
    let memory = HostDistanceTable::new();
    let (here, there) = ("127.8.9.1".parse().unwrap(), "192.0.2.9".parse().unwrap());
    let mapped = "::ffff:127.0.0.1".parse().unwrap();
    for (rules, here_is, there_is) in [
        ("", ConnectDecision::Ignore, ConnectDecision::DecideAtWrite),
        (
            "report=/x",
            ConnectDecision::ReportOnly,
            ConnectDecision::DecideAtWrite,
        ),
        ("no-tune", ConnectDecision::Ignore, ConnectDecision::Ignore),
        (
            "no-tune,report=/x",
            ConnectDecision::ReportOnly,
            ConnectDecision::ReportOnly,
        ),
        ("always", ConnectDecision::All, ConnectDecision::All),
    ] {
        let rules = WrapRules::parse(rules).unwrap();
        assert_eq!(outset(&rules, &memory, here), here_is);
        assert_eq!(outset(&rules, &memory, mapped), here_is);
        assert_eq!(outset(&rules, &memory, there), there_is);
    }
}

#[test]
fn a_mark_that_was_asked_for_is_set_and_one_that_is_right_is_left() {
    let rules = WrapRules::parse("dscp=10").unwrap();
    let (_, socket) = connected(None);
    assert_eq!(unmark(&rules, &socket), (table::mark(0x20), changed::DSCP));
    assert_eq!(socket.tos.get(), 40);
    assert_eq!(unmark(&rules, &socket), (table::mark(40), 0));
    // ECN bits are left alone.
    socket.tos.set(0x02);
    assert_eq!(unmark(&WrapRules::default(), &socket), (NO_MARK, 0));
}

/// Regression: under wrap, a program that had set IP_TOS read back 0.
#[test]
fn a_program_reads_back_the_mark_that_it_has_set() {
    let (rules, memory) = (
        WrapRules::parse("dscp=10").unwrap(),
        HostDistanceTable::new(),
    );
    let (entry, socket) = connected(Some(20_000));
    assert_eq!(wanted_mark(&entry, &socket), None, "its own is there");
    writing(&rules, &memory, &entry, &socket);
    assert_eq!(
        (socket.tos.get(), wanted_mark(&entry, &socket)),
        (40, Some(0x20))
    );
    assert!(keeps_off(&entry, &socket, 0x48));
    assert_eq!(wanted_mark(&entry, &socket), Some(0x48));
    socket.cookie.set(9);
    assert_eq!(wanted_mark(&entry, &socket), None, "another socket");
    // A program that has set none reads 0.
    let (entry, socket) = connected(Some(20_000));
    socket.tos.set(0);
    writing(&rules, &memory, &entry, &socket);
    assert_eq!(
        (socket.tos.get(), wanted_mark(&entry, &socket)),
        (40, Some(0))
    );
}
