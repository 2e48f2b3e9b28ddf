//! Many runs in one call: started, cancelled or retried. Each item is a command of its own and has an answer of its
//! own, in the order of the items; one that is refused keeps no other from being done. Nothing is atomic over items.
//!
//! To add one more: a method that maps its items to futures and hands them to [`in_order`].

use super::App;
use super::AppError;
use super::error::{no_run, refusal};
use super::runs::{ask, read, start};
use super::view::{BulkDone, BulkItem, BulkPage, RunFilter, StartRequest, Which};
use crate::model::command::Command;
use crate::model::error::{ErrorCode, Fault};
use crate::model::ids::RunId;
use crate::model::run::{RunState, RunStatus};
use futures::StreamExt as _;

/// Most items of one call.
pub const ITEMS_MAX: usize = 1_000;
/// Items of one call that are under way at once.
const AT_ONCE: usize = 64;
/// Pages of the list that one call with a filter looks at.
const PAGES_MAX: usize = 20;
/// Most runs of one page of the list.
const PAGE: usize = 500;

/// Works on a bounded number of items at once; answers in their order.
async fn in_order(items: impl Iterator<Item = impl Future<Output = BulkItem>>) -> Vec<BulkItem> {
    futures::stream::iter(items).buffered(AT_ONCE).collect().await
}

impl App {
    /// Starts runs. An item that was refused at the door is answered with what it was refused with.
    ///
    /// # Errors
    /// `invalid_request` for more than [`ITEMS_MAX`] items; nothing happened then.
    pub async fn bulk_start(
        &self,
        items: Vec<Result<StartRequest, AppError>>,
    ) -> Result<Vec<BulkItem>, AppError> {
        check_count("items", items.len())?;
        let starts = items.into_iter().map(|item| async move {
            match item {
                Ok(request) => self.start_one(request).await,
                Err(error) => BulkItem { id: None, outcome: Err(error) },
            }
        });
        Ok(in_order(starts).await)
    }

    async fn start_one(&self, request: StartRequest) -> BulkItem {
        let given = request.id.clone();
        match start(&self.inner, &request).await {
            Ok((id, answer, created)) => {
                let outcome = self.stands(&id, answer.state).await;
                BulkItem { id: Some(id), outcome: outcome.map(|status| BulkDone { status, created }) }
            }
            Err(error) => BulkItem { id: given, outcome: Err(error) },
        }
    }

    /// Cancels runs as [`App::cancel`] does. By a filter: those of the runs that match which have not ended.
    ///
    /// # Errors
    /// `invalid_request` for more than [`ITEMS_MAX`] ids, a filter that names nothing or a foreign cursor; nothing
    /// happened then.
    pub async fn bulk_cancel(
        &self,
        which: Which,
        compensate: bool,
        force: bool,
    ) -> Result<BulkPage, AppError> {
        let fits = |status: RunStatus| !status.is_terminal();
        self.bulk(which, fits, Command::Cancel { compensate, force }).await
    }

    /// Retries runs as [`App::retry`] does. By a filter: those of the runs that match which ended otherwise than
    /// completed.
    ///
    /// # Errors
    /// As [`App::bulk_cancel`].
    pub async fn bulk_retry(&self, which: Which) -> Result<BulkPage, AppError> {
        let fits = |status: RunStatus| status.is_terminal() && status != RunStatus::Completed;
        self.bulk(which, fits, Command::Retry).await
    }

    async fn bulk(
        &self,
        which: Which,
        fits: impl Fn(RunStatus) -> bool,
        command: Command,
    ) -> Result<BulkPage, AppError> {
        let (ids, next_cursor) = match which {
            Which::Ids(ids) => {
                check_count("ids", ids.len())?;
                (ids, None)
            }
            Which::Matching { filter, limit, cursor } => {
                let (ids, next) = self.find(filter, limit, cursor, fits).await?;
                (ids.into_iter().map(Ok).collect(), next)
            }
        };
        let commands = ids.into_iter().map(|id| {
            let command = command.clone();
            async move {
                match id {
                    Ok(id) => {
                        let outcome = self.control_quietly(&id, command).await;
                        let done = |status| BulkDone { status, created: false };
                        BulkItem { id: Some(id), outcome: outcome.map(done) }
                    }
                    Err(error) => BulkItem { id: None, outcome: Err(error) },
                }
            }
        });
        Ok(BulkPage { items: in_order(commands).await, next_cursor })
    }

    /// The ids of up to `limit` runs that match and fit, newest first, and where the next ones begin.
    async fn find(
        &self,
        filter: RunFilter,
        limit: u32,
        mut cursor: Option<String>,
        fits: impl Fn(RunStatus) -> bool,
    ) -> Result<(Vec<RunId>, Option<String>), AppError> {
        if filter == RunFilter::default() {
            let message = "names nothing, which would mean every run; give one of workflow, status, tags, since, \
                           until (since 1970-01-01T00:00:00Z is every run)";
            return Err(invalid("filter", message));
        }
        let limit = (limit as usize).clamp(1, ITEMS_MAX);
        let mut ids = Vec::new();
        for _ in 0..PAGES_MAX {
            let room = (limit - ids.len()).min(PAGE) as u32;
            let page = self.runs(filter.clone(), room, cursor.as_deref()).await?;
            ids.extend(page.items.into_iter().filter(|run| fits(run.status)).map(|run| run.id));
            cursor = page.next_cursor;
            if cursor.is_none() || ids.len() >= limit {
                break;
            }
        }
        Ok((ids, cursor))
    }

    /// A command that is answered with where the run is then.
    async fn control_quietly(&self, id: &RunId, command: Command) -> Result<RunStatus, AppError> {
        let answer = ask(&self.inner, id, command).await?;
        answer.outcome.map_err(|r| refusal(&r, id))?;
        self.stands(id, answer.state).await
    }

    /// Where a run is, from the state that came with an answer.
    async fn stands(&self, id: &RunId, state: Option<Box<RunState>>) -> Result<RunStatus, AppError> {
        if let Some(state) = state {
            return Ok(state.status);
        }
        let state = read(&self.inner, id).await?;
        state.map(|state| state.status).ok_or_else(|| no_run(id))
    }
}

fn invalid(path: &str, message: impl Into<String>) -> AppError {
    let message = message.into();
    let fault = Fault { path: path.to_owned(), line: None, message: message.clone() };
    AppError::with_faults(ErrorCode::InvalidRequest, format!("{path}: {message}"), vec![fault])
}

fn check_count(path: &str, count: usize) -> Result<(), AppError> {
    match count {
        0 => Err(invalid(path, "is empty")),
        1..=ITEMS_MAX => Ok(()),
        _ => Err(invalid(path, format!("has {count} items; at most {ITEMS_MAX} are taken in one call"))),
    }
}
