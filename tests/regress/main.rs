//! A file for each bug that reached a person, named by what went wrong.

mod a_lost_connection_said_no_such_directory;
mod the_host_was_named_twice;
