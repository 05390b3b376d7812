//! Builds the `longhaul wrap` library from crates/shim so that the program can embed it. The
//! library is then present wherever the binary is, and always of its version
//! (docs/design/0015-wrap.md).
//!
//! The compiler is called directly. Cargo would build a cdylib of a dependency beside the program
//! but install it nowhere, and would link it with this machine's C library, whose symbol versions
//! an older machine lacks.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rustc-check-cfg=cfg(wraps)");
    let crates = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("..");
    let source = crates.join("shim/src");
    println!("cargo::rerun-if-changed={}", source.display());
    let shared = crates.join("sys/src/distance.rs");
    println!("cargo::rerun-if-changed={}", shared.display());
    // The types and numbers in crates/shim are those of Linux with 64-bit longs.
    let of_target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if of_target("OS") != "linux" || of_target("POINTER_WIDTH") != "64" {
        return Ok(());
    }
    let library = PathBuf::from(env::var("OUT_DIR")?).join("liblonghaul_wrap.so");
    let mut rustc =
        Command::new(env::var_os("RUSTC").ok_or("no C compiler is configured: set CC")?);
    rustc
        .arg(source.join("lib.rs"))
        .args(["--crate-name", "longhaul_wrap", "--crate-type", "cdylib"])
        .args(["--edition", "2024", "--cfg", "longhaul_preload"])
        .args(["--target", &env::var("TARGET")?])
        .args(["-C", "opt-level=3", "-C", "panic=abort", "-C", "lto"])
        .args(["-C", "codegen-units=1", "-C", "strip=symbols"])
        .args(["-C", "link-arg=-nostdlib", "-C", "link-arg=-nostartfiles"])
        .args(["--cap-lints", "allow", "-o"])
        .arg(&library);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let linker = linker
            .into_string()
            .map_err(|_| "the name of the linker is not valid UTF-8")?;
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    // For musl, rustc builds shared libraries only without static linking. This library links
    // nothing.
    if of_target("ENV") == "musl" {
        rustc.args(["-C", "target-feature=-crt-static"]);
    }
    let status = rustc.status()?;
    if !status.success() {
        return Err(format!("cannot build the library of longhaul wrap: {status}").into());
    }
    println!("cargo::rustc-cfg=wraps");
    Ok(())
}
