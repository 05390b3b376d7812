//! Evidence about a path and its two ends. Every part is optional: a rule that lacks its evidence
//! does not fire.

use serde::{Deserialize, Serialize};

use crate::rules::ladder::is_spared;

/// Share of a link's rate above which a load has reached it.
pub(crate) const LESS_THAN_LINK: f64 = 0.97;

/// Measurements of one path. Times are in seconds, rates in bytes per second, shares 0 to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// Rate that the user expects of the link.
    pub expected: Option<f64>,
    /// Steps of the login, in order.
    pub login: Vec<TimedLoginStep>,
    /// Round trips of the idle path.
    pub idle: Option<MinMedianMax>,
    /// Uploads.
    pub up: ThroughputScaling,
    /// Downloads.
    pub down: ThroughputScaling,
    /// Rates of marked packets, compared with unmarked ones.
    pub marks: DscpMeasurements,
    /// TCP options and sizes of the path.
    pub tcp: Option<NegotiatedTcpOptions>,
    /// This machine.
    pub here: MachineFacts,
    /// The server.
    pub there: MachineFacts,
    /// Negotiated cipher.
    pub cipher: Option<String>,
    /// The server offers AES-GCM or AES-CTR; `None` if unknown.
    pub offers_aes: Option<bool>,
    /// Many small files.
    pub small_files: Option<SmallFileRate>,
    /// Answer time of the SFTP server beyond the round trip.
    pub server_answer: Option<f64>,
    /// The server refused a second channel on a connection.
    pub channels_refused: bool,
    /// Connections asked for at once, and those that were admitted.
    pub logins: Option<(u32, u32)>,
    /// The path lost its data and the connection stood still or ended.
    pub stall: Option<TransferStall>,
    /// Reason for the end of a measurement that is not complete.
    pub partial: Option<String>,
    /// Kinds of evidence that could not be had, with reasons.
    pub unseen: Vec<String>,
}

/// Lowest, middle and highest of several values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MinMedianMax {
    /// Lowest.
    pub low: f64,
    /// Median.
    pub median: f64,
    /// Highest.
    pub high: f64,
}

/// Step of a login.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimedLoginStep {
    /// Name of the step, such as `authentication`.
    pub name: String,
    /// Duration.
    pub seconds: f64,
    /// Round trips that the protocol needs for it.
    pub round_trips: f64,
}

/// Throughput over growing numbers of channels and connections, in one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThroughputScaling {
    /// Measurements in order.
    pub rungs: Vec<ThroughputMeasurement>,
    /// Round trip on an idle connection while the others were loaded.
    pub loaded: Option<f64>,
}

/// One measurement of a [`ThroughputScaling`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThroughputMeasurement {
    /// TCP connections.
    pub connections: u32,
    /// Channels on each.
    pub channels: u32,
    /// Plateau after slow start.
    pub rate: f64,
    /// Half the range of the rates of its parts, as a share of `rate`.
    pub noise: f64,
    /// Duration.
    pub seconds: f64,
    /// Mean rate of the first part, before `burst` bytes had passed, if the rate fell there.
    pub before_burst: Option<f64>,
    /// Bytes after which the rate fell.
    pub burst: u64,
    /// Rate of a second measurement after a pause, if the first one fell.
    pub repeated: Option<f64>,
    /// The second measurement fell as well.
    pub fell_again: bool,
    /// Load of the same connection below the rate at which it lost packets.
    pub restrained: Option<ReducedRateLoad>,
    /// Load of a new connection just below the rate of the queue that this one overflowed.
    pub near_link: Option<NearLinkLoad>,
    /// Lowest round trip.
    pub min_rtt: f64,
    /// Smoothed round trip under this load.
    pub rtt: f64,
    /// Share of lost segments; in downloads an estimate from those that came out of order.
    pub loss: f64,
    /// Share of lost segments since the start of the measurement, slow start included.
    pub loss_ever: f64,
    /// Share of busy time in which the receiver's TCP window limited the sender.
    pub rwnd_limited: f64,
    /// Share of busy time in which the local send buffer limited the sender.
    pub sndbuf_limited: f64,
    /// Share of time in which the SSH channel window limited the sender.
    pub window_blocked: f64,
    /// Largest SSH channel window of the server in bytes; 0 if unknown.
    pub window: u64,
    /// TCP window of the receiver in bytes, the smallest and the largest seen.
    pub peer_window: Option<(u64, u64)>,
    /// Bytes that the server's TCP has and its SFTP server has not answered.
    pub held: u64,
    /// Share of time in which nothing arrived, beyond a round trip.
    pub silent: f64,
    /// Processors that this process used.
    pub cpu: f64,
    /// Share of time in which the thread that moves the bytes ran or waited for a processor.
    pub wanted_cpu: f64,
    /// Idle share of this machine's processors.
    pub idle: Option<f64>,
    /// TCP was still in slow start.
    pub slow_start: bool,
    /// Segments that the path reordered (`tcpi_reord_seen`), per segment sent.
    pub reordered: f64,
    /// Duplicate acknowledgements of data that was sent twice in vain (`tcpi_dsack_dups`), per
    /// retransmitted segment.
    pub spurious: f64,
    /// Duplicate acknowledgements of data that was sent twice in vain, per segment sent.
    pub vain: f64,
    /// Segments per second that the sender of an upload received: acknowledgements.
    pub acknowledgements: f64,
    /// Rate of the last third of the plateau, as a share of that of its first third; 0 if unknown.
    pub growth: f64,
    /// Highest rate over a seventh of the measurement, and at least 1.5 s, after the first lost packet:
    /// a connection that recovers from losses reaches the rate of a policer only now and then. 0 without
    /// losses.
    pub peak: f64,
    /// Round trip on an idle connection meanwhile.
    pub idle_rtt: Option<f64>,
    /// Path just before it lost packets; `None` without losses.
    pub at_losses: Option<LossConditions>,
    /// Highest rate of an upload between two lost packets that lie far apart. A policer's bucket is
    /// empty at both, so that its tokens of this time are all that passed. `None` without such
    /// losses, and in downloads.
    pub between_losses: Option<f64>,
}

/// Round trip and rate just before packets were lost, each the median over all series of losses. A
/// queue that overflows has a long round trip, and drains at the rate of its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LossConditions {
    /// Smoothed round trip when the loss was noticed.
    pub rtt: f64,
    /// Rate over the round trip before.
    pub rate: f64,
}

/// Second load of a connection that lost packets, at a fraction of its rate: random losses continue
/// there, and losses to a policer stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReducedRateLoad {
    /// Rate that passed.
    pub rate: f64,
    /// Share of lost segments.
    pub loss: f64,
    /// Share of lost segments at the full rate.
    pub expected: f64,
}

/// Load of a new connection that is held just below the rate of a link whose queue overflowed before:
/// the link passes it, and a policer with a lower rate drops a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NearLinkLoad {
    /// Rate to which the load was held.
    pub target: f64,
    /// Rate that passed.
    pub rate: f64,
    /// Smoothed round trip.
    pub rtt: f64,
    /// Share of lost segments.
    pub loss: f64,
    /// Path just before packets were lost; `None` without losses.
    pub at_losses: Option<LossConditions>,
    /// Highest rate between two lost packets that lie far apart.
    pub between_losses: Option<f64>,
}

/// Rates of packets with a DSCP, each measured in turns with unmarked ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DscpMeasurements {
    /// Ratios of unmarked pairs: the noise.
    pub noise: Vec<f64>,
    /// Pairs of each mark.
    pub marks: Vec<DscpMeasurement>,
}

/// Rates with and without one DSCP, measured in pairs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DscpMeasurement {
    /// Name of the class, such as `CS1`.
    pub class: String,
    /// Marked rate divided by unmarked rate, one for each pair.
    pub ratios: Vec<f64>,
    /// Median rate of the marked packets.
    pub rate: f64,
    /// Median rate of the unmarked packets.
    pub unmarked: f64,
}

/// TCP options that both ends agreed on, and sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NegotiatedTcpOptions {
    /// Window scaling.
    pub window_scaling: bool,
    /// Selective acknowledgements.
    pub sack: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// Largest segment in bytes.
    pub mss: u32,
}

/// Properties of one end's machine that can limit a copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineFacts {
    /// Kernel version: major and minor.
    pub kernel: Option<(u32, u32)>,
    /// Largest TCP receive buffer (`tcp_rmem`).
    pub tcp_rmem: Option<u64>,
    /// Largest TCP send buffer (`tcp_wmem`).
    pub tcp_wmem: Option<u64>,
    /// The processor has AES instructions.
    pub aes: Option<bool>,
    /// Rate of the negotiated cipher on one core.
    pub cipher_rate: Option<f64>,
    /// Rate of AES-GCM on one core.
    pub aes_rate: Option<f64>,
    /// Rate of the disk with the copy's files: reading here, writing there.
    pub disk: Option<f64>,
    /// Share of scheduler periods in which the cgroup was throttled.
    pub throttled: Option<f64>,
    /// Share of time in which tasks waited for a processor (PSI).
    pub pressure: Option<f64>,
}

/// Rate of many small files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SmallFileRate {
    /// Files per second, one after the other.
    pub per_second: f64,
    /// Size of each in bytes.
    pub size: u64,
}

/// Connection on which data stopped passing, or that was reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TransferStall {
    /// Age of the connection.
    pub seconds: f64,
    /// Bytes that had passed.
    pub bytes: u64,
    /// The connection was reset, and not only silent.
    pub reset: bool,
    /// The host key exchange was not complete: only small packets had passed.
    pub in_handshake: bool,
}

impl Evidence {
    /// Returns the round trip in seconds that this load would have without a queue: the usual one of
    /// the idle path, or the lowest of the load if that is longer. On a path with jitter the lowest
    /// one is far from the usual one.
    pub fn unloaded_rtt(&self, rung: &ThroughputMeasurement) -> f64 {
        let usual = self.idle.map_or(0.0, |idle| idle.median);
        rung.min_rtt.max(usual)
    }

    /// Returns the rate that the network gives a load that has no queue: the one between losses, if
    /// packets were lost as behind a policer, and otherwise the mean; `None` if packets waited.
    pub fn unqueued_rate(&self, rung: &ThroughputMeasurement) -> Option<f64> {
        let waits = rung.waits(self, rung.rtt) || rung.overflowed(self).is_some();
        (!waits).then(|| rung.between_losses.unwrap_or(rung.rate))
    }

    /// Returns the rate of the link whose queue uploads overflowed, if one connection has left the queue
    /// empty since, passes less than the link, and loses nothing below its rate: then a policer with a
    /// rate near the link's may be the limit.
    pub fn link_above_uploads(&self) -> Option<f64> {
        let one = self.up.rung(1, 1)?;
        let link = self.overflowed_link()?.rate;
        let waits = one.waits(self, one.rtt) || one.is_queueing(self);
        let below = one.rate < LESS_THAN_LINK * link && is_spared(one) == Some(true);
        (!waits && below).then_some(link)
    }

    /// Returns the round trip and the rate at which uploads over one or two connections overflowed the
    /// link's queue. The higher rate is the link's: a connection whose slow start meets the end of a
    /// policer's bucket has filled the link for a part of the last round trip only.
    pub(crate) fn overflowed_link(&self) -> Option<LossConditions> {
        let loads = [1, 2].map(|connections| self.up.rung(connections, 1));
        let lost = loads.into_iter().flatten().filter_map(|load| {
            load.overflowed(self)?;
            load.at_losses
        });
        lost.max_by(|a, b| a.rate.total_cmp(&b.rate))
    }
}

impl ThroughputScaling {
    /// Returns the rung with these numbers.
    pub fn rung(&self, connections: u32, channels: u32) -> Option<&ThroughputMeasurement> {
        let fits =
            |r: &&ThroughputMeasurement| r.connections == connections && r.channels == channels;
        self.rungs.iter().find(fits)
    }

    /// Returns the fastest rung.
    pub fn best(&self) -> Option<&ThroughputMeasurement> {
        let all = self.rungs.iter().filter(|r| r.rate.is_finite());
        all.max_by(|a, b| a.rate.total_cmp(&b.rate))
    }
}
