//! Remembers the choice of `--via auto` for a host.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::paths::network_to;
use super::seconds;
use crate::detour::{MOST_CANDIDATES, RouteError, RouteFigures, RouteResult};

/// Time for which a choice is believed.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Longest name of a candidate and longest reason, in bytes.
const LONGEST: usize = 512;

/// Stored measurement of the ways to a host, and the one that was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetourRecord {
    /// The time of the measurement, in seconds since 1970.
    pub at: u64,
    /// The measurement was made for copies to the host.
    pub up: bool,
    /// The host's address, if there is a direct way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// This machine's network at that time; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// The candidates as configured at that time.
    pub candidates: Vec<String>,
    /// Index of the chosen candidate; `None` for the direct way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<usize>,
    /// Figures of the direct way.
    pub direct: StoredRouteResult,
    /// Figures of the ways through the candidates.
    pub ways: Vec<StoredRouteResult>,
}

/// Stored form of [`RouteResult`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredRouteResult {
    /// Figures.
    Measured(RouteFigures),
    /// The reason why there are none.
    Failed(String),
}

impl StoredRouteResult {
    /// Shortens a long reason.
    pub fn new(way: &RouteResult) -> Self {
        match way {
            Ok(figures) => Self::Measured(*figures),
            Err(why) => Self::Failed(why.to_string().chars().take(LONGEST / 4).collect()),
        }
    }

    /// Returns the measured figures, or the reason why the route could not be measured.
    pub fn result(&self) -> RouteResult {
        match self {
            Self::Measured(figures) => Ok(*figures),
            Self::Failed(why) => Err(RouteError::of_path(why)),
        }
    }
}

impl DetourRecord {
    /// Returns the age if the choice still holds: for this direction and these candidates, from
    /// this network, since at most a day.
    pub fn age(&self, up: bool, candidates: &[String], now: SystemTime) -> Option<Duration> {
        let age = Duration::from_secs(seconds(now).checked_sub(self.at)?);
        let here = || {
            self.address
                .is_none_or(|to| network_to(to).as_ref() == Some(&self.network))
        };
        let asked = self.up == up && self.candidates == candidates;
        (age < LIFETIME && asked && self.is_sound() && here()).then_some(age)
    }

    /// True if the record is one that this program could have written.
    fn is_sound(&self) -> bool {
        let notes = self.ways.iter().chain([&self.direct]);
        let short = notes.clone().all(|note| match note {
            StoredRouteResult::Measured(_) => true,
            StoredRouteResult::Failed(why) => why.len() <= LONGEST,
        });
        let count = self.candidates.len();
        let chosen =
            |at: &usize| matches!(self.ways.get(*at), Some(StoredRouteResult::Measured(_)));
        short
            && count <= MOST_CANDIDATES
            && self.ways.len() == count
            && self.candidates.iter().all(|name| name.len() <= LONGEST)
            && self.chosen.as_ref().is_none_or(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: RouteFigures = RouteFigures {
        rtt_us: 160_000,
        rate: 500_000,
        grows: false,
    };

    fn memory(now: SystemTime) -> DetourRecord {
        DetourRecord {
            at: seconds(now),
            up: true,
            address: None,
            network: String::new(),
            candidates: vec!["h".to_owned(), "user@g:2222".to_owned()],
            chosen: Some(1),
            direct: StoredRouteResult::Measured(WAY),
            ways: vec![
                StoredRouteResult::Failed("down".to_owned()),
                StoredRouteResult::Measured(WAY),
            ],
        }
    }

    #[test]
    fn a_choice_holds_for_a_day_a_direction_and_the_same_candidates() {
        let now = SystemTime::now();
        let memory = memory(now);
        let names = memory.candidates.clone();
        assert!(memory.age(true, &names, now).is_some());
        assert_eq!(memory.age(false, &names, now), None);
        assert_eq!(memory.age(true, &names[..1], now), None);
        let hour = Duration::from_secs(3600);
        assert!(memory.age(true, &names, now + 23 * hour).is_some());
        assert_eq!(memory.age(true, &names, now + 25 * hour), None);
        // The clock was or is wrong.
        assert_eq!(memory.age(true, &names, now - hour), None);
        let text = serde_json::to_string(&memory).unwrap();
        assert_eq!(serde_json::from_str::<DetourRecord>(&text).unwrap(), memory);
    }

    #[test]
    fn a_choice_from_another_network_does_not_hold() {
        let now = SystemTime::now();
        let elsewhere = DetourRecord {
            address: Some([127, 0, 0, 1].into()),
            network: "192.0.2.0/24".to_owned(),
            ..memory(now)
        };
        let names = elsewhere.candidates.clone();
        assert_eq!(elsewhere.age(true, &names, now), None);
        let here = DetourRecord {
            network: "127.0.0.0/24".to_owned(),
            ..elsewhere
        };
        assert!(here.age(true, &names, now).is_some());
    }

    #[test]
    fn a_record_that_contradicts_itself_is_not_believed() {
        let now = SystemTime::now();
        let good = memory(now);
        let failed = StoredRouteResult::Failed("x".repeat(LONGEST + 1));
        for bad in [
            DetourRecord {
                chosen: Some(0),
                ..good.clone()
            },
            DetourRecord {
                chosen: Some(2),
                ..good.clone()
            },
            DetourRecord {
                ways: Vec::new(),
                ..good.clone()
            },
            DetourRecord {
                direct: failed,
                ..good.clone()
            },
            DetourRecord {
                candidates: vec!["h".to_owned(); MOST_CANDIDATES + 1],
                ways: vec![StoredRouteResult::Measured(WAY); MOST_CANDIDATES + 1],
                ..good.clone()
            },
        ] {
            assert_eq!(bad.age(true, &bad.candidates, now), None, "{bad:?}");
        }
    }
}
