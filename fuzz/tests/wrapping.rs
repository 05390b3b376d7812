//! Fuzzes what the library of `longhaul wrap` reads: its rules, and program files.

use std::net::SocketAddr;

use fuzz::{Corpus, parse, some_bytes};
use shim::program::{ExecutableFormat, look};
use shim::rules::{NetworkRule, WrapRules};

#[test]
fn rules() {
    let texts = [
        "always,dscp=8,congestion=bbr,report=/a,b",
        "route=192.0.2.0/24:22=127.0.0.1:1,route=2001:db8::/32=[::1]:2",
        "route=[2001:db9::1]:80=[::1]:3,route=*:80=socks5://127.0.0.1:4",
        "tune,no-tune,,route=0.0.0.0/0=127.0.0.1:1",
    ];
    let corpus = Corpus(texts.map(|text| (text, text.as_bytes().to_vec())).into());
    parse(512, |u| {
        let bytes = corpus.mutant(u)?;
        let text = String::from_utf8_lossy(&bytes);
        let to: SocketAddr = match u.arbitrary()? {
            true => (u.arbitrary::<[u8; 4]>()?, u.arbitrary()?).into(),
            false => (u.arbitrary::<[u8; 16]>()?, u.arbitrary()?).into(),
        };
        match WrapRules::parse(&text) {
            Ok(rules) => {
                assert!(rules.dscp < 64 && (rules.tune || !rules.always));
                assert!(rules.report.is_none_or(|file| file.starts_with('/')));
                if let Some(route) = rules.route(to) {
                    assert!(rules.routes().any(|other| other == route));
                    assert!(route.to.port.is_none_or(|port| port == to.port()));
                }
            }
            Err(error) => assert!(text.contains(error.word) && !error.why.is_empty()),
        }
        let _ = NetworkRule::parse(&text);
        Ok(())
    });
}

#[test]
fn files_of_programs() {
    let mut own = std::fs::read("/proc/self/exe").expect("a test has a file");
    own.truncate(2048);
    let corpus = Corpus(vec![
        ("a program", own.clone()),
        ("a script", b"#! /usr/bin/env -S python3 -u\n".to_vec()),
    ]);
    parse(4096, |u| {
        let bytes = match u.ratio(1, 4)? {
            true => some_bytes(u)?,
            false => corpus.mutant(u)?,
        };
        if let ExecutableFormat::Script { interpreter, .. } = look(&bytes, &own) {
            assert!(interpreter.starts_with(b"/"));
        }
        Ok(())
    });
}
