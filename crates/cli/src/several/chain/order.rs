//! Order of the hosts of a chain.

/// A host that is known to be slower than the fastest one by this factor goes behind the others:
/// every host behind it gets the file at most at its rate.
const SLOWER: u64 = 4;

/// Returns the numbers of hosts in the order of a chain. `rates` has the rate from here to each host
/// in bytes per second, if a recent copy has shown it. Hosts of about the same rate, and those whose
/// rate is unknown, keep their order.
pub(super) fn order(rates: &[Option<u64>]) -> Vec<usize> {
    let best = rates.iter().flatten().copied().max().unwrap_or(0);
    let times_slower = |host: &usize| {
        let rate = rates.get(*host).copied().flatten().unwrap_or(best);
        let ratio = best.checked_div(rate.max(1)).unwrap_or(0).max(1);
        ratio.ilog(SLOWER)
    };
    let mut hosts: Vec<usize> = (0..rates.len()).collect();
    hosts.sort_by_key(times_slower);
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_host_does_not_slow_the_others_down() {
        assert_eq!(order(&[None, None, None]), [0, 1, 2]);
        assert_eq!(
            order(&[Some(2_000_000), None, Some(100_000_000)]),
            [1, 2, 0]
        );
        // Rates vary from copy to copy.
        assert_eq!(order(&[Some(30_000_000), Some(100_000_000)]), [0, 1]);
        let all = [Some(1_000), Some(1_000_000), None, Some(90_000_000)];
        assert_eq!(order(&all), [2, 3, 1, 0]);
        assert_eq!(order(&[Some(0), Some(u64::MAX)]), [1, 0]);
        assert_eq!(order(&[]), [0; 0]);
    }
}
