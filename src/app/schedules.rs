//! Use cases on schedules. A schedule is a home record of its own name; the names of all stand in another, for lists.

use super::cursor::{List, by_time};
use super::error::{invalid_schedule, store_error};
use super::inner::Inner;
use super::lane::envelope::Answer;
use super::runs::{ask, check_input, checked, read};
use super::view::{ErrorView, EventView, Page, RunByHand, SchedulePut, ScheduleView, SlotView, ValueView};
use super::{App, AppError, render};
use crate::engine::Env;
use crate::engine::homes::HomeTxn;
use crate::engine::homes::schedule::event_of;
use crate::model::command::{Command, HomeCommand, Outcome, Refusal};
use crate::model::commit::EventNote;
use crate::model::error::{ErrorCode, Fault};
use crate::model::home::{Home, ScheduleNames};
use crate::model::ids::{Partition, Prefix, RunId};
use crate::model::outbox::Origin;
use crate::model::record;
use crate::model::schedule::{
    BACKFILL_MAX, Fate, Firing, ScheduleCommand, ScheduleName, ScheduleOutcome, ScheduleRefusal,
    ScheduleState, SkipReason,
};
use crate::model::time::{LeaseTime, Timestamp};
use crate::store::StoreError;
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};

/// Next firings that are told with a schedule.
const NEXT: usize = 10;
/// Open runs that are told with a schedule.
const OPEN: usize = 100;
/// JSON null.
const NULL: Bytes = Bytes::from_static(b"null");

/// A schedule as the store has it.
async fn load(inner: &Inner, name: &ScheduleName) -> Result<Option<Box<ScheduleState>>, AppError> {
    Ok(load_all(inner, &[name.home()]).await?.pop().flatten())
}

async fn load_all(inner: &Inner, homes: &[RunId]) -> Result<Vec<Option<Box<ScheduleState>>>, AppError> {
    let keys: Vec<(Partition, RunId)> = homes.iter().map(|h| (inner.partition_of(h), h.clone())).collect();
    load_keys(inner, &keys).await
}

/// A home record as read, decoded.
fn decode(bytes: &Bytes) -> Result<Home, AppError> {
    let body = bytes.get(Prefix::LEN..).unwrap_or_default();
    record::homes::decode(body).map_err(|e| store_error(StoreError::Unreadable(e.to_string())))
}

async fn load_keys(
    inner: &Inner,
    keys: &[(Partition, RunId)],
) -> Result<Vec<Option<Box<ScheduleState>>>, AppError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let found = inner.store.load(keys).await.map_err(store_error)?;
    let state = |record: Option<Bytes>| match record.map(|r| decode(&r)).transpose()? {
        Some(Home::Schedule(state)) => Ok(Some(state)),
        Some(Home::Semaphore(_) | Home::Bucket(_) | Home::ScheduleNames(_)) | None => Ok(None),
    };
    found.into_iter().map(state).collect()
}

async fn names(inner: &Inner) -> Result<ScheduleNames, AppError> {
    let home = ScheduleNames::home();
    let found = inner.store.load(&[(inner.partition_of(&home), home)]).await.map_err(store_error)?;
    match found.into_iter().next().flatten().map(|r| decode(&r)).transpose()? {
        Some(Home::ScheduleNames(names)) => Ok(names),
        Some(Home::Semaphore(_) | Home::Bucket(_) | Home::Schedule(_)) | None => Ok(ScheduleNames::default()),
    }
}

/// Asks the list of schedules.
async fn listed(inner: &Inner, command: HomeCommand) -> Result<(), AppError> {
    ask(inner, &ScheduleNames::home(), Command::Home(command)).await.map(drop)
}

fn not_found(name: &ScheduleName) -> AppError {
    AppError::new(ErrorCode::ScheduleNotFound, format!("there is no schedule \"{name}\""))
}

/// What a refused command means to a caller.
fn refusal(refusal: &Refusal, name: &ScheduleName) -> AppError {
    let fault = |path: &str, message: String| {
        let fault = Fault { path: path.to_owned(), line: None, message: message.clone() };
        AppError::with_faults(ErrorCode::InvalidRequest, format!("{path}: {message}"), vec![fault])
    };
    let Refusal::Schedule(refused) = refusal else { return super::error::refusal(refusal, &name.home()) };
    match refused {
        ScheduleRefusal::NoSchedule => not_found(name),
        ScheduleRefusal::Busy(_) | ScheduleRefusal::TooManyWait => {
            AppError::new(ErrorCode::ScheduleBusy, format!("schedule \"{name}\": {refused}"))
        }
        ScheduleRefusal::TooManySlots { .. } | ScheduleRefusal::InFuture => fault("to", refused.to_string()),
        ScheduleRefusal::EmptyRange => fault("from", refused.to_string()),
    }
}

/// Asks a schedule; gives what it says with how it stands then.
async fn tell(
    inner: &Inner,
    name: &ScheduleName,
    command: ScheduleCommand,
) -> Result<(ScheduleOutcome, Option<ScheduleState>), AppError> {
    let Answer { outcome, home, .. } =
        ask(inner, &name.home(), Command::Home(HomeCommand::Schedule(command))).await?;
    let outcome = match outcome {
        Ok(Outcome::Schedule(outcome)) => outcome,
        Ok(_) => ScheduleOutcome::Unchanged,
        Err(refused) => return Err(refusal(&refused, name)),
    };
    let state = match home.map(|home| *home) {
        Some(Home::Schedule(state)) => Some(*state),
        Some(Home::Semaphore(_) | Home::Bucket(_) | Home::ScheduleNames(_)) | None => None,
    };
    Ok((outcome, state))
}

/// A schedule as lists tell it.
fn head(state: &ScheduleState, now: Timestamp, next: usize) -> ScheduleView {
    ScheduleView {
        name: state.name.clone(),
        revision: state.revision,
        created_at: state.created_at,
        updated_at: state.updated_at,
        definition: state.definition.clone(),
        input: ValueView::default(),
        paused_since: state.paused_since,
        next: next_firings(state, now, next),
        open: Vec::new(),
        open_count: state.open.len(),
        waiting: state.queued.len() + state.manual.len(),
        backfilling: state.backfill.len(),
        firings: state.firings.back().into_iter().cloned().collect(),
    }
}

/// The next firings; of a paused schedule those that there would be if it went on now.
fn next_firings(state: &ScheduleState, now: Timestamp, count: usize) -> Vec<Timestamp> {
    let Some(calendar) = state.definition.calendar() else { return Vec::new() };
    // What is due and was not looked at yet comes first.
    let first = state.next.filter(|n| *n <= now && state.paused_since.is_none());
    first
        .into_iter()
        .chain(calendar.between(now, Timestamp(i64::MAX)).filter(|s| *s > now))
        .take(count)
        .collect()
}

fn whole(inner: &Inner, state: &ScheduleState, input: ValueView) -> ScheduleView {
    let open = state.open.iter().take(OPEN).map(|(run, slot)| (run.clone(), *slot));
    ScheduleView {
        input,
        open: open.collect(),
        firings: state.firings.iter().rev().cloned().collect(),
        ..head(state, inner.clock.now(), NEXT)
    }
}

async fn input_of(inner: &Inner, state: &ScheduleState) -> Result<ValueView, AppError> {
    render::text(inner, &state.name.home(), &state.definition.input).await.map(ValueView::Json)
}

/// A schedule as a commit has left it. If its input cannot be read now, it stands as a reference to the schedule: what was
/// asked for was done, and is not told as an error.
async fn committed(inner: &Inner, state: &ScheduleState) -> ScheduleView {
    let input = input_of(inner, state).await.unwrap_or_else(|_| ValueView::Ref {
        url: format!("/v1/schedules/{}", state.name),
        size: render::size_at_most(&state.definition.input),
    });
    whole(inner, state, input)
}

/// What would keep the runs from being started: no such workflow, an input that does not match.
async fn could_start(inner: &Inner, put: &SchedulePut, input: Option<&Bytes>) -> Result<(), AppError> {
    let workflow = &put.definition.workflow;
    let plan = async {
        let version = match put.definition.version {
            Some(version) => version,
            None => inner.plans.newest(workflow).await?,
        };
        inner.plans.get(workflow, version).await
    };
    let fault = |path: &str, message: String| Fault { path: path.to_owned(), line: None, message };
    let faults = match plan.await {
        Ok(plan) => match check_input(&plan, workflow, input.unwrap_or(&NULL)) {
            Ok(()) => return Ok(()),
            Err(e) if e.faults.is_empty() => return Err(e),
            Err(e) => {
                let below = |f: &Fault| match f.path.strip_prefix("input") {
                    Some(_) => f.path.clone(),
                    None if f.path.is_empty() => "input".to_owned(),
                    None => format!("input.{}", f.path),
                };
                e.faults.iter().map(|f| fault(&below(f), f.message.clone())).collect()
            }
        },
        Err(e) if e.code == ErrorCode::WorkflowNotFound => {
            vec![fault("workflow", e.message)]
        }
        Err(e) => return Err(e),
    };
    Err(invalid_schedule(faults))
}

impl App {
    /// Creates a schedule, or gives it another definition; says whether it was created. With `dry_run` only checks, and
    /// tells how it would stand.
    ///
    /// # Errors
    /// `invalid_schedule` with every fault; `too_many_schedules`; `store_unavailable`.
    pub async fn put_schedule(
        &self,
        put: SchedulePut,
        dry_run: bool,
    ) -> Result<(ScheduleView, bool), AppError> {
        let inner = &self.inner;
        let input = checked(&put.input, "input")?;
        could_start(inner, &put, input.as_ref()).await?;
        let known = load(inner, &put.name).await?;
        if known.is_none() && names(inner).await?.created.len() >= ScheduleNames::MAX {
            let message = format!("there are {} schedules, as many as there may be", ScheduleNames::MAX);
            return Err(AppError::new(ErrorCode::TooManySchedules, message));
        }
        let command = ScheduleCommand::Put {
            name: put.name.clone(),
            definition: Box::new(put.definition),
            input: input.clone(),
            paused: put.paused,
        };
        if dry_run {
            let created = known.is_none();
            let state = rehearsed(inner, &put.name, known, command)?;
            return Ok((whole(inner, &state, ValueView::Json(input.unwrap_or(NULL))), created));
        }
        let (outcome, state) = tell(inner, &put.name, command).await?;
        let state = state.ok_or_else(|| not_found(&put.name))?;
        let created = outcome == ScheduleOutcome::Created;
        if created {
            // It says so by itself too; this way it stands in the list when this call is answered.
            let (name, created_at) = (put.name.clone(), state.created_at);
            if let Err(error) = listed(inner, HomeCommand::ListSchedule { name, created_at }).await {
                tracing::debug!(name = %put.name, %error, "a schedule is listed a little later than it is there");
            }
        }
        Ok((committed(inner, &state).await, created))
    }

    /// One schedule.
    pub async fn schedule(&self, name: &ScheduleName) -> Result<ScheduleView, AppError> {
        let state = load(&self.inner, name).await?.ok_or_else(|| not_found(name))?;
        let input = input_of(&self.inner, &state).await?;
        Ok(whole(&self.inner, &state, input))
    }

    /// Schedules, the newest first.
    pub async fn schedules(&self, limit: u32, cursor: Option<&str>) -> Result<Page<ScheduleView>, AppError> {
        let limit = limit.clamp(1, 500) as usize;
        let read = |p: &str| {
            let (created, name) = by_time(p)?;
            Some((created, ScheduleName::new(name).ok()?))
        };
        let before = cursor.map(|c| List::Schedules.position(c, read)).transpose()?;
        let names = names(&self.inner).await?;
        let mut order: Vec<(Timestamp, ScheduleName)> =
            names.created.into_iter().map(|(name, created)| (created, name)).collect();
        order.sort_by(|a, b| b.cmp(a));
        order.retain(|at| before.as_ref().is_none_or(|before| at < before));
        let now = self.inner.clock.now();
        let mut items = Vec::new();
        for some in order.chunks(limit) {
            let homes: Vec<RunId> = some.iter().map(|(_, name)| name.home()).collect();
            for ((created_at, name), state) in some.iter().zip(load_all(&self.inner, &homes).await?) {
                match state {
                    Some(state) if state.created_at == *created_at => items.push(head(&state, now, 1)),
                    // Another of this name is about to list itself.
                    Some(_) => {}
                    None => self.unlist(name, *created_at).await,
                }
            }
            if items.len() >= limit {
                break;
            }
        }
        items.truncate(limit);
        // A full page may be the last: whether anything follows is seen by what comes behind it.
        let last = items.last().map(|v| (v.created_at, v.name.clone()));
        let follows = last.as_ref().is_some_and(|last| order.iter().any(|at| at < last));
        let next_cursor =
            last.filter(|_| follows).map(|(at, name)| List::Schedules.cursor(&format!("{}.{name}", at.0)));
        Ok(Page { items, next_cursor })
    }

    /// Forgets a schedule. Its runs go on.
    pub async fn delete_schedule(&self, name: &ScheduleName) -> Result<(), AppError> {
        let state = load(&self.inner, name).await?.ok_or_else(|| not_found(name))?;
        tell(&self.inner, name, ScheduleCommand::Delete).await?;
        self.unlist(name, state.created_at).await;
        Ok(())
    }

    /// Takes a schedule that is gone out of the list. What fails here is done by the next who lists.
    async fn unlist(&self, name: &ScheduleName, created_at: Timestamp) {
        let command = HomeCommand::UnlistSchedule { name: name.clone(), created_at };
        if let Err(error) = listed(&self.inner, command).await {
            tracing::debug!(%name, %error, "a schedule that is gone stays listed for now");
        }
    }

    /// Starts nothing by itself until resumed.
    pub async fn pause_schedule(&self, name: &ScheduleName) -> Result<ScheduleView, AppError> {
        self.change_schedule(name, ScheduleCommand::Pause).await
    }

    /// Goes on after a pause.
    pub async fn resume_schedule(&self, name: &ScheduleName) -> Result<ScheduleView, AppError> {
        self.change_schedule(name, ScheduleCommand::Resume).await
    }

    async fn change_schedule(
        &self,
        name: &ScheduleName,
        command: ScheduleCommand,
    ) -> Result<ScheduleView, AppError> {
        let (_, state) = tell(&self.inner, name, command).await?;
        Ok(committed(&self.inner, &state.ok_or_else(|| not_found(name))?).await)
    }

    /// Starts a run now, as far as overlap allows. With `request`, at most once.
    ///
    /// # Errors
    /// `schedule_busy` if a run is open and overlap is `skip`; `run_id_taken` if the id is that of somebody else's run.
    pub async fn run_schedule(
        &self,
        name: &ScheduleName,
        request: Option<&str>,
    ) -> Result<RunByHand, AppError> {
        let inner = &self.inner;
        let run = name.run_by_hand(request, inner.clock.now(), inner.options.entropy.next());
        if request.is_some()
            && let Some(known) = read(inner, &run).await?
        {
            let own = matches!(&known.origin, Some(Origin::Schedule { home, .. }) if *home == name.home());
            if own {
                return Ok(RunByHand { run, queued: false });
            }
            let message = format!(
                "{run:?}, the id of the run to be started, is that of a run which is not of this schedule"
            );
            return Err(AppError::new(ErrorCode::RunIdTaken, message));
        }
        let (outcome, _) = tell(inner, name, ScheduleCommand::RunNow { run: run.clone() }).await?;
        Ok(RunByHand { run, queued: outcome == ScheduleOutcome::Queued })
    }

    /// Starts runs of past slots, those from `from` on and before `to`; says how many there are to start.
    pub async fn backfill_schedule(
        &self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u32, AppError> {
        let inner = &self.inner;
        let state = load(inner, name).await?.ok_or_else(|| not_found(name))?;
        let calendar = state.definition.calendar();
        let slots: Vec<Timestamp> =
            calendar.iter().flat_map(|c| c.between(from, to).take(BACKFILL_MAX)).collect();
        let keys: Vec<(Partition, RunId)> =
            slots.iter().map(|s| name.run_of(*s)).map(|run| (inner.partition_of(&run), run)).collect();
        let mut exist = BTreeSet::new();
        for (slots, keys) in slots.chunks(100).zip(keys.chunks(100)) {
            let found = inner.store.load(keys).await.map_err(store_error)?;
            exist.extend(
                slots.iter().zip(found).filter(|(_, record)| record.is_some()).map(|(slot, _)| *slot),
            );
        }
        match tell(inner, name, ScheduleCommand::Backfill { from, to, exist }).await?.0 {
            ScheduleOutcome::Backfilled(count) => Ok(count),
            ScheduleOutcome::Created
            | ScheduleOutcome::Done
            | ScheduleOutcome::Unchanged
            | ScheduleOutcome::Starting
            | ScheduleOutcome::Queued => Ok(0),
        }
    }

    /// The next firings of a schedule, also of a paused one: those that there would be.
    pub async fn next_firings(&self, name: &ScheduleName, count: u32) -> Result<Vec<Timestamp>, AppError> {
        let state = load(&self.inner, name).await?.ok_or_else(|| not_found(name))?;
        Ok(next_firings(&state, self.inner.clock.now(), count as usize))
    }
}

/// What a schedule would be after a command, without writing it.
fn rehearsed(
    inner: &Inner,
    name: &ScheduleName,
    known: Option<Box<ScheduleState>>,
    command: ScheduleCommand,
) -> Result<ScheduleState, AppError> {
    let home = name.home();
    let nonce = inner.options.entropy.nonce();
    let partition = inner.partition_of(&home);
    let env = Env {
        now: inner.clock.now(),
        lease_now: LeaseTime(0),
        partition,
        nonce,
        random: 0,
        lease: inner.options.lease,
        unacked: inner.options.unacked(),
    };
    let known = known.map(Home::Schedule);
    let base = known.as_ref().map(|state| (state, Prefix::new(1, nonce)));
    let mut txn = HomeTxn::new(&home, base, env);
    txn.apply(&Command::Home(HomeCommand::Schedule(command))).map_err(|r| refusal(&r, name))?;
    match txn.finish().and_then(|d| d.home).or(known) {
        Some(Home::Schedule(state)) => Ok(*state),
        Some(Home::Semaphore(_) | Home::Bucket(_) | Home::ScheduleNames(_)) | None => Err(not_found(name)),
    }
}

/// The schedules among these home records, for the events that tell of them.
pub(crate) async fn told_of(
    inner: &Inner,
    homes: &[(Partition, RunId)],
) -> Result<HashMap<RunId, Box<ScheduleState>>, AppError> {
    let found = load_keys(inner, homes).await?;
    Ok(homes.iter().zip(found).filter_map(|((_, home), state)| Some((home.clone(), state?))).collect())
}

/// The events that a note of the streams tells of; `ms`: when it was written, for what is no longer known.
pub(crate) fn events_of(state: Option<&ScheduleState>, note: &EventNote, ms: u64) -> Vec<EventView> {
    let Some(name) = ScheduleName::of_home(&note.run) else { return Vec::new() };
    let told = (note.first..).zip(&note.kinds);
    told.map(|(number, kind)| {
        let firing = state.and_then(|s| s.firings.iter().find(|f| f.number == number));
        match (state, firing) {
            (Some(state), Some(firing)) if event_of(firing) == *kind => event(state, firing),
            _ => {
                let slot = SlotView { name: name.clone(), slot: None, until: None, count: 1, reason: None };
                EventView { schedule: Some(slot), ..render::gone(*kind, ms) }
            }
        }
    })
    .collect()
}

fn event(state: &ScheduleState, firing: &Firing) -> EventView {
    let d = &state.definition;
    let refused = (firing.fate == Fate::Refused).then_some("refused");
    let error = firing.error.as_ref().map(|(code, message)| ErrorView {
        code: code.clone(),
        message: message.clone(),
        task: None,
        attempt: 0,
    });
    EventView {
        time: firing.time,
        run: firing.run.clone().filter(|_| firing.fate == Fate::Started),
        tags: d.tags.clone(),
        deleted: false,
        workflow: Some((d.workflow.clone(), d.version.unwrap_or(0))),
        error,
        schedule: Some(SlotView {
            name: state.name.clone(),
            slot: Some(firing.slot),
            until: firing.until,
            count: firing.count,
            reason: firing.reason.map(SkipReason::name).or(refused),
        }),
        ..render::gone(event_of(firing), 0)
    }
}
