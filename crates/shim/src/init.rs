//! Initialization: reads the rules once, before the program runs. Until then, and if there is
//! nothing to do, a hook costs one load.
#![allow(
    unsafe_code,
    reason = "memory that is written once, before anybody reads it"
)]

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Release},
};

use crate::c;
use crate::memory::HostDistanceTable;
use crate::real;
use crate::rules::WrapRules;

static MODE: AtomicU32 = AtomicU32::new(OFF);
const OFF: u32 = 0;
const ON: u32 = 1;
const REPORTING: u32 = 2;
const CARRYING: u32 = 4;

/// Hosts known to be near or far.
pub(crate) static MEMORY: HostDistanceTable = HostDistanceTable::new();

/// Longest `LONGHAUL_WRAP`, in bytes.
const LONGEST: usize = 4096;

/// Rules and program name that the hooks read, in memory that is never freed; `rules` refers to
/// `text`.
struct SavedRules {
    text: [u8; LONGEST],
    rules: Option<WrapRules<'static>>,
    /// Offset of the report's file name in the text; a zero ends it.
    report: usize,
    program: [u8; 64],
    program_len: usize,
}

/// Cell that is written once, before any hook reads it.
struct SavedRulesCell(UnsafeCell<SavedRules>);

// SAFETY: only `begin` writes it, which runs once and before MODE is set; all others read it, and
// only if MODE is set.
unsafe impl Sync for SavedRulesCell {}

static KEPT: SavedRulesCell = SavedRulesCell(UnsafeCell::new(SavedRules {
    text: [0; LONGEST],
    rules: None,
    report: 0,
    program: [0; 64],
    program_len: 0,
}));

/// Returns true if there are rules to apply.
pub(crate) fn is_on() -> bool {
    MODE.load(Acquire) != OFF
}

/// Returns true if a report is written.
pub(crate) fn is_reporting() -> bool {
    MODE.load(Acquire) & REPORTING != 0
}

/// Returns true if there is a carrier.
pub(crate) fn is_carrying() -> bool {
    MODE.load(Acquire) & CARRYING != 0
}

fn kept() -> Option<&'static SavedRules> {
    // SAFETY: once MODE is set, nothing writes to it.
    is_on().then(|| unsafe { &*KEPT.0.get() })
}

/// The rules, if there are any to apply.
pub(crate) fn rules() -> Option<&'static WrapRules<'static>> {
    kept()?.rules.as_ref()
}

/// The file of the report.
pub(crate) fn report() -> Option<&'static CStr> {
    let kept = kept()?;
    let name = kept.text.get(kept.report..)?;
    CStr::from_bytes_until_nul(name).ok()
}

/// The program's file name.
pub(crate) fn program() -> &'static str {
    let name = kept().and_then(|kept| kept.program.get(..kept.program_len));
    name.and_then(|name| core::str::from_utf8(name).ok())
        .unwrap_or("?")
}

/// Run by the loader once this library and its dependencies are loaded.
#[cfg(longhaul_preload)]
#[unsafe(link_section = ".init_array")]
#[used]
static BEGIN: extern "C" fn() = begin;

#[cfg_attr(
    not(longhaul_preload),
    expect(dead_code, reason = "the loader calls it")
)]
extern "C" fn begin() {
    if c::variable(c"LONGHAUL_OFF").is_some_and(|value| !value.is_empty()) {
        return;
    }
    // SAFETY: MODE is off, so nothing reads it, and the loader calls this once.
    let kept = unsafe { &mut *KEPT.0.get() };
    let mut room = [0; 512];
    let path = c::link(c"/proc/self/exe", &mut room);
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    // A process of sshd may be confined to few system calls, and is killed for any other.
    if name.starts_with(b"sshd") {
        return;
    }
    kept.program_len = name.len().min(kept.program.len());
    for (to, from) in kept.program.iter_mut().zip(name) {
        *to = *from;
    }
    let given = c::variable(c"LONGHAUL_WRAP").unwrap_or_default();
    let given = given.to_bytes();
    if given.len() >= LONGEST {
        return tell(&[" is too long"]);
    }
    // Copy the text, since programs may overwrite their environment.
    for (to, from) in kept.text.iter_mut().zip(given) {
        *to = *from;
    }
    let text = kept.text.get(..given.len()).unwrap_or_default();
    let Ok(text) = core::str::from_utf8(text) else {
        return tell(&[" is not valid UTF-8"]);
    };
    // SAFETY: the text is in a static, and is not written again.
    let text: &'static str = unsafe { &*core::ptr::from_ref(text) };
    let rules = match WrapRules::parse(text) {
        Ok(rules) => rules,
        Err(error) => return tell(&[": '", error.word, "' ", error.why]),
    };
    let mut mode = ON;
    if let Some(file) = rules.report {
        kept.report = text.len() - file.len();
        mode |= REPORTING;
    }
    if rules.carrier.is_some() {
        mode |= CARRYING;
    }
    kept.rules = Some(rules);
    MODE.store(mode, Release);
}

/// Prints one line on standard error. The program then runs unchanged.
fn tell(what: &[&str]) {
    let parts: [&[&str]; 3] = [
        &["longhaul wrap: LONGHAUL_WRAP"],
        what,
        &[": the program runs unchanged\n"],
    ];
    for part in parts.into_iter().flatten() {
        real::write_all(2, part.as_bytes());
    }
}
