//! The rule of choice on random topologies, with a model of TCP: slow start, a loss halves the
//! window, a link of limited rate with a queue of one bandwidth-delay product.

use std::time::Duration;

use super::curve::ArrivalCurve;
use super::{RouteResult, choose};

/// Size of a segment in bytes.
const SEGMENT: f64 = 1448.0;
/// Size of a burst in bytes.
const BURST: f64 = 4194304.0;

/// Random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number between two others, of which the logarithm is evenly distributed.
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }
}

/// One leg of a way.
#[derive(Clone, Copy, Debug)]
struct Leg {
    rtt: f64,
    loss: f64,
    rate: f64,
}

impl Leg {
    /// Bytes that a sender with unlimited data delivers in each round trip.
    fn rounds(self, random: &mut Random) -> impl Iterator<Item = f64> {
        let path = self.rate * self.rtt;
        let (mut window, mut threshold) = (10.0 * SEGMENT, f64::INFINITY);
        std::iter::repeat_with(move || {
            let sent: f64 = window;
            let kept = (1.0 - self.loss).powf(sent / SEGMENT);
            if sent > 2.0 * path || random.unit() > kept {
                threshold = (sent / 2.0).max(2.0 * SEGMENT);
                window = threshold;
            } else if window < threshold {
                window *= 2.0;
            } else {
                window += SEGMENT;
            }
            sent.min(path)
        })
    }

    /// Rate over 200 s.
    fn lasting(self, random: &mut Random) -> f64 {
        let rounds = (200.0 / self.rtt) as usize;
        let sum: f64 = self.rounds(random).take(rounds).sum();
        sum / (rounds as f64 * self.rtt)
    }
}

/// Measures a way of one leg, or of two, of which the slower one at each time counts.
fn measured(legs: &[Leg], random: &mut Random) -> RouteResult {
    let rtt: f64 = legs.iter().map(|leg| leg.rtt).sum();
    let mut arrived = vec![0.0_f64; 700];
    for (nth, leg) in legs.iter().enumerate() {
        // Bytes that this leg alone would deliver, at every 10 ms.
        let mut alone = vec![0.0; arrived.len()];
        let (mut at, mut sum) = (legs.iter().take(nth).map(|l| l.rtt / 2.0).sum::<f64>(), 0.0);
        for bytes in leg.rounds(random) {
            let slot = (at / 0.01) as usize;
            if slot >= alone.len() {
                break;
            }
            sum += bytes;
            at += leg.rtt;
            for later in &mut alone[slot..] {
                *later = sum;
            }
        }
        for (slot, bytes) in arrived.iter_mut().enumerate() {
            *bytes = match nth {
                0 => alone[slot],
                _ => bytes.min(alone[slot]),
            };
        }
    }
    let limit = (12.0 * rtt).clamp(2.5, 6.0);
    let mut curve = ArrivalCurve::default();
    let (mut end, mut complete) = (limit, false);
    for (slot, bytes) in arrived.iter().enumerate() {
        let at = slot as f64 * 0.01;
        if at > limit {
            break;
        }
        curve.note(Duration::from_secs_f64(at), bytes.min(BURST) as u64);
        if *bytes >= BURST {
            (end, complete) = (at, true);
            break;
        }
    }
    let of = Duration::from_secs_f64;
    Ok(curve.figures(of(rtt), of(end), complete))
}

#[test]
fn the_choice_is_right_on_random_topologies() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut clear, mut wrong) = (0, Vec::new());
    for nth in 0..400 {
        let leg = |random: &mut Random, rtt: f64| Leg {
            rtt,
            loss: match random.unit() < 0.3 {
                true => 0.0,
                false => random.between(2e-4, 1e-2),
            },
            rate: random.between(1e6, 5e7),
        };
        let rtt = random.between(0.03, 0.3);
        let direct = leg(&mut random, rtt);
        let share = 0.2 + 0.6 * random.unit();
        let longer = random.between(1.0, 1.5);
        let legs = [
            leg(&mut random, rtt * share * longer),
            leg(&mut random, rtt * (1.0 - share) * longer),
        ];
        let rates = legs.map(|leg| leg.lasting(&mut random));
        let truth = rates[0].min(rates[1]) / direct.lasting(&mut random);
        let figures = [&[direct][..], &legs].map(|legs| measured(legs, &mut random));
        let [straight, through] = figures;
        let chosen = choose(&straight, std::slice::from_ref(&through)).is_some();
        let right = match truth {
            // Near the threshold both are right.
            0.9..2.2 => continue,
            truth => truth > 1.0,
        };
        clear += 1;
        if chosen != right {
            wrong.push(format!(
                "{nth}: {truth:.2} {straight:?} {through:?} {direct:?} {legs:?}"
            ));
        }
    }
    assert!(clear > 150, "{clear}");
    // A detour that was missed costs nothing that the user had before; one in ten is tolerated.
    assert!(
        wrong.len() * 10 <= clear,
        "{} of {clear}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
