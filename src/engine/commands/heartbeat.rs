//! The attempt is alive. For a claim this is also the acknowledgement and renews its lease.

use super::super::limits::HEARTBEAT_SHARE;
use super::super::{Stop, Txn};
use super::held;
use crate::model::command::{AttemptKey, Outcome};
use crate::model::run::{Holder, TaskPhase};
use crate::model::time::Span;

pub(super) fn apply(
    txn: &mut Txn<'_>,
    key: &AttemptKey,
    extend_claim: Option<Span>,
) -> Result<Outcome, Stop> {
    let now = txn.env.lease_now;
    let (i, lease) = held(txn, key)?;
    let claimed = matches!(lease.holder, Holder::Claim { .. });
    let deadline = extend_claim.filter(|_| claimed).map(|span| now.plus(span));
    let plan = txn.state().map(|s| s.plan_index(i)).and_then(|p| txn.plan.tasks.get(p as usize));
    let limit = plan.and_then(|t| t.timeout.heartbeat);
    // See `wake::heartbeat_deadline`: what is left out here is granted there.
    let last = lease.heartbeat_at.unwrap_or(lease.leased_at);
    let beat =
        limit.is_some_and(|h| lease.heartbeat_at.is_none() || now.since(last).0 >= h.0 / HEARTBEAT_SHARE);
    if deadline.is_none() && !beat {
        return Ok(Outcome::Held);
    }
    let mut step = txn.step()?;
    if let Some(deadline) = deadline {
        step.want(step.wall(deadline));
    }
    if let TaskPhase::Running { lease, .. } = &mut step.task_mut(i).phase {
        lease.acked = true;
        if let Some(deadline) = deadline {
            lease.holder = Holder::Claim { deadline };
        }
        if beat {
            lease.heartbeat_at = Some(now);
        }
    }
    Ok(Outcome::Accepted)
}
