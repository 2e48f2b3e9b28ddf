//! Logs. Everything goes to standard error, so that standard output belongs to what a command was asked for.
//!
//! A line is a readable message and fields; it is written once, where the event is handled. Task tokens are
//! never logged: whoever has one can settle the attempt.

use crate::config::{Log, LogFormat};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Installs the process's logger. A second call changes nothing.
pub fn init(log: &Log) {
    // Checked by `config`; a filter that does not parse there never gets here.
    let filter: Targets = log.filter.parse().unwrap_or_else(|_| Targets::new());
    let fmt = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let layer = match log.format {
        LogFormat::Text => fmt.with_ansi(color()).with_filter(filter).boxed(),
        LogFormat::Json => fmt.json().flatten_event(true).with_filter(filter).boxed(),
    };
    // Fails only if there is a logger already.
    let _ = tracing_subscriber::registry().with(layer).try_init();
}

/// Whether standard error takes colours.
fn color() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
