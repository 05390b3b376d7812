//! Names of files in the lab's folder that several of its processes use.

/// Figures of the path as text.
pub(crate) const FIGURES_TEXT: &str = "figures.txt";
/// Figures of the path as JSON.
pub(crate) const FIGURES_JSON: &str = "figures.json";
/// Number of packets that the TUN devices dropped, which the emulator cannot see.
pub(crate) const DEVICE_DROPS: &str = "device-drops";
/// Exists once the emulator carries packets.
pub(crate) const EMULATOR_READY: &str = "emulator-ready";
