//! Use cases on workflows.

use super::cursor::{List, by_time};
use super::doubt;
use super::error::store_error;
use super::plans::not_found;
use super::view::{Page, Registered, RunFilter, WorkflowView};
use super::{App, AppError};
use crate::model::document::{self, Format};
use crate::model::error::ErrorCode;
use crate::model::ids::WorkflowName;
use crate::store::StoredWorkflow;
use bytes::Bytes;

fn view(stored: StoredWorkflow, newest: u32) -> WorkflowView {
    WorkflowView {
        name: stored.name,
        version: stored.version,
        newest,
        created_at: Some(stored.created_at),
        document: stored.document,
    }
}

impl App {
    /// Validates a document and, unless `dry_run`, stores it as a new version if it differs from the newest.
    /// `name`: the address it was sent to, which its own name must equal.
    ///
    /// # Errors
    /// `invalid_workflow` with every fault; `store_unavailable`.
    pub async fn register(
        &self,
        name: Option<&WorkflowName>,
        text: &[u8],
        format: Format,
        dry_run: bool,
    ) -> Result<Registered, AppError> {
        let owned = text.to_vec();
        let parsed = self.inner.plans.away(move || document::parse(&owned, format)).await?;
        let parsed = parsed.map_err(|faults| {
            let n = faults.len();
            let s = if n == 1 { "" } else { "s" };
            AppError::with_faults(
                ErrorCode::InvalidWorkflow,
                format!("the document has {n} fault{s}"),
                faults,
            )
        })?;
        if let Some(name) = name.filter(|n| **n != parsed.name) {
            return Err(AppError::new(
                ErrorCode::InvalidRequest,
                format!("the address names {name:?}, the document {:?}; they must be equal", parsed.name),
            ));
        }
        if dry_run {
            let newest = self.inner.store.workflow(&parsed.name, None).await.map_err(store_error)?;
            let same = newest.as_ref().filter(|n| n.document == parsed.canonical);
            let version =
                newest.as_ref().map_or(1, |n| if same.is_some() { n.version } else { n.version + 1 });
            let created = same.is_none();
            let workflow = WorkflowView {
                name: parsed.name,
                version,
                newest: version,
                created_at: same.map(|s| s.created_at),
                document: parsed.canonical,
            };
            return Ok(Registered { workflow, created });
        }
        let put = self.inner.store.put_workflow(&parsed.name, &parsed.canonical);
        let again = "a repeat of the same call is safe: an equal document is the same version";
        let (stored, created) = tokio::time::timeout(self.inner.options.call_timeout.to_std(), put)
            .await
            .map_err(|_| doubt::unknown(again))?
            .map_err(|e| doubt::of_write(e, again))?;
        let newest = stored.version;
        Ok(Registered { workflow: view(stored, newest), created })
    }

    /// Workflows without their documents, the one with the newest version first.
    pub async fn workflows(&self, limit: u32, cursor: Option<&str>) -> Result<Page<WorkflowView>, AppError> {
        let limit = limit.clamp(1, 500);
        let read = |p: &str| {
            let (created, name) = by_time(p)?;
            Some((created, WorkflowName::new(name).ok()?))
        };
        let before = cursor.map(|c| List::Workflows.position(c, read)).transpose()?;
        // One more than is told: whether it is there says whether there is a next page.
        let mut found = self.inner.store.workflows(before, limit + 1).await.map_err(store_error)?;
        let more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let last = found.last().filter(|_| more);
        let next_cursor = last.map(|w| List::Workflows.cursor(&format!("{}.{}", w.created_at.0, w.name)));
        let items = found
            .into_iter()
            .map(|listed| WorkflowView {
                name: listed.name,
                version: listed.version,
                newest: listed.version,
                created_at: Some(listed.created_at),
                document: Bytes::new(),
            })
            .collect();
        Ok(Page { items, next_cursor })
    }

    /// One workflow: a version, or the newest.
    pub async fn workflow(
        &self,
        name: &WorkflowName,
        version: Option<u32>,
    ) -> Result<WorkflowView, AppError> {
        let missing = || not_found(name, version);
        let stored =
            self.inner.store.workflow(name, version).await.map_err(store_error)?.ok_or_else(missing)?;
        let newest = match version {
            None => stored.version,
            Some(_) => {
                self.inner.store.workflow(name, None).await.map_err(store_error)?.ok_or_else(missing)?.version
            }
        };
        Ok(view(stored, newest))
    }

    /// Removes a workflow with its versions; refused while a run of it is kept, for its plan is needed to show it.
    pub async fn delete_workflow(&self, name: &WorkflowName) -> Result<(), AppError> {
        let filter = RunFilter { workflow: Some(name.clone()), ..RunFilter::default() };
        let mut cursor: Option<String> = None;
        loop {
            let page = self.runs(filter.clone(), 1, cursor.as_deref()).await?;
            if let Some(run) = page.items.first() {
                return Err(AppError::new(
                    ErrorCode::WorkflowInUse,
                    format!(
                        "run {:?} ({}) is of workflow {name:?}; delete its runs first",
                        run.id,
                        run.status.name()
                    ),
                ));
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        let again = "a repeat of the same call is safe: if it was done, there is no such workflow";
        if !self.inner.store.remove_workflow(name).await.map_err(|e| doubt::of_write(e, again))? {
            return Err(not_found(name, None));
        }
        self.inner.plans.forget(name);
        Ok(())
    }
}
