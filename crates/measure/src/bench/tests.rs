use super::*;

fn setting(cipher: &str, compression: Compression, data: Data) -> Setting {
    Setting {
        cipher: cipher.to_owned(),
        mac: None,
        compression,
        data,
        way: Way::Up,
        place: Place::Memory,
        connections: 1,
        channels: 1,
        both_ours: false,
        carried: false,
    }
}

/// A warm-up that is half as fast, and six runs.
fn row(setting: Setting, rate: f64, cpu: f64) -> Row {
    let runs = (0..7).map(|number| Run {
        at: f64::from(number),
        bytes: 100_000_000,
        seconds: 1.0,
        rate: if number == 0 { rate / 2.0 } else { rate },
        near_cpu: cpu,
        far_cpu_seconds: Some(0.1),
    });
    Row {
        setting,
        runs: runs.collect(),
        trouble: None,
    }
}

fn bench() -> Bench {
    let (gcm, chacha) = ("aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com");
    Bench {
        kind: KIND.to_owned(),
        schema: SCHEMA,
        date: "2026-11-22T10:00:00Z".to_owned(),
        software: "0.1.0".to_owned(),
        machine: Machine::default(),
        host: Some(Host {
            name: "h<1>".to_owned(),
            ..Host::default()
        }),
        seconds: 9.0,
        limit_seconds: 10.0,
        primitives: vec![Primitive {
            kind: "cipher".to_owned(),
            name: gcm.to_owned(),
            what: "seal".to_owned(),
            threads: 1,
            rates: vec![3e9; 6],
        }],
        rows: vec![
            row(setting(gcm, Compression::None, Data::Random), 112e6, 0.5),
            row(setting(chacha, Compression::None, Data::Random), 111e6, 1.5),
            row(setting(gcm, Compression::Zlib, Data::Text), 150e6, 20.0),
            row(setting(gcm, Compression::Zlib, Data::Gzipped), 30e6, 30.0),
        ],
        not_reached: 2,
        named: matrix::named("cipher", "3des-cbc", &[]),
        ratios: vec![
            Ratio {
                data: Data::Text,
                compression: Compression::Zlib,
                ratio: 0.36,
            },
            Ratio {
                data: Data::Gzipped,
                compression: Compression::Zlib,
                ratio: 1.001,
            },
        ],
        advice: Vec::new(),
        warnings: Vec::new(),
        partial: None,
    }
}

#[test]
fn the_warm_up_does_not_count() {
    let row = row(setting("c", Compression::None, Data::Random), 10.0, 1.0);
    assert_eq!(row.rate().unwrap().low, 10.0);
    assert_eq!(row.counted().len(), 6);
    let alone = Row {
        runs: row.runs[..1].to_vec(),
        ..row.clone()
    };
    assert!(alone.is_cold());
    assert_eq!(alone.rate().unwrap().median, 5.0);
    assert_eq!(row.far_cpu(), Some(1.0));
}

#[test]
fn compression_is_advised_where_it_pays() {
    let bench = bench();
    let advice = advice::advise(&bench);
    let of = |data| advice.iter().find(|a| a.data == data).unwrap();
    let text = of(Data::Text);
    assert_eq!(text.setting.compression, Compression::Zlib);
    assert!(
        text.reason.contains("zlib pays: 150 MB/s against 112"),
        "{}",
        text.reason
    );
    assert!(text.reason.contains("36 %"), "{}", text.reason);
    assert!(text.longhaul.ends_with("-c aes128-gcm@openssh.com -C"));
    assert_eq!(text.ssh_config.last().unwrap(), "Compression yes");
    let gzipped = of(Data::Gzipped);
    assert_eq!(gzipped.setting.compression, Compression::None);
    assert!(
        gzipped.reason.contains("does not pay: 30.0 MB/s with zlib"),
        "{}",
        gzipped.reason
    );
    assert_eq!(gzipped.ssh_config.last().unwrap(), "Compression no");
}

#[test]
fn of_ciphers_that_are_as_fast_the_cheaper_one_is_advised() {
    let advice = advice::advise(&bench());
    let random = advice.iter().find(|a| a.data == Data::Random).unwrap();
    assert_eq!(random.setting.cipher, "aes128-gcm@openssh.com");
    assert!(
        random.reason.contains("costs the least"),
        "{}",
        random.reason
    );
    assert_eq!(
        random.ssh_config[0],
        "Ciphers aes128-gcm@openssh.com,chacha20-poly1305@openssh.com"
    );
    assert!(random.ssh_config.iter().all(|line| !line.contains("3des")));
}

#[test]
fn a_result_is_read_back_and_nothing_else_is() {
    let bench = bench();
    let text = serde_json::to_string(&bench).unwrap();
    assert_eq!(read(&text).unwrap(), bench);
    assert!(read("{}").unwrap_err().contains("no result"));
    assert!(read("[").unwrap_err().contains("no JSON"));
    let later = text.replace("\"schema\":1", "\"schema\":2");
    assert!(read(&later).unwrap_err().contains("later"));
    for end in 0..text.len() {
        assert!(read(&text[..end]).is_err());
    }
}

#[test]
fn text_csv_and_page_say_what_there_is() {
    let mut bench = bench();
    bench.advice = advice::advise(&bench);
    bench.partial = Some("interrupted".to_owned());
    bench.rows[1].trouble = Some("it said \"no\", twice".to_owned());
    let text = text::text(&bench);
    for part in [
        "3des-cbc (WEAK)",
        "PARTIAL: interrupted",
        "2 more settings",
        "Not measured: chacha20",
        "Compression yes",
        "112",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let csv = csv::csv(&bench);
    let columns = csv.lines().next().unwrap().split(',').count();
    for line in csv.lines().filter(|line| !line.contains('"')) {
        assert_eq!(line.split(',').count(), columns, "{line}");
    }
    assert!(csv.contains("\"it said \"\"no\"\", twice\""));
    let page = page::page(&bench);
    assert!(page.contains("h&lt;1&gt;") && !page.contains("h<1>"));
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
}

#[test]
fn noise_heat_and_haste_are_warned_of() {
    let mut bench = bench();
    bench.judge();
    assert_eq!(bench.warnings, [""; 0]);
    for (number, run) in bench.rows[0].runs.iter_mut().enumerate() {
        run.rate *= 1.0 + 0.3 * (number % 2) as f64;
    }
    bench.rows[1].runs.truncate(1);
    bench.judge();
    let said = bench.warnings.join("\n");
    assert!(said.contains("noise: 1 of 4"), "{said}");
    assert!(said.contains("one run only of 1"), "{said}");
    let mut hot = self::bench();
    for row in &mut hot.rows {
        for (number, run) in row.runs.iter_mut().enumerate() {
            run.rate *= if number > 3 { 0.9 } else { 1.0 };
        }
    }
    hot.judge();
    assert!(
        hot.warnings.join("\n").contains("slower by 10 %"),
        "{:?}",
        hot.warnings
    );
}

#[test]
fn what_changed_is_told_from_what_did_not() {
    let before = bench();
    let mut now = bench();
    for run in &mut now.rows[0].runs {
        run.rate *= 1.05;
    }
    let changes = compare::compare(&before, &now);
    assert_eq!(changes.len(), 5);
    let sure: Vec<&compare::Change> = changes.iter().filter(|c| c.sure).collect();
    assert_eq!(sure.len(), 1);
    assert!((sure[0].ratio() - 1.05).abs() < 1e-9);
    assert!(compare::shown(&changes).contains("within the spread"));
    assert_eq!(compare::shown(&[]), "");
}
