//! Runs that other runs are started for: what a task of kind `workflow` does, and what parent and child tell each
//! other. Everything goes through the outboxes of both (`model::outbox`).
//!
//! ```text
//! parent: Start ──→ child begins          child ends: Ended ──→ ChildEnded: the task ends
//! parent: Order (cancel, pause, resume, retry) ──→ child
//! ```
//!
//! Invariants
//! - The id of a child follows from its parent, the path of its task and the attempt: whoever starts it, it is one run.
//! - A parent waits for the end that was told with the ticket it holds, and for no other: an end of an earlier try of the
//!   child, told late, changes nothing.
//! - An order is taken once: a child knows the number of the last one, and they come in order.
//! - A task of kind `workflow` that is left otherwise than by its child's end recalls the child, unless it is detached.

use super::graph::{Cascade, End};
use super::limits::{CHILD_DEPTH_MAX, CHILD_LOOK, REDELIVER};
use super::permits;
use super::retry::{Again, Ending};
use super::scope::View;
use super::step::{Step, Words, clip};
use crate::model::command::ChildEnd;
use crate::model::event::EventKind;
use crate::model::ids::{RunId, WorkflowName};
use crate::model::json;
use crate::model::nodes::Level;
use crate::model::outbox::{Delivery, EndedRun, Origin, Parcel, Parent, StartFor};
use crate::model::payload::Payload;
use crate::model::plan::{Child, Plan, TaskKind};
use crate::model::run::{Errand, Order, RunState, RunStatus, TaskPhase, Waiting};
use bytes::Bytes;

/// The child that an attempt of a node is; none if no run of another workflow does it, or before the first attempt.
pub(crate) fn child_of(state: &RunState, plan: &Plan, node: u32, attempt: u32) -> Option<RunId> {
    let task = plan.tasks.get(state.plan_index(node) as usize)?;
    if !matches!(task.kind, TaskKind::Workflow(_)) || state.level(plan, node) != Level::Body || attempt == 0 {
        return None;
    }
    let created = state.created_at.0.to_be_bytes();
    let path = state.path_of(plan, node);
    let parts: [&[u8]; 4] =
        [state.id.as_str().as_bytes(), &created, path.as_str().as_bytes(), &attempt.to_be_bytes()];
    Some(RunId::generate(state.created_at, u128::from_be_bytes(json::digest(&parts))))
}

/// How many runs are above a run.
fn depth(state: &RunState) -> u32 {
    state.parent().map_or(0, |p| p.depth)
}

/// A message of a run as it is delivered.
pub(super) fn delivery(state: &RunState, plan: &Plan, number: u32) -> Option<Delivery> {
    let message = state.outbox.pending.get(&number)?;
    let parcel = match &message.what {
        Errand::Start { node, workflow, version } => {
            let task = plan.tasks.get(state.plan_index(*node) as usize)?;
            let detached = matches!(&task.kind, TaskKind::Workflow(Child { detach: true, .. }));
            let urgent = state.priority.saturating_add(task.priority).clamp(-100, 100);
            Parcel::Start(Box::new(StartFor {
                workflow: workflow.clone(),
                version: *version,
                input: state.tasks.get(*node as usize)?.input.clone(),
                tags: std::collections::BTreeMap::new(),
                priority: (urgent != 0).then_some(urgent),
                // What is looked at with its parent stays as long; what lives by itself has its own rule.
                retention: (!detached).then_some(state.retention),
                origin: Origin::Parent(Parent {
                    run: state.id.clone(),
                    task: state.path_of(plan, *node),
                    ticket: number,
                    heard: number,
                    depth: depth(state) + 1,
                    detached,
                }),
            }))
        }
        Errand::Order(order) => Parcel::Command(order_of(state, number, *order)),
        Errand::Acquire { node } => permits::acquire(state, plan, *node, number)?,
        Errand::Release { ticket } => permits::release(state, *ticket),
        Errand::Take { node } => permits::take(state, plan, *node)?,
        Errand::Ended => {
            let error = state.error.and_then(|f| state.failures.get(f as usize));
            Parcel::Ended(Box::new(EndedRun {
                origin: state.origin.clone()?,
                status: state.status,
                output: state.output.clone(),
                error: error.map(|f| (f.code.clone(), f.message.clone())),
            }))
        }
    };
    Some(Delivery { sequence: number, to: message.to.clone(), parcel })
}

fn order_of(state: &RunState, sequence: u32, order: Order) -> crate::model::command::Command {
    crate::model::command::Command::Order { from: state.id.clone(), sequence, order }
}

impl<'s> Step<'s> {
    /// The child that a node is to start, if that is what it does.
    fn child_plan(&self, i: u32) -> Option<&'s Child> {
        match &self.plan_of(i).kind {
            TaskKind::Workflow(child) => Some(child),
            TaskKind::Worker(_)
            | TaskKind::WorkerOf(_)
            | TaskKind::Group(_)
            | TaskKind::Wait(_)
            | TaskKind::Set(_)
            | TaskKind::Fail { .. }
            | TaskKind::Finish { .. } => None,
        }
    }

    /// Begins the next attempt of what a run of another workflow does. Its input stands already.
    pub(super) fn next_child(&mut self, i: u32, child: &Child, cascade: &mut Cascade) {
        let Some(name) = self.text(i, "workflow", &child.workflow, cascade) else { return };
        let workflow = match WorkflowName::new(&name) {
            Ok(workflow) => workflow,
            Err(e) => {
                let name = clip(&name, 64);
                let message = format!("tasks.{}.workflow came to {name:?}: {}", self.path(i), e.rule);
                return self.fail_task(i, &Words::new("invalid_workflow_name", message), cascade);
            }
        };
        if depth(&self.work.state) >= CHILD_DEPTH_MAX {
            let message = format!(
                "the run stands below {CHILD_DEPTH_MAX} others, the most there may be: does {workflow} start itself?"
            );
            return self.fail_task(i, &Words::new("child_too_deep", message), cascade);
        }
        let now = self.now;
        let task = self.task_mut(i);
        task.attempt = task.attempt.saturating_add(1);
        let first = *task.first_queued_at.get_or_insert(now);
        if let Some(total) = self.plan_of(i).timeout.total {
            self.want(first.plus(total));
        }
        self.send_to_child(i, Errand::Start { node: i, workflow, version: child.version });
    }

    /// Sends a node's child what starts it, or has it go on, and waits for it.
    fn send_to_child(&mut self, i: u32, errand: Errand) {
        let state = &mut self.work.state;
        let attempt = state.tasks.get(i as usize).map_or(0, |t| t.attempt);
        let Some(child) = child_of(state, self.plan, i, attempt) else { return };
        let ticket = state.outbox.push(child, errand);
        let ask_at = self.now.plus(CHILD_LOOK);
        self.task_mut(i).phase = TaskPhase::Waiting(Waiting::Child { ticket, ask_at });
        self.log_task(EventKind::TaskWaiting, i, None, None);
        self.want(self.now.plus(REDELIVER));
    }

    /// Whether a node's failed child can go on from what it has done: it was started, and its parent was to wait for it.
    pub(super) fn has_child_to_retry(&self, i: u32) -> bool {
        let task = self.task(i);
        let failed = matches!(
            task.phase,
            TaskPhase::Failed { .. } | TaskPhase::TimedOut { .. } | TaskPhase::Cancelled
        );
        let waits = self.child_plan(i).is_some_and(|c| !c.detach);
        failed && waits && task.attempt > 0 && self.work.state.level(self.plan, i) == Level::Body
    }

    /// Has a node's failed child begin another try, and waits for it.
    pub(super) fn retry_child(&mut self, i: u32) {
        let now = self.now;
        self.task_mut(i).first_queued_at = Some(now);
        if let Some(total) = self.plan_of(i).timeout.total {
            self.want(now.plus(total));
        }
        self.send_to_child(i, Errand::Order(Order::Retry));
    }

    /// The node that waits for its child with this ticket.
    fn waiting_with(&self, ticket: u32) -> Option<u32> {
        self.work.state.tasks.iter().position(|t| t.awaits_child(ticket)).map(|i| i as u32)
    }

    /// The child of a node that waits for it, unless it lives its own life.
    fn open_child(&self, i: u32) -> Option<RunId> {
        let TaskPhase::Waiting(Waiting::Child { .. }) = self.task(i).phase else { return None };
        self.child_plan(i).filter(|c| !c.detach)?;
        child_of(&self.work.state, self.plan, i, self.task(i).attempt)
    }

    /// A node that waits for its child is about to end otherwise: the child is cancelled. It is undone if what its
    /// parent has done is.
    pub(super) fn recall_child(&mut self, i: u32) {
        if let Some(child) = self.open_child(i) {
            let (compensate, force) = self.work.recall;
            self.work.state.outbox.push(child, Errand::Order(Order::Cancel { compensate, force }));
        }
    }

    /// Has every child that is waited for do something.
    pub(super) fn order_children(&mut self, order: Order) {
        for i in 0..self.work.state.tasks.len() as u32 {
            if let Some(child) = self.open_child(i) {
                self.work.state.outbox.push(child, Errand::Order(order));
            }
        }
    }

    /// The run has ended: whoever started it and waits for it is told.
    pub(super) fn tell_origin(&mut self) {
        let state = &mut self.work.state;
        let to = match &state.origin {
            Some(Origin::Parent(parent)) if parent.detached => return,
            Some(Origin::Parent(parent)) => parent.run.clone(),
            Some(Origin::Schedule { home, .. }) => home.clone(),
            None => return,
        };
        if !state.outbox.pending.values().any(|m| m.what == Errand::Ended) {
            state.outbox.push(to, Errand::Ended);
        }
    }

    /// A node's child has ended.
    pub(super) fn child_ended(&mut self, i: u32, child: &RunId, end: &ChildEnd, cascade: &mut Cascade) {
        let by_policy = Again::ByPolicy { after: None };
        // Of runs below runs the innermost is named.
        let words = |code: &str, message: &str| {
            let run = message.strip_prefix("run ").and_then(|rest| Some(rest.split_once(": ")?.0));
            let named = run.is_some_and(|run| RunId::new(run).is_ok());
            let text = if named { message.to_owned() } else { format!("run {child}: {message}") };
            Words::clipped(code, &text)
        };
        match end {
            ChildEnd::Completed(json) => {
                let output = self.keep_json(i, json.clone());
                self.complete_task(i, output, cascade);
            }
            ChildEnd::Failed { status: RunStatus::Cancelled, .. } => {
                self.end_task(i, End::Cancelled, cascade);
            }
            ChildEnd::Failed { status: RunStatus::TimedOut, code, message } => {
                self.fail_attempt(i, &words(code, message), by_policy, Ending::TimedOut, cascade);
            }
            ChildEnd::Failed { code, message, .. } => {
                self.fail_attempt(i, &words(code, message), by_policy, Ending::Failed, cascade);
            }
        }
    }

    /// The start of a node's child was taken.
    pub(super) fn child_started(&mut self, i: u32, child: &RunId, ticket: u32, cascade: &mut Cascade) {
        if self.waits_with(i, ticket) && self.child_plan(i).is_some_and(|c| c.detach) {
            let output = Payload::Inline(Bytes::from(format!("{{\"run\":\"{child}\"}}")));
            self.complete_task(i, output, cascade);
        }
    }

    /// The start of a node's child was refused, for good.
    pub(super) fn child_refused(
        &mut self,
        i: u32,
        ticket: u32,
        code: &str,
        message: &str,
        cascade: &mut Cascade,
    ) {
        if self.waits_with(i, ticket) {
            let words = Words::clipped(code, message);
            self.fail_attempt(i, &words, Again::Never, Ending::Failed, cascade);
        }
    }

    /// A child that was asked to go on, or how it stands, is not there any more: another takes its place.
    pub(super) fn child_gone(&mut self, ticket: u32, cascade: &mut Cascade) {
        if let Some(i) = self.waiting_with(ticket) {
            // The attempt has ended, if not as anybody knows.
            let words = Words::new("child_gone", "the run that was started for it is not there any more");
            let failure = self.add_failure(&words, Some(i));
            self.log_task(EventKind::TaskRetrying, i, None, Some(failure));
            self.next_attempt(i, cascade);
        }
    }

    fn waits_with(&self, i: u32, ticket: u32) -> bool {
        self.work.state.tasks.get(i as usize).is_some_and(|t| t.awaits_child(ticket))
    }

    /// Asks a node's child, once in a long while, whether it has ended without our knowing: a store that has lost its
    /// tail may have lost it, or what it said.
    pub(super) fn ask_child(&mut self, i: u32) {
        let next = self.now.plus(CHILD_LOOK);
        let TaskPhase::Waiting(Waiting::Child { ticket, ask_at }) = &mut self.task_mut(i).phase else {
            return;
        };
        let ticket = *ticket;
        *ask_at = next;
        let state = &self.work.state;
        if state.outbox.pending.contains_key(&ticket) {
            return;
        }
        if let Some(to) = self.open_child(i) {
            let parcel = Parcel::Command(order_of(&self.work.state, ticket, Order::Retry));
            self.work.asks.push(Delivery { sequence: ticket, to, parcel });
        }
    }

    /// The first attempt of what a run of another workflow does.
    pub(super) fn begin_child(&mut self, i: u32, cascade: &mut Cascade) {
        if self.evaluate_input(i, cascade) {
            self.next_attempt(i, cascade);
        }
    }

    /// Evaluates the input of a node's attempts, unless it was given by hand. False: the node has failed, or payloads
    /// are missing.
    pub(super) fn evaluate_input(&mut self, i: u32, cascade: &mut Cascade) -> bool {
        if self.task(i).fixed_input {
            return true;
        }
        let template = self.plan_of(i).input.as_ref();
        let what = || format!("tasks.{}.input", self.path(i));
        match self.evaluate(View::of(i), template, what, "input_too_large") {
            Ok(value) => {
                let field = self.fields();
                let input = value.into_payload(|| field(format_args!("a{i}.1")), &mut self.work.written);
                self.task_mut(i).input = input;
                true
            }
            Err(halt) => {
                self.halt(i, halt, cascade);
                false
            }
        }
    }
}
