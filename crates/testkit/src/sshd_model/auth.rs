//! Server side of authentication in the sshd model (RFC 4252, RFC 4256).

use ssh::key::PublicKey;
use ssh::msg::{
    ServiceAccept, ServiceRequest, UserauthBanner, UserauthFailure, UserauthInfoRequest,
    UserauthInfoResponse, UserauthPkOk, UserauthRequest, UserauthSuccess,
};
use ssh::{Error, PeerMisbehaved};
use wire::{Field, FieldReader, NameList, PacketBuf, RemainingBytes};

use super::{SshdModel, Step, Way};

/// Maximum number of failures: MaxAuthTries of sshd_config.
const MAX_TRIES: u32 = 6;

/// Progress of one client's authentication with the model, and its number of failures.
#[derive(Debug, Default)]
pub(super) struct Auth {
    pub(super) done: bool,
    accepted: bool,
    greeted: bool,
    /// Number of [`super::SshdModelSettings::ways`] that were passed.
    passed: usize,
    failures: u32,
    asked: bool,
}

/// Result of judging an authentication request.
enum Verdict {
    Right,
    Wrong,
    /// The request was answered with something other than success or failure.
    Answered,
}

impl SshdModel {
    pub(super) fn handle_auth(&mut self, payload: &[u8]) -> Result<(), Error> {
        let number = payload.first().copied().unwrap_or_default();
        match number {
            ServiceRequest::NUMBER => {
                let name = ServiceRequest::decode(payload)?.name;
                assert_eq!(name, b"ssh-userauth");
                self.auth.accepted = true;
                self.say(&ServiceAccept { name }.to_bytes())?;
                self.reach(Step::ServiceAccept)
            }
            _ if !self.auth.accepted => Err(PeerMisbehaved::Unexpected(number).into()),
            UserauthRequest::NUMBER => {
                self.reach(Step::Answer)?;
                if let Some(text) = self.config.banner.take() {
                    let banner = UserauthBanner {
                        text: &text,
                        language: b"",
                    };
                    self.say(&banner.to_bytes())?;
                }
                self.auth.greeted = true;
                let verdict = self.judge(payload)?;
                self.answer(verdict)
            }
            UserauthInfoResponse::NUMBER => {
                let verdict = self.judge_answers(payload)?;
                self.answer(verdict)
            }
            number => Err(PeerMisbehaved::Unexpected(number).into()),
        }
    }

    fn judge(&mut self, payload: &[u8]) -> Result<Verdict, Error> {
        let m = UserauthRequest::decode(payload)?;
        assert_eq!(m.service, b"ssh-connection");
        let way = self.config.ways.get(self.auth.passed).cloned();
        let mut r = FieldReader::new(m.data.0);
        let right = match (m.method, way) {
            (b"password", Some(Way::Password(right))) => {
                assert!(r.u8()? == 0, "no new password was asked for");
                r.string()? == right.as_bytes()
            }
            (b"publickey", Some(Way::Key(blob))) => {
                return self.judge_key(payload, r, &blob, false);
            }
            (b"publickey-hostbound-v00@openssh.com", Some(Way::Key(blob))) => {
                return self.judge_key(payload, r, &blob, true);
            }
            (b"keyboard-interactive", Some(Way::Prompts(prompts))) => {
                self.auth.asked = true;
                let mut out = Vec::new();
                for (prompt, _) in &prompts {
                    prompt.as_bytes().write(&mut out);
                    false.write(&mut out);
                }
                let ask = UserauthInfoRequest {
                    name: b"",
                    instruction: b"",
                    language: b"",
                    count: prompts.len() as u32,
                    prompts: RemainingBytes(&out),
                };
                self.say(&ask.to_bytes())?;
                return Ok(Verdict::Answered);
            }
            (_, None) => true,
            _ => false,
        };
        Ok(verdict(right))
    }

    fn judge_key(
        &mut self,
        payload: &[u8],
        mut r: FieldReader<'_>,
        right: &[u8],
        hostbound: bool,
    ) -> Result<Verdict, Error> {
        let signed = r.u8()? != 0;
        let (algorithm, blob) = (r.string()?, r.string()?);
        if hostbound {
            assert_eq!(r.string()?, self.config.host_key.public_blob());
        }
        if blob != right {
            return Ok(Verdict::Wrong);
        }
        if !signed {
            r.finish()?;
            self.say(&UserauthPkOk { algorithm, blob }.to_bytes())?;
            self.reach(Step::PkOk)?;
            return Ok(Verdict::Answered);
        }
        let signature = r.string()?;
        r.finish()?;
        let mut data = Vec::new();
        let session = self.transport.session_id().expect("keys are in use");
        (&**session).write(&mut data);
        let unsigned = payload.len() - 4 - signature.len();
        data.extend_from_slice(payload.get(..unsigned).unwrap_or_default());
        let key = PublicKey::from_blob(blob).expect("the configured key");
        let algorithm = std::str::from_utf8(algorithm).unwrap_or_default();
        Ok(verdict(key.verify(algorithm, &data, signature).is_ok()))
    }

    fn judge_answers(&mut self, payload: &[u8]) -> Result<Verdict, Error> {
        let m = UserauthInfoResponse::decode(payload)?;
        assert!(std::mem::take(&mut self.auth.asked), "prompts were sent");
        let Some(Way::Prompts(prompts)) = self.config.ways.get(self.auth.passed) else {
            return Ok(Verdict::Wrong);
        };
        let mut r = FieldReader::new(m.answers.0);
        let mut right = m.count as usize == prompts.len();
        for (_, answer) in prompts {
            right &= r.string()? == answer.as_bytes();
        }
        r.finish()?;
        Ok(verdict(right))
    }

    fn answer(&mut self, verdict: Verdict) -> Result<(), Error> {
        let partial = match verdict {
            Verdict::Answered => return Ok(()),
            Verdict::Right => {
                self.auth.passed += 1;
                if self.auth.passed >= self.config.ways.len() {
                    self.auth.done = true;
                    self.say(&UserauthSuccess {}.to_bytes())?;
                    self.transport.set_authenticated();
                    self.reach(Step::Success)?;
                    // Corresponds to ssh_packet_write_wait after USERAUTH_SUCCESS.
                    self.take_output();
                    return Ok(());
                }
                true
            }
            Verdict::Wrong => {
                self.auth.failures += 1;
                if self.auth.failures > MAX_TRIES {
                    self.transport
                        .disconnect(2, "Too many authentication failures")?;
                    return Err(PeerMisbehaved::TooMany("authentication failures").into());
                }
                false
            }
        };
        let next = self.config.ways.get(self.auth.passed).map(Way::method);
        let methods = NameList::new(next.unwrap_or_default())?;
        let failure = UserauthFailure {
            methods,
            partial_success: partial,
        };
        self.say(&failure.to_bytes())
    }

    pub(super) fn say(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.transport.send(PacketBuf::from_payload(payload))
    }
}

fn verdict(right: bool) -> Verdict {
    match right {
        true => Verdict::Right,
        false => Verdict::Wrong,
    }
}
