//! What the pure parts cost in instructions, which other work on the machine does not change. `scripts/instructions`
//! runs this under callgrind and compares with `benches/instructions.txt`; without callgrind it counts nothing.
//!
//! Callgrind looks at [`counted`] alone and writes its figures whenever [`told`] returns; the n-th of them is of the
//! n-th line that is printed. What is needed for a path, and what it leaves behind, is made and dropped outside.
//!
//! To add a path: a call of [`count`] below, and `scripts/instructions --update`.

#![allow(missing_docs, reason = "no public items")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot be set up has nothing to tell")]

mod support;

use bytes::Bytes;
use downbeat::engine::{Decision, Txn};
use downbeat::model::token::TaskToken;
use downbeat::model::{json, record};
use downbeat::store::redis;
use std::hint::black_box;
use support::{Next, Page, Run, SIZES, STEPS, chain, env, half_done, lease, start, token};

/// As the server has it: a decision allocates.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Times a path is run: the more, the less a first time tells.
const TIMES: usize = 500;
/// The same for what is long.
const FEW: usize = 5;

/// The one place that callgrind looks at.
#[inline(never)]
fn counted(times: usize, path: &mut dyn FnMut()) {
    for _ in 0..times {
        path();
    }
}

/// Callgrind writes its figures when this returns. It cannot do both at the end of one function.
#[inline(never)]
fn told(name: &str, times: usize, path: &mut dyn FnMut()) {
    counted(times, path);
    println!("{times}\t{name}");
}

/// Counts a path, and prints its name behind the number of times it was run.
fn count(name: &str, times: usize, mut path: impl FnMut()) {
    path();
    told(name, black_box(times), &mut path);
}

/// As [`count`], keeping what the path gives until it was counted: its drop is another matter.
fn count_kept<T>(name: &str, times: usize, mut path: impl FnMut() -> T) -> Vec<T> {
    let mut kept = Vec::with_capacity(times + 1);
    count(name, times, || kept.push(path()));
    kept
}

/// As [`count_kept`], of what takes one thing each time.
fn count_each<T, U>(name: &str, things: Vec<T>, mut path: impl FnMut(T) -> U) -> Vec<U> {
    let times = things.len() - 1;
    let mut things = things.into_iter();
    count_kept(name, times, || path(things.next().unwrap()))
}

/// A decision on a run in its steady state, whole and by its parts.
fn decision(name: &str, next: &Next) {
    count(&format!("{name}, whole"), TIMES, || drop(black_box(next.decide())));
    drop(count_kept(&format!("{name}, copy of the state (part of the result)"), TIMES, || {
        next.run.state.clone()
    }));
    let txns: Vec<Txn<'_>> = (0..=TIMES).map(|_| next.run.txn()).collect();
    let txns = count_each(&format!("{name}, result"), txns, |mut txn| {
        next.result(&mut txn);
        txn
    });
    let txns = count_each(&format!("{name}, lease of the next"), txns, |mut txn| {
        next.lease(&mut txn);
        txn
    });
    let decisions = count_each(&format!("{name}, finish"), txns, |txn| txn.finish().unwrap());
    drop(count_each(&format!("{name}, drop"), decisions, drop::<Decision>));
}

fn records() {
    for nodes in [9, 128] {
        let state = if nodes == 9 { Next::in_chain(false).run.state } else { half_done(nodes) };
        let mut bytes = Vec::with_capacity(16_384);
        count(&format!("record of {nodes} tasks, encode"), TIMES, || {
            bytes.clear();
            record::encode_into(black_box(&state), &mut bytes);
        });
        drop(count_kept(&format!("record of {nodes} tasks, decode"), TIMES, || {
            record::decode(black_box(&bytes)).unwrap()
        }));
    }
    let page = Page::new();
    let changed: Vec<_> = (0..=TIMES).map(|_| page.changed.clone()).collect();
    drop(count_each("page of 64 of 10,000 nodes, encode", changed, |mut changed| {
        record::lay_out(Some(&page.base), &mut changed, 9)
    }));
    let heads: Vec<_> = (0..=FEW).map(|_| page.head.clone()).collect();
    drop(count_each("pages of 10,000 nodes, decode", heads, |head| head.complete(&page.values).unwrap()));
}

fn values() {
    let (value, text) = (token(), token().encode());
    count("token, encode", TIMES, || drop(black_box(black_box(&value).encode())));
    count("token, decode", TIMES, || drop(black_box(TaskToken::decode(black_box(&text)))));
    for (name, size) in SIZES {
        let text = Bytes::from(support::json(size));
        let times = if size > 10_000 { FEW } else { TIMES };
        count(&format!("json of {name}, check"), times, || json::check(black_box(&text)).unwrap());
        count(&format!("json of {name}, walk"), times, || {
            black_box(json::walk(black_box(&text), &STEPS).unwrap());
        });
    }
}

fn main() {
    decision("task of a chain", &Next::in_chain(false));
    let mapped = Next::in_chain(true);
    count("task of a chain with a mapping, whole", TIMES, || drop(black_box(mapped.decide())));
    let plan = chain(9, false);
    let (run, ready) = Run::started(chain(9, false), None);
    let (begin, first) = (start(None), lease(&ready[0]));
    count("start of a chain and lease of the first, whole", TIMES, || {
        let mut txn = Txn::absent(&plan, &run.kept, env(1));
        txn.apply(black_box(&begin)).unwrap();
        txn.apply(&first).unwrap();
        drop(black_box(txn.finish()));
    });
    decision("item of 10,000", &Next::in_wide());
    records();
    values();
    let batch = support::batch(100);
    count("batch of 100 decisions, encode for Redis", FEW, || {
        drop(redis::packed(black_box(&batch)).unwrap());
    });
}
