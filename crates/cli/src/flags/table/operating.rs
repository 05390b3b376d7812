use crate::flags::flag::{Flag, Group, ValueKind};
use crate::flags::low::RelayArgs;

use super::relay::{count, time};

/// The flags of `longhaul relay` that concern the whole process.
pub(super) const ROWS: &[Flag<RelayArgs>] = &[
    Flag::ours(
        Group::Operating,
        ("config", ValueKind::Value("FILE")),
        "Run the relays of this file, in place of LISTEN and TARGET",
        "Run the relays of this file (longhaul-relay.conf(5)), in place of LISTEN and TARGET. \
              SIGHUP has it read again: relays that are new there are begun, others are changed or \
              ended, and who is connected stays so.",
        |args, given| {
            args.config = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        Group::Operating,
        ("status", ValueKind::Value("ADDRESS:PORT")),
        "Show a page of what goes on at this address of this machine",
        "Show what goes on at this loopback address: a page for browsers at /, /status.json, which \
              longhaul relay top shows in a terminal, and /metrics for Prometheus. Whoever is on \
              this machine may see it.",
        |args, given| {
            args.status = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Operating,
        ("metrics", ValueKind::Value("ADDRESS:PORT|PATH")),
        "Tell figures to Prometheus at this address of this machine",
        "Tell figures to Prometheus at /metrics of this loopback address or UNIX socket.",
        |args, given| {
            args.metrics = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Operating,
        ("handover", ValueKind::Value("PATH")),
        "Take the listening sockets over from who runs with the same PATH",
        "Take the listening sockets over from a relay of the same user that runs with the same \
              PATH, a UNIX socket, and hand them over to the next one. Whoever hands them over lets \
              nobody in from then on, serves who is connected to the end, and ends. Nobody who \
              comes meanwhile is turned away.",
        |args, given| {
            args.handover = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        Group::Operating,
        ("drain-timeout", ValueKind::Value("TIME")),
        "When it is to end, reset who is still connected after TIME",
        "When the relay is to end, or has a successor, reset who is still connected after TIME. \
              Without it everybody is served to the end.",
        |args, given| {
            args.drain_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Operating,
        ("threads", ValueKind::Value("N")),
        "Move bytes on N threads (one for each processor)",
        "Move bytes on N threads, one for each processor if it is not given.",
        |args, given| {
            args.threads = Some(count(&given.text()?)?);
            Ok(())
        },
    ),
];
