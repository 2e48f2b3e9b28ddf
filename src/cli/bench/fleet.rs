//! The processes of a measurement: started, measured from outside, ended.

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
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// A process is ready within this, and ends within this when asked to.
const PATIENCE: Duration = Duration::from_secs(20);

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
    redis: Option<String>,
    before: Option<BTreeMap<String, String>>,
    /// Where they keep what they write.
    _dir: TempDir,
}

struct Member {
    name: &'static str,
    child: Child,
    /// Processor time when the measurement began, in seconds.
    before: f64,
}

impl Fleet {
    pub(super) async fn start(args: &Args) -> Result<Self, Failure> {
        if args.servers > args.workers {
            let message =
                format!("{} workers for {} servers; give each one at least", args.workers, args.servers);
            return Err(Failure::usage(message));
        }
        let nonce = format!("{:08x}", getrandom::u32().map_err(|e| Failure::failed(e.to_string()))?);
        let dir = TempDir::new("bench")?;
        let logs = args.out.clone().unwrap_or_else(|| dir.path().to_owned());
        let mut members = Vec::new();
        let mut redis = None;
        let urls = if let Some(url) = &args.server {
            vec![url.clone()]
        } else {
            let mut store = args.store.clone();
            if store == "redis" {
                let (child, address) = start_redis(dir.path(), &logs).await?;
                members.push(Member { name: "redis", child, before: 0.0 });
                store = format!("redis://{address}");
                redis = Some(address);
            } else if let Some(address) = store.strip_prefix("redis://").filter(|a| !a.contains('@')) {
                redis = Some(address.split('/').next().unwrap_or(address).to_owned());
            }
            let mut urls = Vec::new();
            for n in 1..=args.servers {
                let (child, url) = start_server(&store, dir.path(), &logs, n).await?;
                members.insert(0, Member { name: "server", child, before: 0.0 });
                urls.push(url);
            }
            urls
        };
        let url = urls.first().cloned().unwrap_or_default();
        let recorded = args.scenario == Scenario::Chain && args.out.is_some();
        let mut recording = recorded.then(Recording::new).transpose()?;
        for url in urls.iter().cycle().take(args.workers as usize) {
            let mut command = Command::new(this_program()?);
            command.args(["bench-worker", "--server", url, "--concurrency", &args.concurrency.to_string()]);
            if let Some(recording) = &mut recording {
                command.arg("--record").arg(recording.worker());
            }
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn()?;
            members.insert(0, Member { name: "worker", child, before: 0.0 });
        }
        Ok(Self { url, nonce, recording, members, redis, before: None, _dir: dir })
    }

    /// What is spent up to now does not count.
    pub(super) async fn begin(&mut self) {
        for member in &mut self.members {
            member.before = cpu_seconds(&member.child);
        }
        if let Some(address) = &self.redis {
            self.before = redis_info(address).await;
        }
        if let Some(recording) = &mut self.recording {
            let pid = |m: &Member| Some((m.name, m.child.id()?));
            recording.begin(self.members.iter().filter_map(pid).collect());
        }
    }

    /// Adds what the processes cost.
    pub(super) async fn end(&mut self, args: &Args, summary: &mut Summary) {
        if let Some(recording) = &mut self.recording {
            recording.end();
        }
        let mut total = 0.0;
        let mut spent: BTreeMap<&str, f64> = BTreeMap::new();
        for member in &self.members {
            let seconds = cpu_seconds(&member.child) - member.before;
            total += seconds;
            *spent.entry(member.name).or_default() += seconds;
            // Of several, the largest.
            if member.name == "server" {
                summary.server_rss_bytes = summary.server_rss_bytes.max(rss_bytes(&member.child));
            }
        }
        let runs = f64::from(args.runs + summary.warm_up);
        let tasks = runs * f64::from(args.tasks);
        summary.cpu_seconds = spent.into_iter().map(|(name, s)| (name.to_owned(), json!(round(s)))).collect();
        summary.cpu_us_per_task = (total > 0.0).then(|| total * 1e6 / tasks);
        if let (Some(address), Some(before)) = (&self.redis, &self.before)
            && let Some(after) = redis_info(address).await
        {
            let grown = |key: &str| {
                let number = |info: &BTreeMap<String, String>| info.get(key)?.parse::<f64>().ok();
                number(&after).zip(number(before)).map(|(after, before)| after - before)
            };
            summary.redis_commands_per_task = grown("total_commands_processed").map(|n| n / tasks);
            summary.redis_bytes_written_per_task = grown("total_net_input_bytes").map(|n| n / tasks);
            summary.redis_bytes_read_per_task = grown("total_net_output_bytes").map(|n| n / tasks);
            summary.redis_bytes_per_finished_run = grown("used_memory").map(|n| n / runs);
        }
        summary.machine = machine();
        summary.settings = json!({
            "store": if args.server.is_some() { "of the server" } else { &args.store },
            "servers": args.servers,
            "workers": args.workers,
            "concurrency": args.concurrency,
            "version": env!("CARGO_PKG_VERSION"),
            "debug_build": cfg!(debug_assertions),
        });
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

fn log(logs: &Path, name: &str) -> Result<std::fs::File, Failure> {
    let path = logs.join(name);
    std::fs::File::create(&path).map_err(|e| Failure::failed(format!("{}: {e}", path.display())))
}

/// A server of our own on a free port; returns its address.
async fn start_server(store: &str, dir: &Path, logs: &Path, number: u32) -> Result<(Child, String), Failure> {
    let mut child = Command::new(this_program()?)
        .args(["serve", "--listen", "127.0.0.1:0", "--store", store])
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

/// A Redis of our own, as a careful operator would set it up; returns `host:port`.
async fn start_redis(dir: &Path, logs: &Path) -> Result<(Child, String), Failure> {
    let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
    let child = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
        .args(["--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-min-size", "4gb"])
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(log(logs, "redis.log")?)
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| Failure::failed(format!("redis-server: {e}; --store embedded needs none")))?;
    let address = format!("127.0.0.1:{port}");
    let ready = async {
        while redis_info(&address).await.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready)
        .await
        .map_err(|_| Failure::failed("redis-server was not ready within 20 s"))?;
    Ok((child, address))
}

/// What Redis says of itself; none if it does not.
async fn redis_info(address: &str) -> Option<BTreeMap<String, String>> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(b"INFO\r\n").await.ok()?;
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        reader.read_line(&mut head).await.ok()?;
        let size: usize = head.trim().strip_prefix('$')?.parse().ok()?;
        let mut text = vec![0; size.min(1 << 20)];
        reader.read_exact(&mut text).await.ok()?;
        let text = String::from_utf8(text).ok()?;
        Some(
            text.lines()
                .filter_map(|l| l.split_once(':'))
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .collect(),
        )
    };
    tokio::time::timeout(Duration::from_secs(2), ask).await.ok().flatten()
}

/// Processor time of a process, in seconds; 0 where the system does not tell.
fn cpu_seconds(child: &Child) -> f64 {
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()?)).ok()?;
        // The name may hold anything, so count from behind it: fields 14 and 15 of proc(5).
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
    };
    ticks().unwrap_or(0.0) / rustix::param::clock_ticks_per_second() as f64
}

fn rss_bytes(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()?)).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
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
