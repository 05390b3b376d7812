//! A file for each bug that reached a person, named by what went wrong.
