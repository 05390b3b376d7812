use crate::flags::flag::{Flag, FlagGroup, FlagValueKind};
use crate::flags::low::RelayArgs;

use super::relay::{count, time};

/// The flags of `longhaul relay` that concern the whole process.
pub(super) const ROWS: &[Flag<RelayArgs>] = &[
    Flag::ours(
        FlagGroup::Operating,
        ("config", FlagValueKind::Value("FILE")),
        "Run the relays in this file, instead of LISTEN and TARGET",
        "Run the relays in this file (longhaul-relay.conf(5)), instead of LISTEN and TARGET. On \
         SIGHUP the file is read again: new relays are started, others are changed or ended. \
         Existing connections are not affected.",
        |args, given| {
            args.config = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Operating,
        ("status", FlagValueKind::Value("ADDRESS:PORT")),
        "Serve a status page at this loopback address",
        "Serve status at this loopback address: a page for browsers at /, /status.json, which \
         longhaul relay top shows in a terminal, and /metrics for Prometheus. Every user of this \
         machine can read it.",
        |args, given| {
            args.status = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Operating,
        ("metrics", FlagValueKind::Value("ADDRESS:PORT|PATH")),
        "Serve metrics for Prometheus at this loopback address or socket",
        "Serve metrics for Prometheus at /metrics of this loopback address or UNIX socket.",
        |args, given| {
            args.metrics = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Operating,
        ("handover", FlagValueKind::Value("PATH")),
        "Take over the listening sockets from the relay that uses the same PATH",
        "Take over the listening sockets from a running relay of the same user with the same PATH, \
         a UNIX socket, and hand them over to the next one. A relay that has handed them over \
         accepts no new connections, finishes the existing ones, and exits. No client is refused \
         during the change.",
        |args, given| {
            args.handover = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Operating,
        ("drain-timeout", FlagValueKind::Value("TIME")),
        "On shutdown, reset connections that are still open after TIME",
        "On shutdown, or once another relay has taken over, reset connections that are still open \
         after TIME. By default all of them may finish.",
        |args, given| {
            args.drain_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Operating,
        ("threads", FlagValueKind::Value("N")),
        "Move bytes on N threads (default: one for each processor)",
        "Move bytes on N threads. The default is one for each processor.",
        |args, given| {
            args.threads = Some(count(&given.text()?)?);
            Ok(())
        },
    ),
];
