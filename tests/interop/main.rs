//! longhaul against real servers: one file for each, over one table of scenarios.

mod asyncssh;
mod dropbear;
mod go;
mod hpn;
mod libssh;
mod long_path;
mod openssh;
mod openssh_auth;
mod openssh_newest;
mod openssh_routes;
mod paramiko;
mod proftpd;
mod round_trips;
mod scenarios;
mod via;
