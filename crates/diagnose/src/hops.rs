//! Two hops, to a jump host and behind it, compared by what each carries.

use crate::evidence::{Evidence, ThroughputScaling};
use crate::units::{rate, time};

/// Share of the first hop's rate from which on the whole way is as fast as it.
const AS_FAST: f64 = 0.8;

/// Says which hop limits the way, one sentence for each direction that was measured over both, and
/// how the round trip is shared.
pub fn compare_hops(jump: &str, first: &Evidence, whole: &Evidence) -> Vec<String> {
    let mut said = Vec::new();
    let pairs = [
        ("uploads", &first.up, &whole.up),
        ("downloads", &first.down, &whole.down),
    ];
    let best = |ladder: &ThroughputScaling| ladder.best().map(|best| best.rate);
    for (what, near, all) in pairs {
        let Some((near, all)) = best(near).zip(best(all)) else {
            said.push(format!("{what}: not measured over both hops"));
            continue;
        };
        let limit = match all > AS_FAST * near {
            true => format!("the way to {jump} is the limit"),
            false => format!("the limit is {jump} itself or the way behind it"),
        };
        said.push(format!(
            "{what}: {} to {jump}, {} to the host: {limit}",
            rate(near),
            rate(all)
        ));
    }
    if let Some((near, all)) = first.idle.zip(whole.idle) {
        said.push(format!(
            "round trip: {} to {jump}, {} behind it",
            time(near.median),
            time((all.median - near.median).max(0.0))
        ));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{MinMedianMax, ThroughputMeasurement};

    fn way(up: f64, rtt: f64) -> Evidence {
        let rungs = vec![ThroughputMeasurement {
            connections: 1,
            channels: 1,
            rate: up,
            ..ThroughputMeasurement::default()
        }];
        Evidence {
            up: ThroughputScaling {
                rungs,
                loaded: None,
            },
            idle: Some(MinMedianMax {
                low: rtt,
                median: rtt,
                high: rtt,
            }),
            ..Evidence::default()
        }
    }

    #[test]
    fn the_slower_hop_is_the_limit() {
        let said = compare_hops("gate", &way(1e7, 0.02), &way(2e6, 0.05));
        assert!(
            said[0].contains("gate itself or the way behind it"),
            "{said:?}"
        );
        assert!(
            said[2].contains("20 ms to gate, 30 ms behind it"),
            "{said:?}"
        );
        let said = compare_hops("gate", &way(1e7, 0.02), &way(9.5e6, 0.05));
        assert!(said[0].contains("the way to gate is the limit"), "{said:?}");
        assert!(said[1].contains("not measured"), "{said:?}");
    }
}
