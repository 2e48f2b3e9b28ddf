//! `GET /metrics`: what this server counts, as Prometheus text. Names, kinds and help stand here and in
//! `docs/guide/metrics.md`; a test compares the two.
//!
//! Invariants
//! - Labels are of fixed sets: routes, methods, codes, kinds. No id, name or text of a user.
//! - Every series is there from the beginning but those of gRPC codes that never occurred.
//! - Nothing is asked of the store.

use super::meter::{Called, Meter, code_name};
use crate::app::{Measured, Observed};
use crate::model::event::EventKind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The media type of the text.
pub(super) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// All numbers as text.
pub(super) fn text(measured: Measured, meter: &Meter, called: &Arc<Called>) -> String {
    let scrape =
        Scrape { measured, meter: meter.clone(), called: Arc::clone(called), process: Process::read() };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::with_capacity(64 << 10);
    if let Err(error) = prometheus_text::encode(&mut text, &registry) {
        tracing::error!(%error, "the metrics could not be written");
    }
    text
}

#[derive(Debug)]
struct Scrape {
    measured: Measured,
    meter: Meter,
    called: Arc<Called>,
    process: Process,
}

/// Writes one family after the other.
struct Page<'e>(DescriptorEncoder<'e>);

type Labels<const N: usize> = [(&'static str, String); N];

impl Page<'_> {
    fn family<L: EncodeLabelSet, T>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        series: impl IntoIterator<Item = (L, T)>,
        write: impl Fn(&mut MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in series {
            write(&mut family.encode_family(&labels)?, value)?;
        }
        Ok(())
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, series, |to, value| {
            to.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, series, |to, value| to.encode_gauge(&value))
    }

    fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, Observed)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Histogram, series, |to, value| {
            to.encode_histogram::<NoLabelSet>(value.sum, value.count(), &value.buckets, None)
        })
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut to = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        to.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn counter_f64(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let mut to = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        to.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn histogram(&mut self, name: &str, help: &str, value: &Observed) -> fmt::Result {
        self.histograms(name, help, [(NONE, value.clone())])
    }
}

const NONE: Labels<0> = [];

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.process(&mut page)?;
        self.doors(&mut page)?;
        self.calls(&mut page)?;
        self.work(&mut page)?;
        self.lanes(&mut page)?;
        self.workers_and_events(&mut page)?;
        for reading in &self.measured.store {
            let name = format!("downbeat_store_{}", reading.name);
            if reading.rises {
                page.counter_f64(&name, reading.help, reading.value)?;
            } else {
                page.gauge(&name, reading.help, reading.value)?;
            }
        }
        Ok(())
    }
}

impl Scrape {
    fn process(&self, page: &mut Page<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION").to_owned())];
        page.gauges("downbeat_build_info", "Always 1, with the version of the server", [(version, 1.0)])?;
        let p = &self.process;
        if let Some(seconds) = p.cpu_seconds {
            page.counter_f64("process_cpu_seconds", "Time of processors used, in seconds", seconds)?;
        }
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Memory in RAM", p.resident_bytes),
            ("process_open_fds", "Open file descriptors", p.open_fds),
            ("process_max_fds", "File descriptors that may be open", p.max_fds),
            ("process_threads", "Threads", p.threads),
            ("process_start_time_seconds", "When the process began, in seconds of Unix time", p.started),
        ] {
            if let Some(value) = value {
                page.gauge(name, help, value)?;
            }
        }
        Ok(())
    }

    fn doors(&self, page: &mut Page<'_>) -> fmt::Result {
        let c = self.meter.counts();
        page.gauge("downbeat_connections", "Connections that are open", c.connections.load(Relaxed) as f64)?;
        page.counter(
            "downbeat_connections_accepted",
            "Connections that were taken up",
            c.accepted.load(Relaxed),
        )?;
        let how = ["answered", "closed"].map(|how| [("how", how.to_owned())]);
        page.counters(
            "downbeat_connections_refused",
            "Connections over the limit: answered with 503, or closed at once",
            how.into_iter().zip(c.turned_away.each_ref().map(|n| n.load(Relaxed))),
        )?;
        let kinds = ["events", "workers", "starts"].map(|kind| [("kind", kind.to_owned())]);
        page.gauges(
            "downbeat_streams",
            "Streams that are open: followers of events, workers, StartMany",
            kinds.clone().into_iter().zip(c.streams.each_ref().map(|n| n.load(Relaxed) as f64)),
        )?;
        page.counters(
            "downbeat_streams_refused",
            "Streams over the limit of their kind",
            kinds.into_iter().zip(c.streams_refused.each_ref().map(|n| n.load(Relaxed))),
        )?;
        page.gauge(
            "downbeat_body_bytes",
            "Bytes of bodies and messages that are being read or worked on",
            c.body_bytes.load(Relaxed) as f64,
        )?;
        page.counter(
            "downbeat_bodies_refused",
            "Bodies and messages that found no memory",
            c.bodies_refused.load(Relaxed),
        )
    }

    fn calls(&self, page: &mut Page<'_>) -> fmt::Result {
        let (http, grpc) = (self.called.http.all(), self.called.grpc.all());
        let classes = http.iter().flat_map(|(route, calls)| {
            // 1xx is never an answer.
            calls.answers.iter().enumerate().skip(1).map(move |(class, n)| {
                let labels = [("route", (*route).to_owned()), ("status", format!("{}xx", class + 1))];
                (labels, n.load(Relaxed))
            })
        });
        page.counters(
            "downbeat_http_requests",
            "Answers by template of the route and class of the status",
            classes,
        )?;
        let took = http.iter().map(|(route, calls)| ([("route", (*route).to_owned())], calls.took.read()));
        page.histograms(
            "downbeat_http_request_seconds",
            "From a request to the head of its answer; calls that wait included",
            took,
        )?;
        let codes = grpc.iter().flat_map(|(method, calls)| {
            calls.answers.iter().enumerate().filter_map(move |(code, n)| {
                let n = n.load(Relaxed);
                let labels = [("method", (*method).to_owned()), ("code", code_name(code).to_owned())];
                (code == 0 || n > 0).then_some((labels, n))
            })
        });
        page.counters("downbeat_grpc_calls", "Calls that ended, by method and code; streams too", codes)?;
        let took = grpc.iter().map(|(method, calls)| ([("method", (*method).to_owned())], calls.took.read()));
        page.histograms(
            "downbeat_grpc_call_seconds",
            "From a call to its end; of streams how long they were open",
            took,
        )
    }

    fn work(&self, page: &mut Page<'_>) -> fmt::Result {
        let m = &self.measured;
        let of = |family: &'static str, kinds: fn(EventKind) -> bool| {
            let events = m.events.iter().filter(move |(kind, _)| kinds(*kind));
            events.filter_map(move |(kind, n)| {
                let (is, what) = kind.name().split_once('.')?;
                (is == family).then(|| ([("event", what.to_owned())], *n))
            })
        };
        page.counters(
            "downbeat_runs",
            "What happened to runs, as committed by this server: started, completed, failed and so on",
            of("run", |_| true),
        )?;
        page.counters(
            "downbeat_tasks",
            "What happened to tasks, as committed by this server: queued, started, completed and so on",
            of("task", |_| true),
        )?;
        page.counters("downbeat_signals", "Signals", of("signal", |_| true))?;
        page.counters("downbeat_schedules", "Slots of schedules", of("schedule", |_| true))?;
        let why = ["store", "crowded", "abandoned"].map(|why| [("reason", why.to_owned())]);
        page.counters(
            "downbeat_starts_refused",
            "Starts of which nothing was done: the store took nothing, too many waited, the caller had gone",
            why.into_iter().zip(m.starts_refused),
        )
    }

    fn lanes(&self, page: &mut Page<'_>) -> fmt::Result {
        let m = &self.measured;
        let sum = |of: fn(&crate::app::LaneMeasured) -> u64| m.lanes.iter().map(of).sum::<u64>() as f64;
        let waiting = [("commands", sum(|l| l.letters)), ("starts", sum(|l| l.starts))];
        page.gauges(
            "downbeat_lane_waiting",
            "Commands that wait to be decided, starts of runs apart",
            waiting.map(|(kind, n)| ([("kind", kind.to_owned())], n)),
        )?;
        page.gauge("downbeat_lane_commits", "Commits under way", sum(|l| l.commits))?;
        page.gauge("downbeat_lane_cached_bytes", "Memory of runs that are kept", sum(|l| l.cached))?;
        page.gauge(
            "downbeat_store_stuck_seconds",
            "For how long the store has taken nothing, or not answered, although it was asked",
            m.stuck,
        )?;
        page.histogram("downbeat_commit_batch", "Decisions in a committed batch", &m.batch)?;
        page.histogram("downbeat_commit_seconds", "From sending a batch to its answer", &m.commit)?;
        page.histogram("downbeat_decide_seconds", "Deciding what goes into a batch", &m.decide)?;
        page.counter(
            "downbeat_commit_conflicts",
            "Decisions made again, since their run had changed meanwhile",
            m.conflicts,
        )?;
        page.counter("downbeat_commit_not_applied", "Batches of which the store took nothing", m.not_applied)
    }

    fn workers_and_events(&self, page: &mut Page<'_>) -> fmt::Result {
        let m = &self.measured;
        page.gauge("downbeat_worker_sessions", "Sessions of workers with a stream here", m.sessions as f64)?;
        page.gauge(
            "downbeat_worker_credit",
            "Tasks that workers here would hold at once",
            m.credit.0 as f64,
        )?;
        page.gauge("downbeat_worker_credit_used", "How much of it is in use", m.credit.1 as f64)?;
        page.gauge(
            "downbeat_queue_tasks",
            "Tasks that wait for a worker, in all queues of the store",
            m.queued as f64,
        )?;
        page.gauge(
            "downbeat_queue_oldest_seconds",
            "Age of the run of the first task that waits, moved by its priority",
            m.queued_oldest,
        )?;
        page.gauge("downbeat_event_watchers", "Calls and streams that follow one run", m.watchers as f64)?;
        page.gauge("downbeat_event_followers", "Streams that follow all runs", m.followers as f64)?;
        page.gauge(
            "downbeat_event_tail_age_seconds",
            "Since the events of the store were last read to their end, where that is longest ago; 0 while nobody follows",
            m.tail_age,
        )?;
        page.gauge(
            "downbeat_draining",
            "1 while the server takes no new work",
            f64::from(u8::from(m.draining)),
        )
    }
}

/// What the system says of this process; none where it does not.
#[derive(Debug, Default)]
struct Process {
    resident_bytes: Option<f64>,
    open_fds: Option<f64>,
    max_fds: Option<f64>,
    threads: Option<f64>,
    cpu_seconds: Option<f64>,
    started: Option<f64>,
}

impl Process {
    fn read() -> Self {
        let page = rustix::param::page_size() as f64;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let file = |name: &str| std::fs::read_to_string(name).ok();
        let number = |text: &str| text.parse::<f64>().ok();
        let statm = file("/proc/self/statm").unwrap_or_default();
        // The name stands in brackets and may hold anything; what follows is counted from there.
        let stat = file("/proc/self/stat").unwrap_or_default();
        let after: Vec<&str> =
            stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        let field = |at: usize| after.get(at).and_then(|text| number(text));
        let boot =
            file("/proc/stat").and_then(|text| number(text.lines().find_map(|l| l.strip_prefix("btime "))?));
        Self {
            resident_bytes: statm.split_whitespace().nth(1).and_then(number).map(|pages| pages * page),
            open_fds: std::fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count() as f64),
            max_fds: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.map(|n| n as f64),
            threads: field(17),
            cpu_seconds: field(11).zip(field(12)).map(|(user, system)| (user + system) / ticks),
            started: boot.zip(field(19)).map(|(boot, at)| boot + at / ticks),
        }
    }
}
