//! Brings about what goes wrong with servers, the store and the clocks, as often as the profile says.

use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::world::World;
use downbeat::model::ids::Partition;
use downbeat::store::Store;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// How often it is asked whether something goes wrong.
const STEP: Duration = Duration::from_millis(500);

/// Goes on until the faults stop.
pub(crate) async fn rage(world: Arc<World>) {
    let mut rng = world.rng.split("nemesis", 0);
    let p = world.drawn().clone();
    let per_step = |per_minute: f64| per_minute * STEP.as_secs_f64() / 60.0;
    let mut remembered = Instant::now();
    let mut restarts = tokio::task::JoinSet::new();
    while !world.is_healed() && !world.is_over() {
        tokio::time::sleep(STEP).await;
        // The faults may have stopped meanwhile: one that began now would outlast them.
        if world.is_healed() {
            break;
        }
        if p.lost_tails > 0.0 && remembered.elapsed() > Duration::from_secs(1) {
            remembered = Instant::now();
            world.remember();
        }
        let server = rng.below(p.servers as u64) as usize;
        if rng.chance(per_step(p.kills)) {
            world.kill(server);
            let time = rng.millis(0, 8_000);
            restarts.spawn(restart(Arc::clone(&world), server, time));
        }
        if rng.chance(per_step(p.rolling)) {
            let world = Arc::clone(&world);
            let grace = rng.millis(0, 4_000);
            restarts.spawn(async move {
                world.retire(server, grace).await;
                restart(world, server, grace / 4).await;
            });
        }
        if rng.chance(per_step(p.stalls)) {
            let time = rng.millis(1_000, 30_000);
            world.note(format_args!("server {server} stands still for {time:?}"));
            world.servers[server].link.stall(Instant::now() + time);
        }
        if rng.chance(per_step(p.outages)) {
            let time = rng.millis(200, 12_000);
            let everyone = rng.chance(0.5);
            world.note(format_args!("the store is away for {time:?}: {everyone}, {server}"));
            for (n, s) in world.servers.iter().enumerate() {
                if everyone || n == server {
                    s.link.cut_off(Instant::now() + time);
                }
            }
        }
        if rng.chance(per_step(p.lost_tails)) {
            let kills = rng.chance(0.4);
            world.lose_tail(&mut rng);
            if kills {
                for n in 0..p.servers {
                    world.kill(n);
                    restarts.spawn(restart(Arc::clone(&world), n, rng.millis(0, 2_000)));
                }
            }
        }
        if rng.chance(per_step(p.clock_steps)) {
            step_clock(&world, &mut rng);
        }
        if rng.chance(per_step(p.world_stalls)) {
            stand_still(&world, rng.millis(1_000, 30_000)).await;
        }
    }
    // Whoever is down comes up again.
    while restarts.join_next().await.is_some() {}
    for n in 0..p.servers {
        restart(Arc::clone(&world), n, Duration::ZERO).await;
    }
}

async fn restart(world: Arc<World>, server: usize, after: Duration) {
    tokio::time::sleep(after).await;
    while !world.is_over() && !world.boot(server).await {
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

/// Somebody sets the wall clock.
fn step_clock(world: &World, rng: &mut Rng) {
    let large = world.drawn().large_steps;
    let by = if rng.chance(0.5) {
        rng.range(10, if large { 4 * 3_600_000 } else { 60_000 }) as i64
    } else {
        -(rng.range(10, 20_000) as i64)
    };
    world.note(format_args!("the wall clock is set by {by} ms"));
    if by < 0 {
        world.set_back_ms.fetch_add(-by, Ordering::Relaxed);
    }
    world.clock.step(by);
}

/// The machine sleeps: nobody notices, and nobody may pay for it.
async fn stand_still(world: &World, time: Duration) {
    world.note(format_args!("everything stands still for {time:?}"));
    if world.sabotage == Some(Sabotage::RunningLeaseClock) {
        let partitions: Vec<_> = (0..world.drawn().partitions).map(Partition).collect();
        for _ in 0..15 {
            world.clock.step(2_000);
            drop(world.memory.tick(&partitions, 0).await);
        }
        return;
    }
    tokio::time::advance(time).await;
    *world.stood_still.lock() = Some((Instant::now(), time));
}
