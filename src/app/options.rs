//! What can be set about a server's inner workings, with the defaults that users are promised.

use crate::model::entropy::{Entropy, OsEntropy};
use crate::model::time::Span;
use std::sync::Arc;

/// See each field. [`Options::default`] is what the documentation says.
#[derive(Debug, Clone)]
pub struct Options {
    /// A silent worker session loses its tasks after this. 10 s.
    pub lease: Span,
    /// An assignment must be acknowledged within this. 2 s.
    pub ack_within: Span,
    /// Workers are pinged this often. 3 s.
    pub ping_every: Span,
    /// How often due timers and queue heads are looked for. 250 ms.
    pub tick_every: Span,
    /// Entries of event streams that tell of deleted runs only are kept so long. 10 min.
    pub events_kept: Span,
    /// How often they are looked for, by each server. 1 min.
    pub trim_every: Span,
    /// Lanes of this server; partitions are dealt out among them. 1 per four cores, at least 1.
    pub lanes: usize,
    /// Commits under way per lane. 2.
    pub commits_in_flight: usize,
    /// Commands that wait in front of a lane before callers wait. 8,192.
    pub mailbox: usize,
    /// Memory for runs kept by all lanes together, in bytes; others are read when something happens to them. 256 MiB for
    /// each four cores.
    pub cache_bytes: usize,
    /// How long a REST or gRPC call waits for the store before it answers `store_unavailable`. 10 s.
    pub call_timeout: Span,
    /// Compiles documents on the task that needs them instead of a thread of their own: for simulations, whose
    /// order must not depend on threads. Off.
    pub compile_inline: bool,
    /// Where nonces and jitter come from.
    pub entropy: Arc<dyn Entropy>,
}

impl Options {
    /// See [`Env::unacked`](crate::engine::Env::unacked). An acknowledgement is kept, or found to be missing, within the
    /// window; what became of that is looked at with every ping, of which some go by within a lease.
    #[must_use]
    pub fn unacked(&self) -> Span {
        Span(self.lease.0.saturating_mul(4).saturating_add(self.ack_within.0.saturating_mul(2)))
    }
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let quarter = (cores / 4).max(1);
        Self {
            lease: Span::secs(10),
            ack_within: Span::secs(2),
            ping_every: Span::secs(3),
            tick_every: Span::millis(250),
            events_kept: Span::secs(600),
            trim_every: Span::secs(60),
            lanes: quarter,
            commits_in_flight: 2,
            mailbox: 8_192,
            cache_bytes: quarter * (256 << 20),
            call_timeout: Span::secs(10),
            compile_inline: false,
            entropy: Arc::new(OsEntropy::default()),
        }
    }
}
