//! Names in the lab's folder that more than one of its processes uses.

/// The figures of the path for people.
pub(crate) const FIGURES_TEXT: &str = "figures.txt";
/// The same for programs.
pub(crate) const FIGURES_JSON: &str = "figures.json";
/// How many packets the TUN devices dropped, which the emulator cannot see itself.
pub(crate) const DEVICE_DROPS: &str = "device-drops";
/// Is there once the emulator carries packets.
pub(crate) const EMULATOR_READY: &str = "emulator-ready";
