//! The processes of a measurement: started, measured from outside, ended.

use super::redis::{self, Told};
use super::series::Recording;
use super::stats::Summary;
use super::{Args, Scenario};
use crate::cli::Failure;
use crate::cli::output::TempDir;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// A process is ready within this, and ends within this when asked to.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// One that was killed is gone within this.
const GONE_WITHIN: Duration = Duration::from_secs(2);
/// Redis is at rest when its memory has moved by less than so many bytes …
const REST_BYTES: f64 = 1_024.0;
/// … in this time. It is waited for …
const REST: Duration = Duration::from_millis(500);
/// … for this long.
const REST_WITHIN: Duration = Duration::from_secs(10);

/// Everything that is measured.
pub(super) struct Fleet {
    /// Address of the first server.
    pub(super) url: String,
    /// Makes names of this measurement its own.
    pub(super) nonce: String,
    /// What happens when, if somebody wants to know.
    pub(super) recording: Option<Recording>,
    /// In the order in which they end: workers, server, store.
    members: Vec<Member>,
    /// `host:port` of each Redis that can be asked for what it did.
    redis: Vec<String>,
    /// The address of the store, with what may be a password.
    redis_url: Option<String>,
    /// When the measurement began, and when it was over.
    began: Option<Meter>,
    ended: Option<Meter>,
    /// What Redis says of itself once it is at rest.
    rest: Option<Told>,
    /// Where they keep what they write.
    _dir: TempDir,
}

struct Member {
    name: &'static str,
    child: Child,
}

impl Drop for Member {
    /// Leaves nothing behind, whatever ends the measurement: what still writes to the directory goes before that does.
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.start_kill();
        let until = Instant::now() + GONE_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What everything has cost up to a moment.
struct Meter {
    /// Processor time in seconds, by kind of process.
    cpu: BTreeMap<&'static str, f64>,
    server_rss: Option<u64>,
    /// The most that one process of each kind has had up to now.
    rss_peak: BTreeMap<&'static str, u64>,
    redis: Option<Told>,
}

/// What Redis was asked while it was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Asked {
    /// Commits that wrote records.
    pub(super) commits: f64,
    /// Bytes sent to it.
    pub(super) bytes: f64,
}

impl Fleet {
    pub(super) async fn start(args: &Args) -> Result<Self, Failure> {
        let workers = args.worker_processes();
        if workers > 0 && args.servers > workers {
            let message = format!("{workers} workers for {} servers; give each one at least", args.servers);
            return Err(Failure::usage(message));
        }
        let nonce = format!("{:08x}", getrandom::u32().map_err(|e| Failure::failed(e.to_string()))?);
        let dir = TempDir::new("bench")?;
        let logs = args.out.clone().unwrap_or_else(|| dir.path().to_owned());
        let mut members = Vec::new();
        let mut redis = Vec::new();
        let mut store_url = String::new();
        let urls = if let Some(url) = &args.server {
            vec![url.clone()]
        } else {
            let mut store = args.store.clone();
            if store == "redis" {
                let (child, address) = redis::start(dir.path(), &logs).await?;
                members.push(Member { name: "redis", child });
                store = format!("redis://{address}");
                redis.push(address);
            } else if store == "cluster" {
                for (child, address) in redis::start_cluster(dir.path(), &logs).await? {
                    members.push(Member { name: "redis", child });
                    redis.push(address);
                }
                store = format!("redis+cluster://{}", redis.join(","));
            } else if let Some(address) = store.strip_prefix("redis://").filter(|a| !a.contains('@')) {
                let address = address.split('/').next().unwrap_or(address);
                redis.push(if address.contains(':') {
                    address.to_owned()
                } else {
                    format!("{address}:6379")
                });
            }
            store_url.clone_from(&store);
            let mut urls = Vec::new();
            for n in 1..=args.server_processes() {
                let (child, url) = start_server(args, &store, dir.path(), &logs, n).await?;
                members.insert(0, Member { name: "server", child });
                urls.push(url);
            }
            urls
        };
        let url = urls.first().cloned().unwrap_or_default();
        let recorded = args.scenario == Scenario::Chain && args.out.is_some();
        let mut recording = recorded.then(Recording::new).transpose()?;
        for url in urls.iter().cycle().take(workers as usize) {
            let mut command = Command::new(this_program()?);
            command.args(["bench-worker", "--server", url, "--concurrency", &args.credit().to_string()]);
            if let Some(recording) = &mut recording {
                command.arg("--record").arg(recording.worker());
            }
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn()?;
            members.insert(0, Member { name: "worker", child });
        }
        let redis_url =
            Some(store_url).filter(|url| url.starts_with("redis://") || url.starts_with("redis+cluster://"));
        Ok(Self {
            url,
            nonce,
            recording,
            members,
            redis,
            redis_url,
            began: None,
            ended: None,
            rest: None,
            _dir: dir,
        })
    }

    /// The measurement begins, once Redis is at rest: what was spent up to now does not count.
    pub(super) async fn begin(&mut self) {
        self.at_rest().await;
        self.began = Some(self.meter().await);
        if let Some(recording) = &mut self.recording {
            let pid = |m: &Member| Some((m.name, m.child.id()?));
            recording.begin(self.members.iter().filter_map(pid).collect());
        }
    }

    /// The measurement is over: what is spent from now on does not count. Waits until Redis is at rest.
    pub(super) async fn end(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording.end();
        }
        self.ended = Some(self.meter().await);
        self.rest = self.at_rest().await;
    }

    /// Waits until the memory of Redis does not move any more, for a while; what it says of itself then.
    async fn at_rest(&self) -> Option<Told> {
        let until = Instant::now() + REST_WITHIN;
        let mut last = Told::of(&self.redis).await?;
        loop {
            tokio::time::sleep(REST).await;
            let now = Told::of(&self.redis).await?;
            let moved = last.memory().zip(now.memory()).map(|(a, b)| (a - b).abs());
            if moved.is_none_or(|bytes| bytes < REST_BYTES) || Instant::now() >= until {
                return Some(now);
            }
            last = now;
        }
    }

    async fn meter(&self) -> Meter {
        let redis = Told::of(&self.redis).await;
        let mut cpu = BTreeMap::from([("driver", cpu_seconds(Some(std::process::id())))]);
        let mut rss_peak = BTreeMap::<_, u64>::new();
        for member in &self.members {
            *cpu.entry(member.name).or_default() += cpu_seconds(member.child.id());
            if let Some(peak) = memory_of(member, "VmHWM:") {
                let most = rss_peak.entry(member.name).or_default();
                *most = peak.max(*most);
            }
        }
        // Of several, the largest.
        let server_rss =
            self.members.iter().filter(|m| m.name == "server").filter_map(|m| memory_of(m, "VmRSS:")).max();
        Meter { cpu, server_rss, rss_peak, redis }
    }

    /// Adds what the processes cost, if it was measured from [`Self::begin`] to [`Self::end`].
    pub(super) fn tell(&self, args: &Args, summary: &mut Summary) {
        let (runs, tasks) = (f64::from(summary.runs), f64::from(summary.tasks_per_run));
        let tasks = runs * tasks;
        if let (Some(began), Some(ended)) = (&self.began, &self.ended) {
            let mut total = 0.0;
            for (name, after) in &ended.cpu {
                let seconds = after - began.cpu.get(name).copied().unwrap_or(0.0);
                if *name != "driver" {
                    total += seconds;
                }
                summary.cpu_seconds.insert((*name).to_owned(), json!(round(seconds)));
            }
            summary.server_rss_bytes = ended.server_rss;
            let peaks = ended.rss_peak.iter().map(|(name, peak)| ((*name).to_owned(), json!(peak)));
            summary.rss_peak_bytes = peaks.collect();
            if args.scenario.does_tasks() {
                summary.cpu_us_per_task = (total > 0.0).then(|| total * 1e6 / tasks);
                let per_task = |key| self.grown(key).map(|n| n / tasks);
                summary.redis_commands_per_task = per_task("total_commands_processed");
                summary.redis_scripts_per_task = per_task("cmdstat_evalsha");
                summary.redis_bytes_written_per_task = per_task("total_net_input_bytes");
                summary.redis_bytes_read_per_task = per_task("total_net_output_bytes");
                if let Some((before, after)) = began.redis.as_ref().zip(ended.redis.as_ref())
                    && let Some(shares) = after.shares(before, "total_commands_processed")
                {
                    let shares: Vec<_> =
                        shares.iter().map(|share| (share * 1_000.0).round() / 1_000.0).collect();
                    summary.add("redis_commands_by_primary", Some(shares));
                }
            }
        }
        let before = self.began.as_ref().and_then(|m| m.redis.as_ref());
        // Other scenarios are about something else than runs.
        let before = before.filter(|_| args.scenario.does_tasks() || args.scenario.leaves_runs_open());
        if let (Some(before), Some(rest)) = (before, &self.rest) {
            let per_run = |of: fn(&Told) -> Option<f64>| Some((of(rest)? - of(before)?) / runs);
            let (bytes, keys) = (per_run(Told::memory), per_run(Told::keys));
            if args.scenario.leaves_runs_open() {
                (summary.redis_bytes_per_open_run, summary.redis_keys_per_open_run) = (bytes, keys);
            } else {
                (summary.redis_bytes_per_finished_run, summary.redis_keys_per_finished_run) = (bytes, keys);
            }
        }
        summary.machine = machine();
        summary.settings = json!({
            "store": if args.server.is_some() { "of the server" } else { &args.store },
            "servers": args.servers,
            "workers": args.worker_processes(),
            "concurrency": args.scenario.takes_credit().then(|| args.credit()),
            "redis": self.rest.as_ref().map(Told::about),
            "partitions": args.partitions,
            "payload": args.payload,
            "version": env!("CARGO_PKG_VERSION"),
            "debug_build": cfg!(debug_assertions),
        });
    }

    /// By how much something that Redis counts has grown while it was measured.
    fn grown(&self, key: &str) -> Option<f64> {
        let number = |meter: &Option<Meter>| meter.as_ref()?.redis.as_ref()?.count(key);
        Some(number(&self.ended)? - number(&self.began)?)
    }

    /// What Redis was asked while it was measured.
    pub(super) fn asked(&self) -> Option<Asked> {
        // Of our scripts, only the commit writes with MSET: once, if there is a record to write.
        Some(Asked { commits: self.grown("cmdstat_mset")?, bytes: self.grown("total_net_input_bytes")? })
    }

    /// Seconds of processor time that all processes of a kind have had.
    pub(super) fn cpu(&self, name: &str) -> f64 {
        self.members.iter().filter(|m| m.name == name).map(|m| cpu_seconds(m.child.id())).sum()
    }

    /// Commands and scripts that Redis has processed up to now; none if it cannot be asked.
    pub(super) async fn commands(&self) -> Option<(f64, f64)> {
        let told = Told::of(&self.redis).await?;
        Some((told.count("total_commands_processed")?, told.count("cmdstat_evalsha")?))
    }

    /// Each Redis, as `host:port`.
    pub(super) fn redis(&self) -> &[String] {
        &self.redis
    }

    /// The address of the Redis that is measured, if it is known.
    pub(super) fn redis_url(&self) -> Option<&str> {
        self.redis_url.as_deref()
    }

    /// Ends everything in order; what does not end is killed. Returns what was recorded.
    pub(super) async fn stop(mut self) -> Option<Recording> {
        for member in &mut self.members {
            if let Some(pid) = member.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
            {
                // Fails only if it has ended.
                let _ = kill_process(pid, Signal::TERM);
            }
            if tokio::time::timeout(PATIENCE, member.child.wait()).await.is_err() {
                let _ = member.child.kill().await;
            }
        }
        self.recording
    }
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::failed(format!("where is this program? {e}")))
}

pub(super) fn log(logs: &Path, name: &str) -> Result<std::fs::File, Failure> {
    let path = logs.join(name);
    std::fs::File::create(&path).map_err(|e| Failure::failed(format!("{}: {e}", path.display())))
}

/// A server of our own on a free port; returns its address.
async fn start_server(
    args: &Args,
    store: &str,
    dir: &Path,
    logs: &Path,
    number: u32,
) -> Result<(Child, String), Failure> {
    let mut command = Command::new(this_program()?);
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", store]);
    if let Some(partitions) = args.partitions {
        command.args(["--partitions", &partitions.to_string()]);
    }
    let mut child = command
        .arg("--data")
        .arg(dir.join("data"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(child.stderr.take().ok_or_else(|| Failure::failed("no pipe"))?).lines();
    let name = if number == 1 { "server.log".to_owned() } else { format!("server-{number}.log") };
    let mut log = tokio::fs::File::from_std(log(logs, &name)?);
    let ready = async {
        let mut said = String::new();
        while let Some(line) = lines.next_line().await? {
            if let Some(url) = line.strip_prefix("listening on ") {
                return Ok(url.to_owned());
            }
            said = line;
        }
        Err(Failure::failed(format!("the server did not start: {said}")))
    };
    let url = tokio::time::timeout(PATIENCE, ready)
        .await
        .map_err(|_| Failure::failed("the server was not ready within 20 s"))??;
    // Ends with the server.
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = log.write_all(format!("{line}\n").as_bytes()).await;
        }
    });
    Ok((child, url))
}

/// Processor time of a process, in seconds; 0 where the system does not tell.
fn cpu_seconds(pid: Option<u32>) -> f64 {
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid?)).ok()?;
        // The name may hold anything, so count from behind it: fields 14 and 15 of proc(5).
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
    };
    ticks().unwrap_or(0.0) / rustix::param::clock_ticks_per_second() as f64
}

/// One of the sizes that proc(5) tells of a process, in bytes.
fn memory_of(member: &Member, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", member.child.id()?)).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(field))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1_024)
}

fn machine() -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|l| l.strip_prefix("model name")).map(|l| l.trim_matches([' ', '\t', ':']));
    json!({
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "cpu": model.unwrap_or("unknown"),
        "system": rustix::system::uname().release().to_string_lossy(),
    })
}

fn round(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_had_some_of_the_processor() {
        let before = cpu_seconds(Some(std::process::id()));
        assert!(before >= 0.0 && cpu_seconds(None).abs() < f64::EPSILON);
    }
}
