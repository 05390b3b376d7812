//! Processes that a test has started or examines.

use std::fs;
use std::process::Child;

/// Client processes, which are killed and waited for when dropped.
#[derive(Debug)]
pub struct Clients(pub Vec<Child>);

impl Drop for Clients {
    fn drop(&mut self) {
        for client in &mut self.0 {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

/// Returns memory of a process in bytes: the sum of the lines of its smaps_rollup (proc(5)) that
/// begin with `line`, such as "Private_" for memory that no other process shares; 0 if the process
/// does not exist.
pub fn memory(pid: u32, line: &str) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let lines = rollup.lines().filter(|found| found.starts_with(line));
    let kib = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.sum::<u64>() * 1024
}
