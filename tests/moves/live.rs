//! A store is copied while servers work on it: each run stands at some moment of its own, and all of them come to an end.

use super::{Place, all_runs, becomes, echo, register, start, stop};
use crate::redis_server::{Options, RedisServer};
use crate::support::client::soon;
use serde_json::Value;
use std::collections::BTreeSet;

const FAMILIES: usize = 150;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_store_at_work_is_sound() {
    let files = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(Options::default());
    let server = Place::Redis(&redis).serve();
    register(&server, "leaf", "tasks: { a: { type: leaf }, b: { needs: [a], type: leaf } }").await;
    let kinds = "tasks: { kept: { workflow: leaf }, free: { workflow: { name: leaf, detach: true } }, \
                 t: { type: leaf, concurrency: { key: env, limit: 4 } } }";
    register(&server, "family", kinds).await;
    let wide = "tasks: { each: { for_each: '${{ range(200) | list }}', type: leaf, input: '${{ item }}' } }\n\
                output: '${{ tasks.each.output }}'";
    register(&server, "wide", wide).await;

    let working = echo(&server, &["leaf"]);
    let mut copies = Vec::new();
    for n in 0..FAMILIES {
        for workflow in ["family", "wide"] {
            if workflow == "wide" && n % 50 > 0 {
                continue;
            }
            let id = format!("{workflow}-{n}");
            assert_eq!(server.start_run(workflow, &id, "null").await.status, 201);
        }
        if n % 50 == 20 {
            let file = files.path().join(format!("{n}.backup"));
            let (url, to) = (redis.url(), file.clone());
            let copy = move || {
                let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_downbeat"));
                command.args(["backup", "--store", &url]).arg(to).status().unwrap()
            };
            copies.push((file, tokio::task::spawn_blocking(copy)));
        }
    }
    let mut files_of = Vec::new();
    for (file, copy) in copies {
        assert!(copy.await.unwrap().success());
        files_of.push(file);
    }
    working.abort();
    stop(server).await;

    for (n, file) in files_of.iter().enumerate() {
        let data = files.path().join(format!("data-{n}"));
        let place = Place::Directory(&data);
        place.run("restore", file, &["--partitions", ["8", "3", "16"][n]]).well();
        let server = place.serve();
        let working = echo(&server, &["leaf"]);
        let before = all_runs(&server).await;
        let families = before.iter().filter(|run| run["workflow"] == "family");
        assert!(families.count() >= 20 + n * 50, "those that were started before are there");
        // What was told between two copies is asked for at once.
        let runs = all_end(&server).await;
        for run in &runs {
            assert_eq!(run["status"], "completed", "{run}");
        }
        let ids: BTreeSet<&str> = runs.iter().map(|run| run["id"].as_str().unwrap()).collect();
        for run in runs.iter().filter(|run| run["workflow"] == "family") {
            for task in ["kept", "free"] {
                let task = run["tasks"].as_array().unwrap().iter().find(|t| t["task"] == task).unwrap();
                let child = task["attempts"].as_array().unwrap().last().unwrap()["run"].as_str().unwrap();
                assert!(ids.contains(child), "a child of {} is missing: {task}", run["id"]);
            }
        }
        for run in runs.iter().filter(|run| run["workflow"] == "wide") {
            assert_eq!(run["output"], Value::from((0..200).collect::<Vec<_>>()));
        }
        working.abort();
        stop(server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wide_run_that_waits_for_many_children_goes_on_where_it_was() {
    let files = tempfile::tempdir().unwrap();
    let (from, to) = (files.path().join("from"), files.path().join("to"));
    let server = Place::Directory(&from).serve();
    register(&server, "leaf", "tasks: { a: { type: leaf } }").await;
    // More than one page of its record, each with tasks that ask anew.
    let many = "tasks: { each: { for_each: '${{ range(200) | list }}', max_parallel: 150, workflow: leaf, input: '${{ item }}' } }";
    register(&server, "many", many).await;
    start(&server, "many", "many").await;
    let begun = async {
        let mut pause = tokio::time::interval(std::time::Duration::from_millis(20));
        let list = "/v1/runs?workflow=leaf&limit=500";
        while server.get(list).await.json()["items"].as_array().unwrap().len() < 150 {
            pause.tick().await;
        }
    };
    soon(begun).await;
    stop(server).await;
    let file = files.path().join("a.backup");
    Place::Directory(&from).backup(&file).well();
    Place::Directory(&to).restore(&file).well();

    let server = Place::Directory(&to).serve();
    let working = echo(&server, &["leaf"]);
    let run = becomes(&server, "many", |run| run["ended_at"].is_string()).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(all_runs(&server).await.len(), 201);
    working.abort();
    stop(server).await;
}

/// Waits until every run has ended, those that are begun meanwhile as well.
async fn all_end(server: &crate::support::server::Server) -> Vec<Value> {
    loop {
        let open = server.get("/v1/runs?status=running&limit=500").await.json();
        let open = open["items"].as_array().unwrap().clone();
        if open.is_empty() {
            return all_runs(server).await;
        }
        for run in &open {
            let id = run["id"].as_str().unwrap();
            becomes(server, id, |run| run["ended_at"].is_string()).await;
        }
    }
}
