//! What a seed is like: how large its world is, which faults it has and how often. Some are calm, some brutal.

use super::rng::Rng;

/// Probabilities are per step they name; rates are per minute of virtual time.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) servers: usize,
    pub(crate) partitions: u16,
    pub(crate) lanes: usize,
    pub(crate) commits_in_flight: usize,
    pub(crate) tick_ms: i64,
    pub(crate) cache_bytes: usize,
    pub(crate) stream_bound: u64,
    pub(crate) workers: usize,
    pub(crate) http_workers: usize,
    pub(crate) global_readers: usize,
    pub(crate) runs: u64,
    pub(crate) workflows: u64,
    pub(crate) types: usize,
    /// Runs of some workflows go a few seconds after they ended, and all of them are seen to go.
    pub(crate) short_retention: bool,

    // The store, as one server sees it.
    pub(crate) latency_ms: u64,
    pub(crate) spike: f64,
    pub(crate) fail_before: f64,
    pub(crate) lost_reply: f64,
    pub(crate) delayed: f64,
    pub(crate) duplicate: f64,
    /// A server dies just when the store has taken its commit.
    pub(crate) dies_at_commit: f64,
    pub(crate) full: f64,
    pub(crate) lost_hint: f64,
    pub(crate) outages: f64,

    // Servers.
    pub(crate) kills: f64,
    pub(crate) rolling: f64,
    pub(crate) stalls: f64,
    /// Everything stands still at once.
    pub(crate) world_stalls: f64,
    pub(crate) clock_steps: f64,
    /// Some of them by hours.
    pub(crate) large_steps: bool,
    pub(crate) lost_tails: f64,

    // Workers.
    pub(crate) network_ms: u64,
    pub(crate) ack_ms: u64,
    pub(crate) work_ms: u64,
    pub(crate) die: f64,
    pub(crate) cut: f64,
    pub(crate) deaf: f64,
    pub(crate) freeze: f64,
    pub(crate) forget: f64,
    pub(crate) late: f64,
    pub(crate) other_output: f64,
    pub(crate) release: f64,
    pub(crate) junk: f64,
    pub(crate) fail: f64,
    pub(crate) unretryable: f64,
    pub(crate) bad_output: f64,
    pub(crate) credit_changes: f64,
    pub(crate) drains: f64,

    // Callers.
    pub(crate) cancel: f64,
    pub(crate) waits: f64,
    pub(crate) new_versions: f64,
    pub(crate) twice: f64,
    pub(crate) deletes: f64,
    pub(crate) reader_cuts: f64,

    /// Some tasks ask for labels, and not every worker has them.
    pub(crate) labels: bool,
    /// Each partition is a group of its own, as on a cluster.
    pub(crate) grouped: bool,
}

/// A fault is there in `share` of the worlds, then with up to `most`, scaled by how hard the world is.
fn some(rng: &mut Rng, hardness: f64, share: f64, most: f64) -> f64 {
    let there = rng.chance(share * hardness.min(1.0));
    let much = (rng.bits() >> 11) as f64 / (1u64 << 53) as f64;
    if there { most * much * hardness } else { 0.0 }
}

impl Profile {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        // Calm (no faults), normal, brutal.
        let hard = *rng.pick(&[0.0, 0.4, 0.7, 1.0, 1.0, 1.6]);
        let servers = *rng.pick(&[1, 2, 2, 3, 3, 4]);
        Self {
            servers,
            partitions: *rng.pick(&[1, 2, 4, 8]),
            lanes: *rng.pick(&[1, 1, 2]),
            commits_in_flight: *rng.pick(&[1, 2, 2, 3]),
            tick_ms: *rng.pick(&[200, 250, 500]),
            cache_bytes: *rng.pick(&[0, 4_000, 128 << 20, 128 << 20]),
            stream_bound: *rng.pick(&[40, 50_000, 50_000, 50_000]),
            workers: rng.range(1, 5) as usize,
            http_workers: rng.below(3) as usize,
            global_readers: rng.range(0, 2) as usize,
            runs: rng.range(3, 24),
            workflows: rng.range(1, 4),
            types: rng.range(1, 4) as usize,
            short_retention: rng.chance(0.25),

            latency_ms: *rng.pick(&[0, 1, 5, 40]),
            spike: some(rng, hard, 0.5, 0.05),
            fail_before: some(rng, hard, 0.5, 0.10),
            lost_reply: some(rng, hard, 0.6, 0.15),
            delayed: some(rng, hard, 0.6, 0.10),
            duplicate: some(rng, hard, 0.5, 0.10),
            dies_at_commit: some(rng, hard, 0.3, 0.03),
            full: some(rng, hard, 0.3, 0.05),
            lost_hint: some(rng, hard, 0.6, 1.0).min(1.0),
            outages: some(rng, hard, 0.4, 4.0),

            kills: some(rng, hard, 0.6, 8.0),
            rolling: some(rng, hard, 0.3, 3.0),
            stalls: some(rng, hard, 0.4, 4.0),
            world_stalls: some(rng, hard, 0.4, 2.0),
            clock_steps: some(rng, hard, 0.3, 3.0),
            large_steps: rng.chance(0.2),
            lost_tails: some(rng, hard, 0.35, 2.0),

            network_ms: *rng.pick(&[0, 1, 10, 100]),
            ack_ms: *rng.pick(&[1, 50, 500, 1_800]),
            work_ms: *rng.pick(&[5, 100, 2_000, 8_000]),
            die: some(rng, hard, 0.5, 0.05),
            cut: some(rng, hard, 0.5, 0.08),
            deaf: some(rng, hard, 0.4, 0.08),
            freeze: some(rng, hard, 0.4, 0.03),
            forget: some(rng, hard, 0.3, 0.3),
            late: some(rng, hard, 0.4, 0.5),
            other_output: some(rng, hard, 0.4, 0.15),
            release: some(rng, hard.max(0.4), 0.5, 0.1),
            junk: some(rng, hard, 0.3, 0.05),
            fail: some(rng, 1.0, 0.7, 0.3),
            unretryable: some(rng, 1.0, 0.5, 0.3),
            bad_output: some(rng, 1.0, 0.2, 0.05),
            credit_changes: some(rng, hard.max(0.4), 0.5, 0.1),
            drains: some(rng, hard.max(0.4), 0.3, 0.03),

            cancel: some(rng, 1.0, 0.5, 0.3),
            waits: some(rng, 1.0, 0.4, 0.4),
            new_versions: some(rng, 1.0, 0.3, 4.0),
            twice: some(rng, hard, 0.5, 0.5),
            deletes: some(rng, 1.0, 0.3, 0.3),
            reader_cuts: some(rng, hard.max(0.4), 0.7, 0.1),

            labels: rng.chance(0.5),
            grouped: rng.chance(0.3),
        }
    }

    /// Whether everything that is handed out reaches a worker which says so in time: then no delivery may be lost.
    pub(crate) fn delivers_always(&self) -> bool {
        let of_workers = [self.die, self.cut, self.deaf, self.freeze, self.drains];
        let of_servers = [self.kills, self.dies_at_commit, self.rolling, self.stalls, self.world_stalls];
        let of_the_store = [self.outages, self.lost_tails, self.clock_steps, self.spike];
        self.http_workers == 0
            && [&of_workers[..], &of_servers, &of_the_store].concat().iter().all(|p| *p == 0.0)
    }

    /// The world after the faults: everything answers at once, nobody dies.
    pub(crate) fn healed(&self) -> Self {
        Self {
            spike: 0.0,
            fail_before: 0.0,
            lost_reply: 0.0,
            delayed: 0.0,
            duplicate: 0.0,
            dies_at_commit: 0.0,
            full: 0.0,
            lost_hint: 0.0,
            outages: 0.0,
            kills: 0.0,
            rolling: 0.0,
            stalls: 0.0,
            world_stalls: 0.0,
            clock_steps: 0.0,
            lost_tails: 0.0,
            ack_ms: self.ack_ms.min(200),
            work_ms: self.work_ms.min(1_000),
            die: 0.0,
            cut: 0.0,
            deaf: 0.0,
            freeze: 0.0,
            forget: 0.0,
            late: 0.0,
            other_output: 0.0,
            release: 0.0,
            junk: 0.0,
            fail: 0.0,
            bad_output: 0.0,
            credit_changes: 0.0,
            drains: 0.0,
            cancel: 0.0,
            reader_cuts: 0.0,
            ..self.clone()
        }
    }
}
