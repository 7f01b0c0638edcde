//! Simulates one publisher and many followers of a chain in a bucket, with downloads as fluid
//! flows: when does each follower switch to each version?
//!
//! Followers poll for a new version every `poll` seconds, each with its own phase. A follower that
//! finds one requests it in `requests` round trips and then downloads all links between the version
//! held and the newest. Bandwidth is shared fairly: a follower gets at most `follower`, the
//! followers of a region together at most `path`, and all regions together at most `bucket`. The
//! newest version is then built at the speed `apply`, while the next may already be in the bucket.
//! With `mirror`, each of the other regions has a copy of the bucket that downloads every link
//! once; the followers of a region then share `mirror`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use deltachain_testkit::Random;

/// Regions; the first one has the bucket.
pub const REGIONS: usize = 4;

/// Parameters of a simulation, in bytes, seconds, and bytes per second.
#[derive(Debug, Clone)]
pub struct Scene {
    pub seed: u64,
    pub followers: usize,
    pub versions: u32,
    /// Time between two versions.
    pub period: f64,
    /// Size of a link, and of the model.
    pub link: f64,
    pub model: f64,
    /// Time between two polls.
    pub poll: f64,
    /// Round trips before the first byte of a link: listing, commit, header and index.
    pub requests: f64,
    /// Round-trip time to the bucket, by region.
    pub latency: [f64; REGIONS],
    /// Bandwidth from the bucket to a region.
    pub path: [f64; REGIONS],
    /// Bandwidth of the bucket, and of one follower.
    pub bucket: f64,
    pub follower: f64,
    /// Bytes of the model that a follower builds per second.
    pub apply: f64,
    /// Bandwidth of a mirror, if there are mirrors.
    pub mirror: Option<f64>,
}

/// Result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Times from a version's commit until a follower had switched to it or a later one, ascending.
    pub lags: Vec<f64>,
    /// Bytes that left the bucket.
    pub bytes: f64,
    /// Requests per second, on average.
    pub requests: f64,
    /// Number of switches that skipped at least one version.
    pub skipped: usize,
}

impl Outcome {
    /// Returns the lag that this part of all lags does not exceed.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list"
    )]
    pub fn quantile(&self, part: f64) -> f64 {
        let place = (self.lags.len().saturating_sub(1) as f64 * part).round() as usize;
        self.lags.get(place).copied().unwrap_or(f64::NAN)
    }
}

/// A time in a heap whose first element is the earliest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The follower polls for a new version.
    Poll,
    /// The first bytes arrive.
    Begin { to: u32 },
    /// The version has been built.
    Switch { to: u32 },
}

/// The downloads of one region. All have the same rate, so each ends when a common counter has
/// grown by its size.
#[derive(Default)]
struct Region {
    /// The counter: bytes that a download would have received if it had run from the start.
    served: f64,
    rate: f64,
    /// The downloads that are running: the value of the counter at the end, the follower, and the
    /// version.
    downloads: BinaryHeap<Reverse<(Moment, usize, u32)>>,
}

/// Runs a simulation. The same scene always gives the same outcome.
pub fn simulate(scene: &Scene) -> Outcome {
    let mut random = Random(scene.seed);
    let mut events: BinaryHeap<Reverse<(Moment, usize, Event)>> = (0..scene.followers)
        .map(|follower| Reverse((Moment(scene.poll * random.unit()), follower, Event::Poll)))
        .collect();
    let mut held = vec![0_u32; scene.followers];
    let mut regions: [Region; REGIONS] = Default::default();
    let mut now = 0.0;
    let mut requests = 0.0;
    let mut outcome = Outcome {
        lags: Vec::new(),
        bytes: 0.0,
        requests: 0.0,
        skipped: 0,
    };
    let end = scene.period * f64::from(scene.versions);
    if scene.mirror.is_some() {
        outcome.bytes = scene.link * f64::from(scene.versions) * count(REGIONS - 1);
    }
    // Versions 1, 2, ... are committed at 0, period, ...
    let newest = |time: f64, region: usize| {
        let behind = if scene.mirror.is_some() && region > 0 {
            scene.requests * scene.latency[region]
                + scene.link / scene.path[region].min(scene.bucket)
        } else {
            0.0
        };
        (1..=scene.versions)
            .take_while(|&version| committed(scene, version) + behind <= time)
            .last()
            .unwrap_or(0)
    };
    loop {
        share(scene, &mut regions);
        let next_event = events
            .peek()
            .map_or(f64::INFINITY, |Reverse((moment, ..))| moment.0);
        let ends = regions.iter().map(|region| match region.downloads.peek() {
            Some(Reverse((at, ..))) => now + (at.0 - region.served).max(0.0) / region.rate,
            None => f64::INFINITY,
        });
        let (ending, next_end) = ends
            .enumerate()
            .min_by(|left, right| left.1.total_cmp(&right.1))
            .unwrap_or((0, f64::INFINITY));
        let next = next_event.min(next_end);
        if next.is_infinite() {
            break;
        }
        regions
            .iter_mut()
            .for_each(|region| region.served += region.rate * (next - now));
        now = next;
        if next_end <= next_event {
            if let Some(Reverse((_, follower, to))) = regions[ending].downloads.pop() {
                // The follower applies all links between. It decodes them while they arrive, so
                // after the last one it only has to build the model.
                events.push(Reverse((
                    Moment(now + scene.model / scene.apply),
                    follower,
                    Event::Switch { to },
                )));
            }
            continue;
        }
        let Some(Reverse((_, follower, event))) = events.pop() else {
            break;
        };
        let region = follower % REGIONS;
        let latency = if scene.mirror.is_some() {
            scene.latency[0]
        } else {
            scene.latency[region]
        };
        match event {
            Event::Poll => {
                requests += 1.0;
                let to = newest(now, region);
                if to > held[follower] {
                    requests += scene.requests;
                    events.push(Reverse((
                        Moment(now + scene.requests * latency),
                        follower,
                        Event::Begin { to },
                    )));
                } else if held[follower] < scene.versions {
                    events.push(Reverse((Moment(now + scene.poll), follower, Event::Poll)));
                }
            }
            Event::Begin { to } => {
                let bytes = scene.link * f64::from(to - held[follower]);
                if scene.mirror.is_none() {
                    outcome.bytes += bytes;
                }
                let region = &mut regions[region];
                region
                    .downloads
                    .push(Reverse((Moment(region.served + bytes), follower, to)));
            }
            Event::Switch { to } => {
                for version in held[follower] + 1..=to {
                    outcome.lags.push(now - committed(scene, version));
                }
                outcome.skipped += usize::from(to > held[follower] + 1);
                held[follower] = to;
                events.push(Reverse((Moment(now), follower, Event::Poll)));
            }
        }
    }
    outcome.lags.sort_by(f64::total_cmp);
    outcome.requests = requests / end.max(now);
    outcome
}

fn committed(scene: &Scene, version: u32) -> f64 {
    f64::from(version - 1) * scene.period
}

/// Sets the rate of one download in each region: a fair share of the bucket. A region that cannot
/// use its share leaves the rest to the others.
fn share(scene: &Scene, regions: &mut [Region; REGIONS]) {
    let most: Vec<f64> = (0..REGIONS)
        .map(|region| {
            let way = scene.mirror.unwrap_or(scene.path[region]);
            scene
                .follower
                .min(way / count(regions[region].downloads.len().max(1)))
        })
        .collect();
    let mut order: Vec<usize> = (0..REGIONS).collect();
    order.sort_by(|&left, &right| most[left].total_cmp(&most[right]));
    let mut left = if scene.mirror.is_some() {
        f64::INFINITY
    } else {
        scene.bucket
    };
    let mut downloads: f64 = regions
        .iter()
        .map(|region| count(region.downloads.len()))
        .sum();
    for region in order {
        let own = count(regions[region].downloads.len());
        regions[region].rate = most[region].min(left / downloads.max(1.0));
        left -= own * regions[region].rate;
        downloads -= own;
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> Scene {
        Scene {
            seed: 1,
            followers: 4,
            versions: 3,
            period: 100.0,
            link: 10.0,
            model: 1000.0,
            poll: 2.0,
            requests: 3.0,
            latency: [0.1; REGIONS],
            path: [1e9; REGIONS],
            bucket: 1e9,
            follower: 1.0,
            apply: 200.0,
            mirror: None,
        }
    }

    #[test]
    fn without_crowds_a_lag_is_the_sum_of_its_parts() {
        // 0 to 2 s until the next poll, 0.3 s of requests, 10 s of download, 5 s of building.
        let outcome = simulate(&scene());
        assert_eq!(outcome.lags.len(), 12);
        assert!(
            outcome
                .lags
                .iter()
                .all(|lag| (15.3..=17.3 + 1e-6).contains(lag)),
            "{:?}",
            outcome.lags
        );
        assert!((outcome.bytes - 120.0).abs() < 1e-6 && outcome.skipped == 0);
        assert_eq!(simulate(&scene()), outcome);
    }

    #[test]
    fn a_crowd_shares_what_there_is() {
        let outcome = simulate(&Scene {
            followers: 400,
            bucket: 100.0,
            poll: 0.001,
            ..scene()
        });
        // 4000 bytes at 100 bytes per second, for all followers at the same time.
        assert!(
            (outcome.quantile(0.5) - 45.3).abs() < 0.2,
            "{}",
            outcome.quantile(0.5)
        );
    }

    #[test]
    fn who_is_late_skips_versions_and_mirrors_help() {
        let slow = Scene {
            followers: 4000,
            bucket: 200.0,
            ..scene()
        };
        let outcome = simulate(&slow);
        assert!(outcome.skipped > 0 && outcome.quantile(1.0) > 200.0);
        let mirrored = simulate(&Scene {
            mirror: Some(1e9),
            path: [10.0; REGIONS],
            ..slow
        });
        assert!(mirrored.quantile(1.0) < 20.0, "{}", mirrored.quantile(1.0));
        assert!((mirrored.bytes - 90.0).abs() < 1e-6);
    }
}
