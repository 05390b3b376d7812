//! Adaptive compression of frames.
//!
//! Frames are compressed only while all stripes are full and data waits for the path. The benefit
//! is measured: a compressed frame arrives sooner if compressing it takes less time than the path
//! needs for the bytes saved. Data that does not compress is tried less and less often.

use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use zstd::bulk::{Compressor, Decompressor};

use crate::PairError;

/// Default level of zstd: at lower levels text becomes a sixth longer, higher levels take twice as
/// long.
const LEVEL: i32 = 3;
/// Maximum age of the last report of full stripes.
const FULL: Duration = Duration::from_secs(1);
/// Time over which the rate of the path is measured.
const SPAN: Duration = Duration::from_millis(250);
/// A frame is sent compressed only below this ratio.
const WORTH: f64 = 0.95;
/// Maximum number of frames skipped before the next attempt.
const MOST_SKIPPED: u32 = 1024;
/// Frames below this size in bytes are never compressed.
const SMALL: usize = 512;

/// Decides which frames are compressed, and compresses them.
pub(crate) struct FrameCompression {
    on: bool,
    compressor: Option<Compressor<'static>>,
    /// Number of frames left to skip.
    skip: u32,
    skip_next: u32,
    /// Compression speed in bytes per second.
    speed: f64,
    /// Rate of the path in bytes per second; 0 while unknown.
    path: f64,
    span: Option<(Instant, u64)>,
    full: Option<Instant>,
}

impl fmt::Debug for FrameCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Squeeze")
    }
}

impl FrameCompression {
    pub(crate) fn new(on: bool) -> Self {
        Self {
            on,
            compressor: None,
            skip: 0,
            skip_next: 1,
            speed: 0.0,
            path: 0.0,
            span: None,
            full: None,
        }
    }

    /// Records that all stripes are full.
    pub(crate) fn full(&mut self, now: Instant) {
        self.full = Some(now);
    }

    /// Records that bytes were given to a stripe.
    pub(crate) fn sent(&mut self, bytes: usize, now: Instant) {
        let (from, sum) = self.span.get_or_insert((now, 0));
        *sum += bytes as u64;
        let took = now.saturating_duration_since(*from);
        if took >= SPAN {
            let rate = *sum as f64 / took.as_secs_f64();
            // If the stripes were not full, the path could have carried more.
            let full = self.full.is_some_and(|full| full + SPAN / 4 >= now);
            self.path = match full {
                true => rate,
                false if self.path > 0.0 => self.path.max(rate),
                false => 0.0,
            };
            self.span = Some((now, 0));
        }
    }

    /// Compresses a payload. Returns `None` if compression is not tried or does not pay.
    pub(crate) fn deflate(
        &mut self,
        bytes: &[u8],
        clock: &mut dyn FnMut() -> Instant,
    ) -> Option<Bytes> {
        if !self.on || bytes.len() < SMALL {
            return None;
        }
        let begun = clock();
        if self.path == 0.0 || self.full.is_none_or(|full| begun > full + FULL) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        if self.compressor.is_none() {
            self.compressor = Compressor::new(LEVEL).ok();
        }
        let packed = self.compressor.as_mut()?.compress(bytes).ok()?;
        let took = clock().saturating_duration_since(begun).as_secs_f64();
        let speed = bytes.len() as f64 / took.max(1e-6);
        self.speed = if self.speed == 0.0 {
            speed
        } else {
            0.75 * self.speed + 0.25 * speed
        };
        let ratio = packed.len() as f64 / bytes.len() as f64;
        let pays = ratio < WORTH && (1.0 - ratio) * self.speed > self.path;
        if pays {
            self.skip_next = 1;
        } else {
            self.skip = self.skip_next;
            self.skip_next = (self.skip_next * 2).min(MOST_SKIPPED);
            // The compressor has one or two megabytes and is seldom needed now.
            self.compressor = None;
        }
        // The compressed frame exists, so that its cost is spent; decompressing takes less time
        // than that.
        (ratio < WORTH).then(|| packed.into())
    }
}

/// Decompresses to exactly `len` bytes; the caller has checked that `len` is allowed.
pub(crate) fn inflate(bytes: &[u8], len: usize) -> Result<Bytes, PairError> {
    let mut decompressor = Decompressor::new().map_err(|_| PairError::BadZstd)?;
    let inflated = decompressor.decompress(bytes, len);
    let inflated = inflated.map_err(|_| PairError::BadZstd)?;
    match inflated.len() == len {
        true => Ok(inflated.into()),
        false => Err(PairError::BadZstd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Seed;

    /// Counts how many of `frames` frames are compressed if one takes `took` and the path carries
    /// `path` bytes per second. Stripes are full while frames are made faster than they are
    /// carried.
    fn squeezed(bytes: &[u8], took: Duration, path: f64, frames: u32) -> u32 {
        let mut squeeze = FrameCompression::new(true);
        let mut now = start();
        squeeze.full(now);
        let mut deflated = 0;
        for _ in 0..frames {
            let mut asked = 0;
            let mut clock = || {
                asked += 1;
                now + took * (asked - 1)
            };
            let packed = squeeze.deflate(bytes, &mut clock);
            let made = took * u32::from(asked > 1);
            deflated += u32::from(packed.is_some());
            let sent = packed.map_or(bytes.len(), |packed| packed.len());
            let carried = Duration::from_secs_f64(sent as f64 / path);
            now += made.max(carried);
            if carried > made {
                squeeze.full(now);
            }
            squeeze.sent(sent, now);
        }
        deflated
    }

    #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn text_is_deflated_and_noise_soon_is_not() {
        let text: Vec<u8> = (0..9000)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .collect();
        let quick = Duration::from_millis(1);
        // The path has to be full for a quarter of a second first.
        let deflated = squeezed(&text, quick, 5e6, 500);
        assert!(deflated > 450, "{deflated}");
        let noise = Seed::new(1).bytes(100_000);
        assert_eq!(squeezed(&noise, quick, 12.5e6, 500), 0);
    }

    #[test]
    fn where_the_processor_is_the_limit_it_stops() {
        let text: Vec<u8> = (0..9000)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .collect();
        // 100 kB in 10 ms are 10 MB/s; the path carries 1 GB/s.
        let deflated = squeezed(&text, Duration::from_millis(10), 1e9, 20_000);
        assert!(deflated < 50, "{deflated}");
    }

    #[test]
    fn nothing_inflates_to_more_than_it_said() {
        let packed = zstd::bulk::compress(&[0; 100_000], 1).unwrap();
        assert_eq!(inflate(&packed, 100_000).unwrap().len(), 100_000);
        assert_eq!(inflate(&packed, 99_999), Err(PairError::BadZstd));
        assert_eq!(inflate(&packed, 100_001), Err(PairError::BadZstd));
        assert_eq!(inflate(b"nonsense", 10), Err(PairError::BadZstd));
    }
}
