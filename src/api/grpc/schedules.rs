//! `ScheduleService`.

use super::convert::{self, given, micros};
use super::{Reply, status};
use crate::api::Doors;
use crate::api::check::{self, firings_count, word};
use crate::api::error::invalid;
use crate::app::AppError;
use crate::app::view::{ScheduleView, SlotView};
use crate::model::ids::SignalId;
use crate::model::schedule::{Asked, Definition, Firing, ScheduleName};
use crate::model::time::Timestamp;
use crate::proto::v1;
use crate::proto::v1::schedule_service_server::ScheduleService;
use bytes::Bytes;
use tonic::{Request, Response};

fn name(text: &str) -> Result<ScheduleName, AppError> {
    word("name", text, ScheduleName::new)
}

/// What an event says of a schedule.
pub(super) fn slot(view: SlotView) -> v1::ScheduleSlot {
    v1::ScheduleSlot {
        schedule: view.name.to_string(),
        slot_us: micros(view.slot),
        until_us: micros(view.until),
        count: view.count,
        reason: view.reason.unwrap_or_default().to_owned(),
    }
}

fn asked(definition: v1::ScheduleDefinition, paused: Option<bool>) -> Asked {
    let number = |n: u32| (n != 0).then_some(i64::from(n));
    let text = |text: String| (!text.is_empty()).then_some(text);
    Asked {
        workflow: definition.workflow,
        version: number(definition.version),
        input: Some(definition.input),
        tags: definition.tags,
        priority: definition.priority.map(i64::from),
        cron: definition.cron,
        time_zone: text(definition.time_zone),
        overlap: text(definition.overlap),
        catch_up: text(definition.catch_up),
        catch_up_limit: number(definition.catch_up_limit),
        description: text(definition.description),
        paused,
    }
}

fn definition(d: Definition, input: Bytes) -> v1::ScheduleDefinition {
    v1::ScheduleDefinition {
        workflow: d.workflow.to_string(),
        version: d.version.unwrap_or(0),
        input,
        tags: d.tags,
        priority: d.priority,
        cron: d.cron,
        time_zone: d.time_zone,
        overlap: d.overlap.name().to_owned(),
        catch_up: d.catch_up.name().to_owned(),
        catch_up_limit: d.catch_up_limit,
        description: d.description.unwrap_or_default(),
    }
}

fn firing(f: Firing) -> v1::Firing {
    let (code, message) = f.error.unwrap_or_default();
    v1::Firing {
        number: f.number,
        time_us: f.time.0,
        outcome: f.fate.name().to_owned(),
        slot_us: f.slot.0,
        until_us: micros(f.until),
        count: f.count,
        run: f.run.map(|r| r.to_string()).unwrap_or_default(),
        reason: f.reason.map(|r| r.name().to_owned()).unwrap_or_default(),
        code,
        message,
    }
}

fn schedule(view: ScheduleView) -> v1::Schedule {
    let open = view.open.into_iter();
    v1::Schedule {
        name: view.name.to_string(),
        revision: view.revision,
        created_at_us: view.created_at.0,
        updated_at_us: view.updated_at.0,
        definition: Some(definition(view.definition, convert::value(view.input))),
        paused: view.paused_since.is_some(),
        paused_since_us: micros(view.paused_since),
        next_us: view.next.into_iter().map(|t| t.0).collect(),
        open: open.map(|(run, at)| v1::OpenScheduleRun { run: run.to_string(), slot_us: at.0 }).collect(),
        open_count: view.open_count as u32,
        waiting: view.waiting as u32,
        backfilling: view.backfilling as u32,
        firings: view.firings.into_iter().map(firing).collect(),
    }
}

impl Doors {
    async fn put_schedule(
        &self,
        request: v1::PutScheduleRequest,
    ) -> Result<v1::PutScheduleResponse, AppError> {
        let name = name(&request.name)?;
        let put = check::schedule(name, &asked(request.definition.unwrap_or_default(), request.paused))?;
        let (view, created) = self.app.put_schedule(put, request.dry_run).await?;
        Ok(v1::PutScheduleResponse { schedule: Some(schedule(view)), created })
    }

    async fn list_schedules(
        &self,
        request: v1::ListSchedulesRequest,
    ) -> Result<v1::ListSchedulesResponse, AppError> {
        let page = self.app.schedules(convert::limit(request.limit)?, given(&request.cursor)).await?;
        let head = |view| {
            let mut head = schedule(view);
            // What is not told there is not set, rather than null.
            if let Some(definition) = &mut head.definition {
                definition.input = Bytes::new();
            }
            head
        };
        Ok(v1::ListSchedulesResponse {
            schedules: page.items.into_iter().map(head).collect(),
            next_cursor: page.next_cursor.unwrap_or_default(),
        })
    }

    async fn run_schedule(
        &self,
        request: v1::RunScheduleRequest,
    ) -> Result<v1::RunScheduleResponse, AppError> {
        let name = name(&request.name)?;
        let id = given(&request.id).map(|id| word("id", id, SignalId::new)).transpose()?;
        let started = self.app.run_schedule(&name, id.as_ref().map(SignalId::as_str)).await?;
        Ok(v1::RunScheduleResponse { run: started.run.to_string(), queued: started.queued })
    }

    async fn backfill_schedule(
        &self,
        request: v1::BackfillScheduleRequest,
    ) -> Result<v1::BackfillScheduleResponse, AppError> {
        let name = name(&request.name)?;
        let (from, to) = (Timestamp(request.from_us), Timestamp(request.to_us));
        Ok(v1::BackfillScheduleResponse { slots: self.app.backfill_schedule(&name, from, to).await? })
    }

    async fn schedule_next(
        &self,
        request: v1::NextFiringsRequest,
    ) -> Result<v1::NextFiringsResponse, AppError> {
        let name = name(&request.name)?;
        let count = match request.count {
            0 => None,
            n => Some(firings_count(n).map_err(|m| invalid("count", m))?),
        };
        let next = self.app.next_firings(&name, count.unwrap_or(check::FIRINGS_DEFAULT)).await?;
        Ok(v1::NextFiringsResponse { next_us: next.into_iter().map(|t| t.0).collect() })
    }
}

#[tonic::async_trait]
impl ScheduleService for Doors {
    async fn put(&self, request: Request<v1::PutScheduleRequest>) -> Reply<v1::PutScheduleResponse> {
        self.put_schedule(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn get(&self, request: Request<v1::GetScheduleRequest>) -> Reply<v1::Schedule> {
        let name = name(&request.get_ref().name).map_err(status)?;
        self.app.schedule(&name).await.map(schedule).map(Response::new).map_err(status)
    }

    async fn list(&self, request: Request<v1::ListSchedulesRequest>) -> Reply<v1::ListSchedulesResponse> {
        self.list_schedules(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn delete(&self, request: Request<v1::DeleteScheduleRequest>) -> Reply<v1::DeleteScheduleResponse> {
        let name = name(&request.get_ref().name).map_err(status)?;
        self.app.delete_schedule(&name).await.map_err(status)?;
        Ok(Response::new(v1::DeleteScheduleResponse {}))
    }

    async fn pause(&self, request: Request<v1::PauseScheduleRequest>) -> Reply<v1::Schedule> {
        let name = name(&request.get_ref().name).map_err(status)?;
        self.app.pause_schedule(&name).await.map(schedule).map(Response::new).map_err(status)
    }

    async fn resume(&self, request: Request<v1::ResumeScheduleRequest>) -> Reply<v1::Schedule> {
        let name = name(&request.get_ref().name).map_err(status)?;
        self.app.resume_schedule(&name).await.map(schedule).map(Response::new).map_err(status)
    }

    async fn run(&self, request: Request<v1::RunScheduleRequest>) -> Reply<v1::RunScheduleResponse> {
        self.run_schedule(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn backfill(
        &self,
        request: Request<v1::BackfillScheduleRequest>,
    ) -> Reply<v1::BackfillScheduleResponse> {
        self.backfill_schedule(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn next(&self, request: Request<v1::NextFiringsRequest>) -> Reply<v1::NextFiringsResponse> {
        self.schedule_next(request.into_inner()).await.map(Response::new).map_err(status)
    }
}
