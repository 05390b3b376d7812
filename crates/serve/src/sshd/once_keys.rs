//! Keys that are valid for one login each, for a limited time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ssh::key::PublicKey;

use super::keys::{AuthorizedKeyLookup, LoginKey};
use super::refusal::{KeyRefusal, UnmetSecurityKeyRequirement};

/// Time after which an unused key is discarded.
const LIFE: Duration = Duration::from_secs(30);
/// Maximum number of unused keys at a time.
const MOST: usize = 64;

/// Unused one-login keys. Times are monotonic, so setting the clock has no effect.
#[derive(Debug, Default)]
pub(super) struct OneLoginKeys(Mutex<Vec<PendingOneLoginKey>>);

/// Key that was announced and has not logged in; it expires after 30 seconds.
#[derive(Debug)]
struct PendingOneLoginKey {
    key: PublicKey,
    since: Instant,
}

impl OneLoginKeys {
    /// Adds keys.
    ///
    /// # Errors
    /// Too many unused keys.
    pub(super) fn add(&self, now: Instant, keys: Vec<PublicKey>) -> Result<(), &'static str> {
        let mut waiting = self.waiting(now);
        if waiting.len() + keys.len() > MOST {
            return Err(
                "the client sent too many one-time keys without using them (longhaul protocol error)",
            );
        }
        waiting.extend(
            keys.into_iter()
                .map(|key| PendingOneLoginKey { key, since: now }),
        );
        Ok(())
    }

    /// True if a key is waiting, so that a login is possible.
    pub(super) fn any(&self, now: Instant) -> bool {
        !self.waiting(now).is_empty()
    }

    /// Checks an offered key; if the client has signed with it, the key is removed and cannot be
    /// used again.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(super) fn answer(
        &self,
        now: Instant,
        question: &AuthorizedKeyLookup<'_>,
    ) -> Result<LoginKey, KeyRefusal> {
        let check = question.check();
        let mut waiting = self.waiting(now);
        let is = |waiting: &PendingOneLoginKey| waiting.key.blob() == check.blob;
        let at = waiting.iter().position(is).ok_or(KeyRefusal::NotExpected)?;
        let key = &waiting[at].key;
        let entrant = LoginKey::of(key);
        if check.proved {
            let touch = question.proof(key)?;
            if touch.is_some_and(|touch| !touch.present) {
                return Err(UnmetSecurityKeyRequirement::Presence.into());
            }
            waiting.swap_remove(at);
        }
        Ok(entrant)
    }

    /// Discards expired keys and returns the others.
    fn waiting(&self, now: Instant) -> MutexGuard<'_, Vec<PendingOneLoginKey>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|key| now.saturating_duration_since(key.since) < LIFE);
        waiting
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ssh::key::PrivateKey;
    use ssh::msg::UserauthRequest;
    use wire::{Field as _, RemainingBytes};

    use super::super::message::KeyCheckRequest;
    use super::*;

    const SESSION: &[u8] = b"the id of a session, as long as an exchange hash is";

    /// A table of one-login keys with one key in it, and the time of the test.
    struct Scene {
        keys: OneLoginKeys,
        key: PrivateKey,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            let (keys, now) = (OneLoginKeys::default(), Instant::now());
            let key = PrivateKey::generate_ed25519().unwrap();
            keys.add(now, vec![key.public().clone()]).unwrap();
            Self { keys, key, now }
        }

        /// Signature data of RFC 4252 section 7.
        fn signature(&self, session_id: &[u8]) -> Vec<u8> {
            let mut data = Vec::new();
            true.write(&mut data);
            (&b"ssh-ed25519"[..]).write(&mut data);
            self.key.public_blob().write(&mut data);
            let mut covered = Vec::new();
            session_id.write(&mut covered);
            UserauthRequest {
                user: b"me",
                service: b"ssh-connection",
                method: b"publickey",
                data: RemainingBytes(&data),
            }
            .encode(&mut covered);
            self.key.sign("ssh-ed25519", &covered).unwrap()
        }

        fn answer(&self, at: Instant, signature: Option<&[u8]>) -> Result<LoginKey, KeyRefusal> {
            let check = KeyCheckRequest {
                blob: self.key.public_blob(),
                authority: b"",
                signed_len: 0,
                proved: signature.is_some(),
                session_id: SESSION,
                host_key: b"",
                algorithm: b"ssh-ed25519",
                host_bound: false,
                signature: signature.unwrap_or_default(),
            };
            let from = Ipv4Addr::LOCALHOST.into();
            self.keys
                .answer(at, &AuthorizedKeyLookup::new("me", from, &check))
        }
    }

    #[test]
    fn a_key_opens_one_connection() {
        let scene = Scene::new();
        let signature = scene.signature(SESSION);
        // Asking about a key does not use it up.
        assert!(scene.answer(scene.now, None).is_ok());
        assert!(scene.answer(scene.now, Some(&signature)).is_ok());
        assert!(scene.answer(scene.now, Some(&signature)).is_err());
        assert!(scene.answer(scene.now, None).is_err());
        assert!(!scene.keys.any(scene.now));
    }

    #[test]
    fn a_late_key_opens_nothing() {
        let scene = Scene::new();
        let signature = scene.signature(SESSION);
        let last = scene.now + LIFE - Duration::from_millis(1);
        assert!(scene.keys.any(last) && scene.answer(last, None).is_ok());
        assert!(scene.answer(scene.now + LIFE, Some(&signature)).is_err());
        // An expired key is gone for good, even if the time goes back.
        assert!(scene.answer(scene.now, Some(&signature)).is_err());
    }

    #[test]
    fn a_wrong_proof_opens_nothing_and_takes_nothing() {
        let scene = Scene::new();
        let other = scene.signature(b"another session, whose signature somebody has seen");
        assert!(scene.answer(scene.now, Some(&other)).is_err());
        assert!(scene.answer(scene.now, Some(b"")).is_err());
        let right = scene.signature(SESSION);
        assert!(scene.answer(scene.now, Some(&right)).is_ok());
    }

    #[test]
    fn keys_that_wait_are_bounded() {
        let scene = Scene::new();
        let key = scene.key.public();
        let all = vec![key.clone(); MOST];
        assert!(scene.keys.add(scene.now, all.clone()).is_err());
        assert!(scene.keys.add(scene.now + LIFE, all).is_ok());
    }
}
