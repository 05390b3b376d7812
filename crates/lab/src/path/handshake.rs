use super::units::InvalidValue;

/// Changes that the path makes to the TCP options of SYN packets, as broken or transparent
/// middleboxes do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHandshakeChanges {
    /// Replace the window scale option by padding (RFC 7323).
    pub no_window_scaling: bool,
    /// Replace the SACK-permitted option by padding (RFC 2018).
    pub no_sack: bool,
    /// Replace the timestamps option by padding (RFC 7323).
    pub no_timestamps: bool,
    /// Lower the maximum segment size to this.
    pub largest_segment: Option<u16>,
}

impl TcpHandshakeChanges {
    /// Parses a list of options to remove, such as `wscale,sack`, and adds it.
    pub(super) fn strip(&mut self, text: &str) -> Result<(), InvalidValue> {
        for name in text.split(',') {
            *(match name.trim() {
                "wscale" => &mut self.no_window_scaling,
                "sack" => &mut self.no_sack,
                "timestamps" => &mut self.no_timestamps,
                _ => return Err("is not a list of wscale, sack and timestamps".to_owned()),
            }) = true;
        }
        Ok(())
    }

    /// Returns true if SYN packets pass unchanged.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
