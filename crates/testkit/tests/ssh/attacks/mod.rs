//! Known attacks on SSH clients, each test named after the attack that it repeats (docs/cve.md).

mod authentication;
mod channels;
mod exchange;
mod floods;
mod packets;
mod terminal;
mod terrapin;
