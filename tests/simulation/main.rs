//! The seeded simulation: real servers on one store in memory, with fake workers, callers and readers, and every
//! fault we know of. Time is virtual and nothing is left to chance, so a seed gives the same story every time.
//!
//! ```text
//! SEED=123 cargo test --test simulation one_seed -- --nocapture        the story of one seed
//! SEEDS=10000 cargo test --release --test simulation many_seeds        many seeds (FIRST=n: from n on)
//! ```
//!
//! ```text
//! profile, documents   what a seed is like           world        servers, time, notes
//! chaos                the store as a server sees it  nemesis      what goes wrong, and when
//! workers, http_workers, clients, readers             those who use it
//! audit                after every commit             ledger       what workers were given, said, answered
//! finale               one seed, and its end          sabotage     broken on purpose: it must be found
//! ```
//!
//! To add a fault: a number in `profile` (and in `healed`), drawn where it happens. To add a promise: a check in
//! `audit` (of the store), `ledger` (of what workers are told), `readers` or `finale`; and a sabotage that breaks it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod audit;
mod chaos;
mod clients;
mod documents;
mod finale;
mod http_workers;
mod ledger;
mod nemesis;
mod panics;
mod profile;
mod readers;
mod rng;
mod sabotage;
mod workers;
mod world;

use finale::Outcome;
use sabotage::{Case, Sabotage};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that `many_seeds` runs unless told otherwise.
const SEEDS: u64 = 2_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|v| v.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {v:?}")))
}

fn replay(outcome: &Outcome) -> String {
    format!(
        "seed {} finds:\n  {}\nreplay: SEED={} cargo test --test simulation one_seed -- --nocapture\nlast notes:\n  {}",
        outcome.seed,
        outcome.violations.iter().take(5).cloned().collect::<Vec<_>>().join("\n  "),
        outcome.seed,
        outcome.last.iter().rev().take(8).rev().cloned().collect::<Vec<_>>().join("\n  "),
    )
}

/// Runs seeds on all cores; stops early once `enough` says so.
fn run_all(
    seeds: impl Iterator<Item = u64>,
    case: Case,
    enough: impl Fn(&Outcome) -> bool + Sync,
) -> Vec<Outcome> {
    let seeds: Vec<u64> = seeds.collect();
    let next = AtomicU64::new(0);
    let outcomes = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let outcome = finale::run(*seed, case, false);
                    if enough(&outcome) {
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                    }
                    outcomes.lock().unwrap().push(outcome);
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    outcomes.sort_by_key(|o| o.seed);
    outcomes
}

/// The case that `CASE` and `SABOTAGE` ask for.
fn asked_for() -> Case {
    let Ok(name) = std::env::var("SABOTAGE") else { return Case::Plain };
    let known = Sabotage::ALL.into_iter().find(|s| format!("{s:?}") == name);
    let known = known.unwrap_or_else(|| panic!("SABOTAGE must be one of {:?}", Sabotage::ALL));
    if std::env::var_os("PROVOKE_ONLY").is_some() { Case::Provoked(known) } else { Case::Sabotaged(known) }
}

#[test]
fn one_seed_keeps_every_promise() {
    let seed = number("SEED").unwrap_or(1);
    let verbose = std::env::var_os("SEED").is_some();
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        drop(tracing_subscriber::fmt().with_env_filter(filter).without_time().try_init());
    }
    let outcome = finale::run(seed, asked_for(), verbose);
    assert!(outcome.violations.is_empty(), "{}", replay(&outcome));
    assert!(outcome.commits > 0, "nothing happened");
}

#[test]
fn many_seeds_keep_every_promise() {
    let first = number("FIRST").unwrap_or(0);
    let seeds = number("SEEDS").unwrap_or(SEEDS);
    let all = std::env::var_os("KEEP_GOING").is_some();
    let outcomes = run_all(first..first + seeds, asked_for(), |o| !all && !o.violations.is_empty());
    let failed: Vec<&Outcome> = outcomes.iter().filter(|o| !o.violations.is_empty()).collect();
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    println!(
        "{} seeds, {} runs, {} commits, {} assignments, {} s of virtual time, {} failed",
        outcomes.len(),
        sum(|o| o.runs as u64),
        sum(|o| o.commits),
        sum(|o| o.assigned),
        sum(|o| o.virtual_time.as_secs()),
        failed.len(),
    );
    let found = failed.iter().take(30).map(|o| replay(o)).collect::<Vec<_>>().join("\n\n");
    assert!(failed.is_empty(), "{found}");
    assert!(sum(|o| o.assigned) > seeds, "the seeds did next to nothing");
}

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in [3, 17, 40, 71] {
        let (a, b) = (finale::run(seed, Case::Plain, false), finale::run(seed, Case::Plain, false));
        assert_eq!((a.hash, a.notes), (b.hash, b.notes), "seed {seed} is not the same twice");
        assert!(a.notes > 100);
    }
}

#[test]
fn every_sabotage_is_found() {
    for sabotage in Sabotage::ALL {
        let outcomes = run_all(0..200, Case::Sabotaged(sabotage), |o| !o.violations.is_empty());
        let found = outcomes.iter().find(|o| !o.violations.is_empty());
        let found =
            found.unwrap_or_else(|| panic!("{sabotage:?} goes unnoticed in {} seeds", outcomes.len()));
        println!("{sabotage:?} is found by seed {}: {}", found.seed, found.violations[0]);
        // It is the sabotage that was found, and not the world it was done in.
        let without = finale::run(found.seed, Case::Provoked(sabotage), false);
        assert!(without.violations.is_empty(), "without {sabotage:?}: {}", replay(&without));
    }
}
