//! Choice of the next authentication request.

use super::{AuthMethod, AwaitedReply, ClientAuthEvent, UserAuth, request};

impl UserAuth {
    /// Sends the next request that the server may accept, or reports failure.
    pub(super) fn next_step(&mut self) {
        let tried = self.config.methods.clone().into_iter().any(|method| {
            self.allows(method)
                && match method {
                    AuthMethod::PublicKey => self.offer_key(),
                    AuthMethod::KeyboardInteractive => self.ask_interactively(),
                    AuthMethod::Password => self.ask_password(),
                }
        });
        if !tried {
            self.awaits = AwaitedReply::Done;
            let server = self.allowed.clone().unwrap_or_default();
            self.events
                .push_back(ClientAuthEvent::Failed { server, why: None });
        }
    }

    fn allows(&self, method: AuthMethod) -> bool {
        self.allowed
            .as_ref()
            .is_none_or(|names| names.iter().any(|n| n == method.name()))
    }

    fn ask_interactively(&mut self) -> bool {
        if self.interactive >= self.config.max_prompts {
            return false;
        }
        self.interactive += 1;
        self.rounds = 0;
        self.awaits = AwaitedReply::Interactive;
        self.send(request::interactive(&self.config));
        true
    }

    fn ask_password(&mut self) -> bool {
        if self.passwords >= self.config.max_prompts {
            return false;
        }
        self.passwords += 1;
        self.awaits = AwaitedReply::Password;
        self.events.push_back(ClientAuthEvent::Password {
            attempt: self.passwords,
        });
        true
    }

    /// Offers the next key with its next algorithm; returns false if no key is left.
    pub(super) fn offer_key(&mut self) -> bool {
        let server = self.config.signature_algorithms.as_deref();
        while let (identity, refused) = self.next_key
            && let Some(key) = self.config.identities.get(identity)
        {
            let Some(algorithm) = key.algorithm(server, refused) else {
                self.next_key = (identity + 1, None);
                continue;
            };
            self.next_key = (identity, Some(algorithm));
            if key.direct {
                self.ask_signature(identity, algorithm);
            } else {
                let query = request::public_key(&self.config, key, algorithm, false);
                self.awaits = AwaitedReply::PkOk {
                    identity,
                    algorithm,
                };
                self.send(query);
            }
            return true;
        }
        false
    }

    pub(super) fn ask_signature(&mut self, identity: usize, algorithm: usize) {
        let Some(key) = self.config.identities.get(identity) else {
            return;
        };
        self.awaits = AwaitedReply::Signature;
        self.unsigned = request::public_key(&self.config, key, algorithm, true);
        self.events.push_back(ClientAuthEvent::Sign {
            identity,
            algorithm: key.algorithms.get(algorithm).cloned().unwrap_or_default(),
            data: request::to_be_signed(&self.config, &self.unsigned),
        });
    }
}
