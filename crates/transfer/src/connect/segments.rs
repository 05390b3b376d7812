//! Requests a smaller TCP segment size, so that sshd's answer to a key exchange fills its segments.
//!
//! sshd has Nagle's algorithm on until a session begins (RFC 9293 section 3.7.4): after its
//! identification, until that is acknowledged, only full segments leave. If KEXINIT and the guessed
//! key exchange arrive together with the client's identification, sshd has its KEXINIT and its
//! reply ready a round trip before that acknowledgement: 2,660 bytes with OpenSSH 9.2, of which
//! NEWKEYS ends at byte 2,344. One segment of 1,448 bytes is full and leaves; the rest arrives a
//! round trip later. Two of the smaller segments requested here hold all that is needed. Over 114
//! ms a small file to a known host takes 0.61 s instead of 0.72 s (docs/design/0001-one-flight.md).

use std::time::Duration;

use ssh::transport::KexGuess;

/// The requested maximum segment size, with TCP options (RFC 9293 section 3.7.1): 1,328 bytes of
/// data beside a time stamp, 2,656 in two segments. On Ethernet, data arrive 0.4 % slower than in
/// full segments.
const MSS: u16 = 1340;
/// Shortest round trip time at which saving a round trip outweighs the cost of 0.4 %.
const LONG: Duration = Duration::from_millis(20);
/// Key exchanges whose reply, together with KEXINIT, needs more than one segment and at most two.
const LARGE: [&str; 2] = ["sntrup761x25519-sha512", "mlkem768x25519-sha256"];

/// Returns the segment size to request for a server with these first kex and host key algorithms;
/// `None` leaves the default.
pub(super) fn asked(
    guess: KexGuess,
    kex: Option<&String>,
    host_key: Option<&String>,
    rtt: Option<Duration>,
) -> Option<u16> {
    let at_once = matches!(guess, KexGuess::Remembered);
    let large = kex.is_some_and(|kex| LARGE.iter().any(|name| kex.starts_with(name)));
    // An RSA key and its signature fill another half segment, and certificates have any length.
    let small = host_key.is_some_and(|name| !name.contains("rsa") && !name.contains("-cert-"));
    let long = rtt.is_some_and(|rtt| rtt >= LONG);
    (at_once && large && small && long).then_some(MSS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_segments_are_asked_for_where_they_save_a_round_trip() {
        let asked = |guess, kex: &str, key: &str, rtt| {
            let (kex, key) = (kex.to_owned(), key.to_owned());
            asked(guess, Some(&kex), Some(&key), rtt).is_some()
        };
        let (sntrup, ed25519) = ("sntrup761x25519-sha512@openssh.com", "ssh-ed25519");
        let long = Some(Duration::from_millis(114));
        let known = KexGuess::Remembered;
        assert!(asked(known, sntrup, ed25519, long));
        assert!(asked(known, "mlkem768x25519-sha256", ed25519, long));
        assert!(!asked(KexGuess::ByVersion, sntrup, ed25519, long));
        assert!(!asked(known, "curve25519-sha256", ed25519, long));
        assert!(!asked(known, sntrup, "rsa-sha2-512", long));
        assert!(!asked(known, sntrup, ed25519, None));
        assert!(!asked(
            known,
            sntrup,
            ed25519,
            Some(Duration::from_millis(1))
        ));
    }
}
