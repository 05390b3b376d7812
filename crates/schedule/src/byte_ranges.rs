use std::collections::BTreeMap;

/// Set of byte ranges of a file that neither touch nor overlap, each from its first byte to the
/// first byte after it. The end `u64::MAX` stands for the end of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteRanges {
    ranges: BTreeMap<u64, u64>,
}

/// End of a range that extends to the end of the file.
pub(crate) const OPEN: u64 = u64::MAX;

impl ByteRanges {
    /// Returns the range of a whole file.
    pub(crate) fn all() -> Self {
        let ranges = BTreeMap::from([(0, OPEN)]);
        Self { ranges }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(from, to)| (*from, *to))
    }

    pub(crate) fn count(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.iter().next()
    }

    /// Returns the number of bytes before `size`.
    pub(crate) fn len_before(&self, size: u64) -> u64 {
        let part = |(from, to): (u64, u64)| to.min(size).saturating_sub(from);
        self.iter().map(part).sum()
    }

    /// Returns true if all bytes from `from` up to but not including `to` are in the set.
    pub fn contains(&self, from: u64, to: u64) -> bool {
        let at = self.ranges.range(..=from).next_back();
        from >= to || at.is_some_and(|(_, end)| *end >= to)
    }

    /// Returns the range that contains the byte at `offset`.
    pub fn around(&self, offset: u64) -> Option<(u64, u64)> {
        let (from, to) = self.ranges.range(..=offset).next_back()?;
        (*to > offset).then_some((*from, *to))
    }

    /// Adds the bytes from `from` up to but not including `to`.
    pub fn insert(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        let touching: Vec<u64> = self
            .ranges
            .range(..=to)
            .rev()
            .take_while(|(_, end)| **end >= from)
            .map(|(start, _)| *start)
            .collect();
        for start in touching {
            if let Some(end) = self.ranges.remove(&start) {
                from = from.min(start);
                to = to.max(end);
            }
        }
        self.ranges.insert(from, to);
    }

    /// Removes the bytes from `from` up to but not including `to`.
    pub fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let overlapping: Vec<(u64, u64)> = self
            .ranges
            .range(..to)
            .rev()
            .take_while(|(_, end)| **end > from)
            .map(|(start, end)| (*start, *end))
            .collect();
        for (start, end) in overlapping {
            self.ranges.remove(&start);
            if start < from {
                self.ranges.insert(start, from);
            }
            if end > to {
                self.ranges.insert(to, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(ranges: &[(u64, u64)]) -> ByteRanges {
        let mut spans = ByteRanges::default();
        for (from, to) in ranges {
            spans.insert(*from, *to);
        }
        spans
    }

    #[test]
    fn what_touches_becomes_one() {
        let s = spans(&[(0, 10), (20, 30), (10, 20)]);
        assert_eq!(s.iter().collect::<Vec<_>>(), [(0, 30)]);
        let s = spans(&[(5, 6), (0, 10), (12, 14), (9, 13)]);
        assert_eq!(s.iter().collect::<Vec<_>>(), [(0, 14)]);
    }

    #[test]
    fn what_is_taken_out_is_gone() {
        let mut s = ByteRanges::all();
        s.remove(10, 20);
        s.remove(15, 30);
        s.remove(100, OPEN);
        assert_eq!(s.iter().collect::<Vec<_>>(), [(0, 10), (30, 100)]);
        assert!(s.contains(30, 100) && !s.contains(5, 11) && s.contains(5, 5));
        assert_eq!(s.len_before(40), 20);
        assert_eq!(
            (s.around(30), s.around(9)),
            (Some((30, 100)), Some((0, 10)))
        );
        assert_eq!((s.around(10), s.around(100)), (None, None));
    }

    #[test]
    fn it_agrees_with_a_set_of_bytes() {
        let mut rng = testkit::sftp_model::Rng::new(4);
        let (mut spans, mut bytes) = (ByteRanges::default(), [false; 64]);
        for _ in 0..4000 {
            let (a, b) = (rng.below(64), rng.below(64));
            let (from, to) = (a.min(b), a.max(b));
            let put = rng.below(2) == 0;
            match put {
                true => spans.insert(from, to),
                false => spans.remove(from, to),
            }
            bytes[from as usize..to as usize].fill(put);
            let mut seen = [false; 64];
            for (from, to) in spans.iter() {
                seen[from as usize..to as usize].fill(true);
            }
            assert_eq!(seen, bytes);
            let ends: Vec<(u64, u64)> = spans.iter().collect();
            assert!(ends.windows(2).all(|w| w[0].1 < w[1].0), "{ends:?}");
        }
    }
}
