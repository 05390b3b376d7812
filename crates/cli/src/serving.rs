//! `longhaul serve`: one client over standard input and output.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use serve::Export;
use tracing::Level;

use crate::exit::Exit;
use crate::failed;
use crate::flags::low::ServeArgs;

/// Serves until the client goes.
pub(crate) fn run(args: &ServeArgs) -> Exit {
    log(args.verbose);
    let export = match &args.root {
        Some(root) => Export::beneath(root, args.access),
        None => Ok(Export::everything(args.access)),
    };
    let export = match export {
        Ok(export) => export,
        Err(error) => return failed(&error.to_string()),
    };
    let (input, output) = match streams() {
        Ok(streams) => streams,
        Err(error) => return failed(&format!("standard input and output: {error}")),
    };
    match serve::stdio(input, output, &export) {
        Ok(()) => Exit::Done,
        Err(error) => failed(&error.to_string()),
    }
}

/// Standard input and output as they are: the library's look for the ends of lines.
fn streams() -> io::Result<(File, File)> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok((input.into(), output.into()))
}

fn log(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(io::stderr)
        .init();
}
