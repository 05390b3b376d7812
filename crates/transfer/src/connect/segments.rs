//! Segments that sshd's answer to a key exchange fills.
//!
//! sshd has Nagle's algorithm on until a session begins (RFC 9293 section 3.7.4): behind its identification, until that
//! is acknowledged, no segment leaves that is not full. Where KEXINIT and the guessed key exchange arrive with our
//! identification, its own KEXINIT and its reply are ready a round trip before that, 2,660 bytes of OpenSSH 9.2, of
//! which NEWKEYS ends at 2,344: of segments of 1,448 bytes one is full, and what is missing comes a round trip later. So
//! smaller ones are asked for, two of which hold what is needed. Over 114 ms a known host takes 0.61 s for a small
//! file instead of 0.72 (docs/design/0001-one-flight.md).

use std::time::Duration;

use ssh::transport::Guess;

/// The largest segment to ask for, with TCP's options (RFC 9293 section 3.7.1): 1,328 bytes of data beside a time
/// stamp, and 2,656 in two. On Ethernet data come 0.4 % slower than in full ones.
const MSS: u16 = 1340;
/// On a shorter path a round trip is not worth even that.
const LONG: Duration = Duration::from_millis(20);
/// Key exchanges whose replies take more than a segment with KEXINIT, and no more than two.
const LARGE: [&str; 2] = ["sntrup761x25519-sha512", "mlkem768x25519-sha256"];

/// What to ask for on the way to a server with that first kex and host key algorithm, if anything is.
pub(super) fn asked(
    guess: Guess,
    kex: Option<&String>,
    host_key: Option<&String>,
    rtt: Option<Duration>,
) -> Option<u16> {
    let at_once = matches!(guess, Guess::Remembered);
    let large = kex.is_some_and(|kex| LARGE.iter().any(|name| kex.starts_with(name)));
    // An RSA key and its signature fill half a segment more; certificates have any length.
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
        let known = Guess::Remembered;
        assert!(asked(known, sntrup, ed25519, long));
        assert!(asked(known, "mlkem768x25519-sha256", ed25519, long));
        assert!(!asked(Guess::ByVersion, sntrup, ed25519, long));
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
