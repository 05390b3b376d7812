//! Local file operations for lanes, on a few threads that may block.
