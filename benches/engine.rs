//! What the pure parts cost in time: `cargo bench --bench engine`. A machine with other work on it tells nothing by
//! these; what a change costs in instructions is told by `scripts/instructions`.

#![allow(missing_docs, reason = "criterion's macros make the only public items")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot be set up has nothing to tell")]

mod support;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use downbeat::engine::Txn;
use downbeat::model::token::TaskToken;
use downbeat::model::{json, record};
use downbeat::store::redis;
use std::hint::black_box;
use support::{Next, STEPS, chain, env, half_done, lease, start, token};

/// As the server has it: a decision allocates.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One task of a chain: its result comes in, the next task is leased, the record is written.
fn task(c: &mut Criterion) {
    let mut group = c.benchmark_group("task of a chain");
    group.throughput(Throughput::Elements(1));
    for (name, mapped) in [("whole", false), ("whole, with a mapping", true)] {
        let next = Next::in_chain(mapped);
        group.bench_function(name, |b| b.iter(|| black_box(&next).decide()));
    }
    let next = Next::in_chain(false);
    let applied = || {
        let mut txn = black_box(&next).run.txn();
        next.result(&mut txn);
        next.lease(&mut txn);
        txn
    };
    group.bench_function("copy", |b| b.iter_with_large_drop(|| black_box(&next.run.state).clone()));
    group.bench_function("apply, copy included", |b| b.iter_with_large_drop(applied));
    group.bench_function("finish", |b| b.iter_batched(applied, Txn::finish, BatchSize::SmallInput));
    group.bench_function("drop", |b| b.iter_batched(|| next.decide(), drop, BatchSize::SmallInput));
    group.finish();
}

/// The first decision of a run, and one on a run of 10,000 items.
fn runs(c: &mut Criterion) {
    let plan = chain(9, false);
    let (run, ready) = support::Run::started(chain(9, false), None);
    let (begin, first) = (start(None), lease(&ready[0]));
    let mut group = c.benchmark_group("decision");
    group.throughput(Throughput::Elements(1));
    group.bench_function("start, and lease of the first", |b| {
        b.iter(|| {
            let mut txn = Txn::absent(&plan, &run.kept, env(1));
            txn.apply(black_box(&begin)).unwrap();
            txn.apply(&first).unwrap();
            txn.finish()
        });
    });
    let wide = Next::in_wide();
    group.bench_function("one item of 10,000", |b| b.iter(|| black_box(&wide).decide()));
    group.finish();
}

fn records(c: &mut Criterion) {
    let mut group = c.benchmark_group("record");
    for nodes in [9, 128] {
        let state = if nodes == 9 { Next::in_chain(false).run.state } else { half_done(nodes) };
        let mut bytes = Vec::new();
        record::encode_into(&state, &mut bytes);
        let mut out = Vec::with_capacity(bytes.len());
        group.throughput(Throughput::Elements(nodes as u64));
        group.bench_function(BenchmarkId::new("encode", nodes), |b| {
            b.iter(|| {
                out.clear();
                record::encode_into(black_box(&state), &mut out);
            });
        });
        group.bench_function(BenchmarkId::new("decode", nodes), |b| {
            b.iter_with_large_drop(|| record::decode(black_box(&bytes)).unwrap());
        });
    }
    let page = support::Page::new();
    group.throughput(Throughput::Elements(support::Page::NODES));
    group.bench_function("encode a page of 64", |b| {
        b.iter_batched_ref(
            || page.changed.clone(),
            |changed| record::lay_out(Some(&page.base), changed, 9),
            BatchSize::SmallInput,
        );
    });
    group.throughput(Throughput::Elements(support::WIDTH as u64));
    group.bench_function("decode 10,000 nodes in pages", |b| {
        b.iter_batched(
            || page.head.clone(),
            |head| head.complete(black_box(&page.values)).unwrap(),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn values(c: &mut Criterion) {
    let mut group = c.benchmark_group("token");
    let (value, text) = (token(), token().encode());
    group.throughput(Throughput::Elements(1));
    group.bench_function("encode", |b| b.iter(|| black_box(&value).encode()));
    group.bench_function("decode", |b| b.iter(|| TaskToken::decode(black_box(&text)).unwrap()));
    group.finish();

    let mut group = c.benchmark_group("json");
    for (name, size) in support::SIZES {
        let text = Bytes::from(support::json(size));
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(BenchmarkId::new("check", name), |b| b.iter(|| json::check(black_box(&text))));
        group.bench_function(BenchmarkId::new("walk", name), |b| {
            b.iter(|| json::walk(black_box(&text), &STEPS).unwrap().unwrap().len());
        });
    }
    group.finish();
}

fn batches(c: &mut Criterion) {
    let batch = support::batch(100);
    let mut group = c.benchmark_group("redis");
    group.throughput(Throughput::Elements(100));
    group.bench_function("encode a batch of 100", |b| b.iter(|| redis::packed(black_box(&batch)).unwrap()));
    group.finish();
}

criterion_group!(benches, task, runs, records, values, batches);
criterion_main!(benches);
