//! Fuzzes the messages of the peer relay of a pair.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up ends it")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use fuzz::{Corpus, operate, parse};
use pair::control::{RelayControlDecoder, RelayControlMessage, StartedRelayConfig, marker};
use pair::{
    AbortReason, DataFrame, FrameDecoder, MOST_DATA, StripeFrame, StripeId, StripedConnection,
    StripedConnectionConfig,
};

fn frames() -> Corpus {
    let piece = |packed, bytes: &'static [u8]| {
        StripeFrame::Data(DataFrame {
            offset: 0,
            len: 40,
            packed,
            bytes: Bytes::from_static(bytes),
        })
    };
    let all = [
        (
            "hello",
            StripeFrame::Hello {
                token: [1; 16],
                joins: false,
            },
        ),
        ("data", piece(false, &[7; 40])),
        (
            "zstd",
            piece(
                true,
                b"\x28\xb5\x2f\xfd\x20\x28\x45\x00\x00\x10\x07\x07\x01\x00\x23\x2b\x05",
            ),
        ),
        ("end", StripeFrame::End(40)),
        (
            "ack",
            StripeFrame::Ack {
                received: 0,
                limit: 1 << 20,
            },
        ),
        ("blocked", StripeFrame::Blocked(65536)),
        ("full", StripeFrame::Full),
        ("bye", StripeFrame::Bye),
        ("abort", StripeFrame::Abort(AbortReason::Broken)),
    ];
    let bytes = all.map(|(name, frame)| (name, frame.encode().to_vec()));
    Corpus(bytes.to_vec())
}

/// Decoded frames encode to the same frame, and the parser holds no more than it was given.
#[test]
fn frames_of_anybody() {
    let corpus = frames();
    parse(2000, |u| {
        let bytes = corpus.mutant(u)?;
        let mut whole = FrameDecoder::default();
        whole.push(&bytes);
        let mut parts = FrameDecoder::default();
        for part in bytes.chunks(u.int_in_range(1..=7)?) {
            parts.push(part);
        }
        loop {
            let frame = whole.poll();
            assert_eq!(frame, parts.poll());
            let Ok(Some(frame)) = frame else {
                break;
            };
            let mut again = FrameDecoder::default();
            again.push(&frame.encode());
            assert_eq!(again.poll(), Ok(Some(frame)));
        }
        Ok(())
    });
}

/// Fuzzes control messages in both directions between a relay and the peer relay started over ssh.
#[test]
fn control_messages_of_anybody() {
    let all = [
        (
            "here",
            RelayControlMessage::Hello {
                software: "0.1.0".to_owned(),
                key: "SHA256:x".to_owned(),
            },
        ),
        (
            "begin",
            RelayControlMessage::Configure(StartedRelayConfig {
                allow: vec!["SHA256:a".to_owned()],
                target: "localhost:22".to_owned(),
                ..StartedRelayConfig::default()
            }),
        ),
        ("listens", RelayControlMessage::Listening(22)),
        ("failed", RelayControlMessage::Failed("why".to_owned())),
        ("alive", RelayControlMessage::Keepalive),
        ("open", RelayControlMessage::OpenStripe(1)),
        (
            "carried",
            RelayControlMessage::StripeData(1, Bytes::from_static(b"x")),
        ),
        ("gone", RelayControlMessage::StripeClosed(1)),
    ];
    let bytes = all.map(|(name, said)| (name, [&marker()[..], &said.encode()].concat()));
    let corpus = Corpus(bytes.to_vec());
    parse(2000, |u| {
        let bytes = corpus.mutant(u)?;
        let mut whole = RelayControlDecoder::of_half();
        whole.push(&bytes);
        while let Ok(Some(said)) = whole.poll() {
            let mut again = RelayControlDecoder::of_starter();
            again.push(&said.encode());
            assert_eq!(again.poll(), Ok(Some(said)));
        }
        Ok(())
    });
}

/// A session that receives any frames in any order holds no more than its limit, and never panics.
#[test]
fn sessions_with_anybody() {
    operate(4000, |u| {
        let most = 128 << 10;
        let mut session = StripedConnection::new(StripedConnectionConfig {
            most,
            zstd: true,
            answers: u.arbitrary()?,
        });
        let begun = Instant::now();
        let (mut now, mut read) = (begun, 0_u64);
        session.add(StripeId(0));
        session.add(StripeId(1));
        let mut part = vec![0; 10_000];
        while !u.is_empty() {
            now += Duration::from_millis(u.int_in_range(0..=50)?);
            let leg = StripeId(u.int_in_range(0..=2)?);
            let len = u.int_in_range(1..=MOST_DATA as u32)?;
            let offset = match u.arbitrary()? {
                true => u64::from(u.arbitrary::<u16>()?),
                false => u.arbitrary()?,
            };
            let frame = match u.int_in_range(0..=9)? {
                0 => StripeFrame::Data(DataFrame {
                    offset: offset.min(u64::MAX - 2 * MOST_DATA as u64),
                    len: len.min(3000),
                    packed: false,
                    bytes: vec![1; len.min(3000) as usize].into(),
                }),
                1 => StripeFrame::End(offset),
                2 => StripeFrame::Ack {
                    received: offset,
                    limit: u.arbitrary()?,
                },
                3 => StripeFrame::Blocked(offset),
                4 => StripeFrame::Full,
                5 => {
                    session.write(&part);
                    let _ = session.poll(leg, &mut || now);
                    continue;
                }
                6 => {
                    read += session.read(&mut part, now) as u64;
                    continue;
                }
                7 => {
                    session.remove(leg);
                    session.add(leg);
                    continue;
                }
                8 => {
                    session.finish();
                    session.pass_on_end();
                    continue;
                }
                _ => StripeFrame::Bye,
            };
            if session.handle(leg, &frame, now).is_err() {
                break;
            }
            assert!(
                session
                    .deadline()
                    .is_none_or(|at| at > begun - Duration::from_secs(1))
            );
        }
        let mut held = 0;
        while let n @ 1.. = session.read(&mut part, now) {
            held += n as u64;
        }
        assert!(
            held <= most,
            "{held} bytes were held, and {read} read before"
        );
        Ok(())
    });
}
