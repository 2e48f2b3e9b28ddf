//! `downbeat doctor`: looks at a Redis and says what is wrong with it for us, and what would be better.
//!
//! ```text
//! settings ─► store/redis/examine.rs: facts ─► judge(): findings ─► table or JSON, exit 1 if one is wrong
//! ```
//!
//! Invariants
//! - Nothing is changed: an empty Redis stays empty. A store that is there is opened as a server would, which writes
//!   one key that expires by itself.
//! - Of a cluster one node is looked at, the first of the address that answers; that all of it is usable is seen by
//!   opening it.
//! - A finding that is not `ok` says what to do.
//!
//! To add a finding: a line in [`judge`], or a function like [`opened`] if it has to ask for more; a test.

use super::output::{self, Output, Style, Table};
use super::{Failure, Outcome, compose, orphans};
use crate::config::{self, Config, Durability, Overrides};
use crate::store::redis::{Examined, LinkReport, RedisStore, examine};
use crate::store::{LAYOUT, Store as _};
use serde::Serialize;
use std::path::PathBuf;

/// A round trip that takes longer than this at the 99th percentile is slow, in µs.
const SLOW: u64 = 10_000;
/// Clocks that differ by more than this confuse people who read times, in µs.
const SKEW: i64 = 1_000_000;
/// A fork that takes longer than this is felt, in s.
const LONG_FORK: f64 = 0.2;
/// The append-only file is rewritten too often if it may be smaller than this, in bytes.
const REWRITE_MIN: f64 = (1_u64 << 30) as f64;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exits with 0 if nothing is wrong, with 1 if something is; advice alone is not wrong."
)]
pub(super) struct Args {
    /// The Redis: redis://host:port or another address that serve takes
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Settings file (TOML) of the server
    #[arg(long, value_name = "FILE", env = "DOWNBEAT_CONFIG")]
    config: Option<PathBuf>,
    /// Looks for keys that nobody owns instead; servers may go on meanwhile
    #[arg(long)]
    orphans: bool,
    /// How to print what was found
    #[arg(long, value_enum, default_value = "table", value_name = "FORM")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Advice,
    Wrong,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Finding {
    what: &'static str,
    found: String,
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, found: found.into(), verdict: Verdict::Ok, advice: None }
    }

    fn advice(what: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { what, found: found.into(), verdict: Verdict::Advice, advice: Some(advice.into()) }
    }

    fn wrong(what: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { what, found: found.into(), verdict: Verdict::Wrong, advice: Some(advice.into()) }
    }
}

pub(super) async fn run(args: Args) -> Outcome {
    let flags = [(("store", "url"), &args.store)];
    let flags: Overrides = flags.into_iter().filter_map(|(key, v)| Some((key, v.clone()?))).collect();
    let config = Config::load(args.config.as_deref(), flags).map_err(|e| Failure::usage(e.to_string()))?;
    let config::Store::Redis { url } = &config.store else {
        return Err(Failure::usage(
            "doctor looks at a Redis: give its address by --store, DOWNBEAT_STORE or --config",
        ));
    };
    if args.orphans {
        return orphans::run(&config).await;
    }
    let mut link = None;
    let findings = match examine(url, &compose::redis_options(&config)).await {
        Err(e) => {
            vec![Finding::wrong(
                "reachable",
                e.to_string(),
                "see docs/guide/redis.md for addresses and users",
            )]
        }
        Ok(found) => {
            let mut findings = judge(&found, config.durability);
            if found.layout.is_some() && (found.of_cluster || found.info("role") == "master") {
                let (finding, report) = opened(url, &config).await;
                findings.push(finding);
                link = report;
            }
            findings
        }
    };
    // What counts keys without an owner has its place here: it needs the open store too.
    let wrong = findings.iter().filter(|f| f.verdict == Verdict::Wrong).count();
    match args.output {
        Output::Json => {
            output::json(&serde_json::json!({ "ok": wrong == 0, "findings": findings, "link": link }));
        }
        Output::Table => print(&findings),
    }
    if wrong == 0 { Ok(()) } else { Err(Failure::silent()) }
}

fn print(findings: &[Finding]) {
    let mut table = Table::new(&["", "WHAT", "FOUND", "WHAT TO DO"]);
    for finding in findings {
        let verdict = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Advice => "advice",
            Verdict::Wrong => "WRONG",
        };
        table.row(vec![
            verdict.into(),
            finding.what.into(),
            finding.found.clone(),
            finding.advice.clone().unwrap_or_default(),
        ]);
    }
    table.print(Style::stdout());
}

/// Opens the store as a server does, and writes as its readiness does.
async fn opened(url: &str, config: &Config) -> (Finding, Option<LinkReport>) {
    let wrong = |e: &crate::store::StoreError| {
        Finding::wrong(
            "usable",
            e.to_string(),
            "a server would be refused alike; the user needs the rights that docs/guide/redis.md tells",
        )
    };
    match RedisStore::open(url, compose::redis_options(config)).await {
        Err(e) => (wrong(&e), None),
        Ok(store) => {
            let checked = store.check().await;
            let report = store.link_report();
            let finding = checked.map_or_else(|e| wrong(&e), |()| Finding::ok("usable", report.to_string()));
            (finding, Some(report))
        }
    }
}

/// What is to be said of what was found.
fn judge(found: &Examined, durability: Durability) -> Vec<Finding> {
    let mut all = vec![Finding::ok("reachable", "yes")];
    if let Some(masters) = found.watches() {
        // Nothing else of it is about us.
        all.push(sentinel(&masters));
        return all;
    }
    all.extend([version(found), role(found)]);
    all.extend(coverage(found));
    all.extend(persistence(found));
    all.extend([memory(found), eviction(found), replication(found, durability)]);
    all.extend([latency(found), clock(found), layout(found)]);
    all.extend(found.refused.iter().map(|(what, why)| {
        Finding::advice("rights", format!("{what}: {why}"), "what depends on it was not looked at")
    }));
    all
}

fn version(found: &Examined) -> Finding {
    let valkey = found.info("valkey_version");
    let (name, text) =
        if valkey.is_empty() { ("Redis", found.info("redis_version")) } else { ("Valkey", valkey) };
    let mut numbers = text.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let told = format!("{name} {text}");
    match number {
        (0..=5, _) | (6, 0..=1) => Finding::wrong("version", told, "6.2 or newer is needed"),
        (6, _) => Finding::advice("version", told, "7.0 or newer keeps less in memory and gets fixes"),
        _ => Finding::ok("version", told),
    }
}

/// A Sentinel stands where a Redis was meant.
fn sentinel(masters: &[(&str, &str, &str)]) -> Finding {
    let watched: Vec<_> =
        masters.iter().map(|(name, at, status)| format!("{name} at {at} ({status})")).collect();
    let watched = if watched.is_empty() { "nothing".to_owned() } else { watched.join(", ") };
    let master = masters.first().map_or("MASTER", |(name, ..)| name);
    Finding::wrong(
        "role",
        format!("a Sentinel, which watches {watched}"),
        &format!(
            "give the address redis+sentinel://, with the hosts and ports of all Sentinels, and /{master} behind them"
        ),
    )
}

fn role(found: &Examined) -> Finding {
    let clustered = found.info("cluster_enabled") == "1";
    match (found.of_cluster, clustered, found.info("role")) {
        (false, true, _) => Finding::wrong(
            "role",
            "node of a Redis Cluster",
            "give an address that begins with redis+cluster://, or that of a single Redis",
        ),
        (true, false, _) => Finding::wrong(
            "role",
            "no node of a Redis Cluster",
            "give an address that begins with redis://, or that of a node of a cluster",
        ),
        (true, true, role) => Finding::ok("role", format!("node of a Redis Cluster ({role})")),
        (false, false, "master") if found.by_sentinels => {
            Finding::ok("role", "primary, as the Sentinels say; all of this is about it")
        }
        (false, false, "master") => Finding::ok("role", "primary"),
        (false, false, "slave") => {
            Finding::wrong("role", "replica", "give the address of the primary, or use redis+sentinel://")
        }
        (false, false, role) => {
            Finding::wrong("role", role, "give the address of the primary, or use redis+sentinel://")
        }
    }
}

/// Whether a cluster goes on while a part of it is away; nothing of what is no cluster, or does not say.
fn coverage(found: &Examined) -> Option<Finding> {
    let wanted = found.settings.get("cluster-require-full-coverage").filter(|_| found.of_cluster)?;
    let told = format!("cluster-require-full-coverage {wanted}");
    Some(match wanted.as_str() {
        "no" => Finding::ok("coverage", told),
        _ => Finding::advice(
            "coverage",
            told,
            "set cluster-require-full-coverage to no on every node, so that a master that is away stops its own slots only",
        ),
    })
}

fn persistence(found: &Examined) -> Vec<Finding> {
    let mut all = Vec::new();
    let sync = found.settings.get("appendfsync").map(String::as_str);
    all.push(match (found.info("aof_enabled"), sync) {
        ("1", Some("no")) => Finding::advice(
            "append-only file",
            "on, appendfsync no",
            "set appendfsync to everysec: the system may keep half a minute to itself",
        ),
        ("1", sync) => {
            Finding::ok("append-only file", format!("on, appendfsync {}", sync.unwrap_or("unknown")))
        }
        _ => Finding::wrong(
            "append-only file",
            "off",
            "set appendonly to yes: a restart of Redis loses every run since its last snapshot",
        ),
    });
    if let Some(min) = found.settings.get("auto-aof-rewrite-min-size")
        && found.info("aof_enabled") == "1"
    {
        let bytes = min.parse().unwrap_or(0.0);
        let told = format!("rewritten from {} on", size(bytes));
        all.push(if bytes < REWRITE_MIN {
            Finding::advice(
                "rewriting",
                told,
                "set auto-aof-rewrite-min-size to 1gb or more: at full speed smaller files are rewritten all the time",
            )
        } else {
            Finding::ok("rewriting", told)
        });
    }
    if found.info("loading") == "1" {
        all.push(Finding::wrong("loading", "yes", "wait until Redis has read its data"));
    }
    for (name, what) in
        [("rdb_last_bgsave_status", "last snapshot"), ("aof_last_write_status", "last write of the file")]
    {
        match found.info(name) {
            "" | "ok" => {}
            other => all.push(Finding::wrong(
                what,
                other,
                "look at the disk and the log of Redis: it refuses writes until this works again",
            )),
        }
    }
    let fork = found.number("latest_fork_usec").unwrap_or(0.0) / 1e6;
    let mut told = format!("last fork {:.0} ms", fork * 1e3);
    for (name, what) in
        [("rdb_bgsave_in_progress", ", saving now"), ("aof_rewrite_in_progress", ", rewriting now")]
    {
        if found.info(name) == "1" {
            told.push_str(what);
        }
    }
    all.push(if fork > LONG_FORK {
        Finding::advice(
            "fork",
            told,
            "Redis stands still meanwhile: less memory per Redis, or a machine that forks faster",
        )
    } else {
        Finding::ok("fork", told)
    });
    all
}

fn size(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.1} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.0} kB", b / 1e3),
    }
}

fn memory(found: &Examined) -> Finding {
    let used = found.number("used_memory").unwrap_or(0.0);
    let most = found.number("maxmemory").unwrap_or(0.0);
    if most <= 0.0 {
        return Finding::ok("memory", format!("{} used, no limit set", size(used)));
    }
    let share = used / most;
    let told = format!("{} of {} used ({:.0} %)", size(used), size(most), share * 100.0);
    if share > 0.95 {
        Finding::wrong("memory", told, "raise maxmemory, or shorten retention: a full Redis takes no starts")
    } else if share > 0.8 {
        Finding::advice("memory", told, "raise maxmemory, or shorten retention, before it is full")
    } else {
        Finding::ok("memory", told)
    }
}

fn eviction(found: &Examined) -> Finding {
    match found.info("maxmemory_policy") {
        "noeviction" => Finding::ok("eviction", "none"),
        policy => Finding::wrong(
            "eviction",
            policy,
            "set maxmemory-policy to noeviction: any other drops runs, or parts of them, when Redis is full",
        ),
    }
}

fn replication(found: &Examined, durability: Durability) -> Finding {
    let replicas = found.info("connected_slaves").parse::<u64>().unwrap_or(0);
    let wanted = found.settings.get("min-replicas-to-write").map_or("unknown", String::as_str);
    let told = format!("{}, min-replicas-to-write {wanted}", output::count(replicas, "replica"));
    match durability {
        Durability::Replicated if replicas == 0 => Finding::wrong(
            "replication",
            told,
            "durability is \"replicated\": connect a replica, no commit is answered without one",
        ),
        Durability::Replicated if wanted == "0" => Finding::advice(
            "replication",
            told,
            "set min-replicas-to-write to 1, so that Redis refuses what would not be answered",
        ),
        Durability::Local | Durability::Replicated => Finding::ok("replication", told),
    }
}

fn latency(found: &Examined) -> Finding {
    let at = |q: usize| found.round_trips.get(found.round_trips.len() * q / 100).copied().unwrap_or(0);
    let (half, most) = (at(50), at(99));
    let told = format!("median {:.2} ms, 99 % within {:.2} ms", half as f64 / 1e3, most as f64 / 1e3);
    if most > SLOW {
        Finding::advice(
            "latency",
            told,
            "put Redis nearer: each step of a run waits for one round trip at least",
        )
    } else {
        Finding::ok("latency", told)
    }
}

fn clock(found: &Examined) -> Finding {
    let told = format!("{:+.3} s against this machine", found.clock_ahead as f64 / 1e6);
    if found.clock_ahead.abs() > SKEW {
        Finding::advice("clock", told, "keep clocks together by NTP: runs go by the clock of Redis")
    } else {
        Finding::ok("clock", told)
    }
}

fn layout(found: &Examined) -> Finding {
    match found.layout {
        None => Finding::ok("store", "none yet; the first server makes one"),
        Some((layout, partitions)) if layout == LAYOUT => {
            Finding::ok("store", format!("layout {layout}, {partitions} partitions"))
        }
        Some((layout, _)) => Finding::wrong(
            "store",
            format!("layout {layout}; this version knows {LAYOUT}"),
            "use the version of Downbeat that wrote it, or a newer one",
        ),
    }
}
