//! Logs. Everything goes to standard error, so that standard output belongs to what a command was asked for.
//!
//! A line is a readable message and fields; it is written once, where the event is handled. Task tokens are
//! never logged: whoever has one can settle the attempt.

use crate::config::{Log, LogFormat};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Installs the process's logger. A second call changes nothing.
pub fn init(log: &Log) {
    // Checked by `config`; a filter that does not parse there never gets here.
    let filter = quieted(&log.filter, log.filter.parse().unwrap_or_else(|_| Targets::new()));
    let fmt = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let layer = match log.format {
        LogFormat::Text => fmt.with_ansi(color()).with_filter(filter).boxed(),
        LogFormat::Json => fmt.json().flatten_event(true).with_filter(filter).boxed(),
    };
    // Fails only if there is a logger already.
    let _ = tracing_subscriber::registry().with(layer).try_init();
}

/// Libraries whose steps are of no interest to who runs Downbeat.
const CHATTY: [&str; 2] = ["fjall", "lsm_tree"];

/// The filter with [`CHATTY`] libraries told of from warnings on, unless `text` names them.
fn quieted(text: &str, filter: Targets) -> Targets {
    let level = filter.default_level().unwrap_or(LevelFilter::OFF).min(LevelFilter::WARN);
    CHATTY.iter().filter(|name| !text.contains(*name)).fold(filter, |f, name| f.with_target(*name, level))
}

/// Whether standard error takes colours.
fn color() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn libraries_are_quiet_unless_they_are_named() {
        let told = |text: &str, target: &str| {
            let filter = quieted(text, text.parse().unwrap());
            [LevelFilter::ERROR, LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG]
                .into_iter()
                .filter_map(LevelFilter::into_level)
                .filter(|level| filter.would_enable(target, level))
                .count()
        };
        assert_eq!(
            (told("info", "downbeat::app"), told("info", "fjall::db"), told("info", "lsm_tree")),
            (3, 2, 2)
        );
        assert_eq!((told("debug", "downbeat"), told("debug", "fjall")), (4, 2));
        assert_eq!((told("error", "fjall"), told("off", "fjall")), (1, 0));
        assert_eq!((told("info,fjall=debug", "fjall"), told("info,fjall=debug", "lsm_tree")), (4, 2));
    }
}
