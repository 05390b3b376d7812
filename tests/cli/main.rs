//! The command line, as a person or a script meets it.

mod accounts;
mod certificates;
mod clients;
mod far;
mod files;
mod hindered;
mod impatient_server;
mod json;
mod lane_flags;
mod lanes;
mod lanes_files;
mod like_scp;
mod listening;
mod listening_memory;
mod load;
mod lying_server;
mod operating;
mod output;
mod programs;
mod refused;
mod resumed;
mod serving;
mod small_files;
mod started_anew;
mod stopped;
mod verify;
