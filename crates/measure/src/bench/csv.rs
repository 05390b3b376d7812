//! Formats a result as CSV (RFC 4180), a line for each run.

use std::fmt::Write as _;

use super::BenchResult;

/// The header line.
const HEAD: &str = "kind,name,mac,compression,data,way,place,connections,channels,longhaul_there,by_ssh,\
                    threads,warm_up,bytes,seconds,bytes_per_second,near_cpu_s_per_gb,far_cpu_s,\
                    trouble";

/// All runs of a result as CSV.
pub fn csv(bench: &BenchResult) -> String {
    let mut text = format!("{HEAD}\n");
    for primitive in &bench.primitives {
        for rate in &primitive.rates {
            let _ = writeln!(
                text,
                "{},{},,,{},,,,,,,{},,,,{rate:.0},,,",
                field(&primitive.kind),
                field(&primitive.name),
                field(&primitive.what),
                primitive.threads
            );
        }
    }
    for row in &bench.rows {
        let s = &row.setting;
        let setting = format!(
            "copy,{},{},{},{},{},{},{},{},{},{},",
            field(&s.cipher),
            field(s.mac.as_deref().unwrap_or_default()),
            s.compression,
            s.data,
            s.way,
            s.place,
            s.connections,
            s.channels,
            s.both_ours,
            s.carried
        );
        if let Some(trouble) = &row.trouble {
            let _ = writeln!(text, "{setting},,,,,,,{}", field(trouble));
        }
        for (number, run) in row.runs.iter().enumerate() {
            let far = run
                .far_cpu_seconds
                .map_or_else(String::new, |cpu| format!("{cpu:.3}"));
            let _ = writeln!(
                text,
                "{setting},{},{},{:.4},{:.0},{:.4},{far},",
                number == 0,
                run.bytes,
                run.seconds,
                run.rate,
                run.near_cpu
            );
        }
    }
    text
}

/// Quotes a field if it contains a separator, a quote or a line end.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_with_a_comma_is_one_field() {
        assert_eq!(field("a"), "a");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
