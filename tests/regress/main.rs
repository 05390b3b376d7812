//! A file for each bug that reached a person, named by what went wrong.

mod a_failed_login_named_neither_user_nor_keys;
mod a_line_end_in_a_value_ran_a_command;
mod a_lost_connection_said_no_such_directory;
mod a_server_lost_bytes_that_its_client_was_told_had_come;
mod a_server_sent_a_journal_that_was_believed;
mod the_host_was_named_twice;
