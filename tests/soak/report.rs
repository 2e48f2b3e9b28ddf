//! How a soak is told.

use crate::Settings;
use crate::audit::Found;
use crate::nemesis::Injected;
use std::fmt::Write as _;
use std::time::Duration;

/// What repeats the faults.
pub(crate) fn command(settings: &Settings) -> String {
    format!(
        "scripts/soak {} --seed {} --every {} --redis {}",
        settings.seconds as f64 / 60.0,
        settings.seed,
        settings.every.as_secs_f64(),
        settings.redis
    )
}

/// A page of Markdown.
pub(crate) fn report(settings: &Settings, injected: &Injected, found: &Found, drained: Duration) -> String {
    let mut text = format!(
        "# Soak of {} s, seed {}: {}\n\nA fault every {:?}; two servers, three workers, {}. Repeat with\n\n```console\n$ {}\n```\n\n| injected | times |\n|---|--:|\n",
        settings.seconds,
        settings.seed,
        if found.wrong.is_empty() { "nothing lost, nothing twice" } else { "FAILED" },
        settings.every,
        crate::store::words(&settings.redis),
        command(settings)
    );
    for (fault, times) in injected {
        let _ = writeln!(text, "| {} | {times} |", fault.words());
    }
    let _ = writeln!(text, "| **all** | {} |", injected.values().sum::<usize>());
    text.push_str("\n| counted | |\n|---|--:|\n");
    for (what, count) in [
        ("starts acknowledged", found.acknowledged),
        ("runs, children included", found.runs),
        ("**runs lost**", found.lost),
        ("**runs not completed, or stuck**", found.stuck),
        ("minutes that a schedule started, each of them once", found.slots),
        ("tasks completed", found.tasks),
        ("**results accepted twice, or acknowledged and not counted**", found.twice),
        ("attempts begun", found.attempts),
        ("attempts lost with their workers", found.attempts_lost),
        ("deliveries repeated without using an attempt", found.redelivered),
        ("results that workers sent", found.sent),
        ("results acknowledged over HTTP", found.accepted_claims),
        ("calls that were refused or broke, and were repeated", found.repeats),
        ("events told to the reader of all", found.events),
        ("times it was cut and resumed", found.cuts),
        ("resets it was told", found.resets),
        ("**runs of which it missed an event, or was told one twice**", found.gaps),
        ("**panics of servers**", found.panics),
    ] {
        let _ = writeln!(text, "| {what} | {count} |");
    }
    let _ = writeln!(text, "\nAll runs had ended {:.1} s after the last fault.", drained.as_secs_f64());
    if !found.wrong.is_empty() {
        text.push_str("\n## Wrong\n\n");
        for wrong in found.wrong.iter().take(50) {
            let _ = writeln!(text, "- {wrong}");
        }
    }
    text
}
