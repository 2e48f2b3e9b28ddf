//! Compiled workflows, kept by name and version. Which version is newest is asked of the store by every start, many
//! starts sharing one question.
//!
//! A version never changes, unless the store loses its tail: then it may be gone, and its number be given to another
//! document. So nothing rests on what is kept here alone: a new run is committed only while the store holds the version
//! ([`RunWrite::of`]), and a run that is there is worked on by the document it was started with or not at all
//! ([`Plans::of`]).
//!
//! [`RunWrite::of`]: crate::model::commit::RunWrite::of

use super::AppError;
use super::error::store_error;
use crate::model::commit::VersionOf;
use crate::model::document;
use crate::model::error::ErrorCode;
use crate::model::ids::WorkflowName;
use crate::model::plan::Plan;
use crate::model::run::RunState;
use crate::model::time::Timestamp;
use crate::store::{Store, StoreError, StoredWorkflow};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::Instant;

/// Compiled versions kept at most; beyond it the cache begins anew.
const KEPT: usize = 4_096;

/// A version, and when it was registered.
type Compiled = (Arc<Plan>, Timestamp);
type Newest = Arc<tokio::sync::Mutex<Option<(Instant, Result<Option<u32>, AppError>)>>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Plans {
    store: Arc<dyn Store>,
    inline: bool,
    compiled: RwLock<HashMap<(WorkflowName, u32), Compiled>>,
    newest: parking_lot::Mutex<HashMap<WorkflowName, Newest>>,
}

impl Plans {
    /// `inline`: see [`super::Options::compile_inline`].
    pub(crate) fn new(store: Arc<dyn Store>, inline: bool) -> Self {
        Self { store, inline, compiled: RwLock::default(), newest: parking_lot::Mutex::default() }
    }

    /// A version at hand.
    pub(crate) fn cached(&self, name: &WorkflowName, version: u32) -> Option<Arc<Plan>> {
        self.compiled.read().get(&(name.clone(), version)).map(|(plan, _)| Arc::clone(plan))
    }

    /// A version at hand to begin a run of, and which that is.
    pub(crate) fn to_begin(&self, workflow: &WorkflowName, version: u32) -> Option<(Arc<Plan>, VersionOf)> {
        let workflow = workflow.clone();
        let (plan, created_at) = self.compiled.read().get(&(workflow.clone(), version)).cloned()?;
        Some((plan, VersionOf { workflow, version, created_at }))
    }

    /// The plan of a run.
    ///
    /// # Errors
    /// As [`Plans::get`]; `workflow_not_found` also if the version is another document than the run was started with.
    pub(crate) async fn of(&self, run: &RunState) -> Result<Arc<Plan>, AppError> {
        let is_its = |plan: &Arc<Plan>| run.document == 0 || plan.digest == run.document;
        if let Some(plan) = self.cached(&run.workflow, run.version).filter(is_its) {
            return Ok(plan);
        }
        self.drop_version(&run.workflow, run.version);
        match self.get(&run.workflow, run.version).await {
            Ok(plan) if is_its(&plan) => return Ok(plan),
            Err(error) if error.code != ErrorCode::WorkflowNotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        let (name, version) = (&run.workflow, run.version);
        Err(AppError::new(
            ErrorCode::WorkflowNotFound,
            format!(
                "run {:?} is of version {version} of workflow {name:?}, and the store has lost the document of it; the \
                 run goes on when that document is registered under this number again",
                run.id
            ),
        ))
    }

    /// The store does not hold this version any more, or holds another under its number.
    pub(crate) fn drop_version(&self, name: &WorkflowName, version: u32) {
        self.compiled.write().remove(&(name.clone(), version));
    }

    /// A version, read and compiled if need be.
    ///
    /// # Errors
    /// `workflow_not_found`; `store_unavailable`; `store_unreadable` if a stored document does not compile (a newer
    /// Downbeat wrote it).
    pub(crate) async fn get(&self, name: &WorkflowName, version: u32) -> Result<Arc<Plan>, AppError> {
        if let Some(plan) = self.cached(name, version) {
            return Ok(plan);
        }
        let stored = self
            .store
            .workflow(name, Some(version))
            .await
            .map_err(store_error)?
            .ok_or_else(|| not_found(name, Some(version)))?;
        self.compile(&stored).await
    }

    /// Does work that takes milliseconds where it holds up nobody.
    pub(crate) async fn away<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AppError> {
        if self.inline {
            return Ok(work());
        }
        tokio::task::spawn_blocking(work).await.map_err(|e| AppError::new(ErrorCode::Internal, e.to_string()))
    }

    /// Compiles and keeps a stored version.
    pub(crate) async fn compile(&self, stored: &StoredWorkflow) -> Result<Arc<Plan>, AppError> {
        let text = stored.document.clone();
        let plan = self.away(move || document::compile(&text)).await?.map_err(|faults| {
            let what = format!("version {} of {} does not compile here", stored.version, stored.name);
            AppError { faults, ..store_error(StoreError::Unreadable(what)) }
        })?;
        let plan = Arc::new(plan);
        let mut compiled = self.compiled.write();
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        compiled.insert((stored.name.clone(), stored.version), (Arc::clone(&plan), stored.created_at));
        Ok(plan)
    }

    /// The newest version as the store says after this call began. Calls that overlap share the answer.
    pub(crate) async fn newest(&self, name: &WorkflowName) -> Result<u32, AppError> {
        let arrived = Instant::now();
        let cell = {
            let mut all = self.newest.lock();
            if all.len() >= KEPT {
                all.clear();
            }
            Arc::clone(all.entry(name.clone()).or_default())
        };
        let mut cell = cell.lock().await;
        if let Some((asked, version)) = &*cell
            && *asked > arrived
        {
            return version.clone()?.ok_or_else(|| not_found(name, None));
        }
        let asked = Instant::now();
        let stored = match self.store.workflow(name, None).await.map_err(store_error) {
            Ok(stored) => stored,
            Err(error) => {
                // Whoever waits has waited as long as this took: asking again for each would take as long each time.
                *cell = Some((Instant::now(), Err(error.clone())));
                return Err(error);
            }
        };
        let version = stored.as_ref().map(|s| s.version);
        *cell = Some((asked, Ok(version)));
        if let Some(stored) = &stored
            && self.to_begin(name, stored.version).is_none_or(|(_, of)| of.created_at != stored.created_at)
        {
            self.compile(stored).await?;
        }
        version.ok_or_else(|| not_found(name, None))
    }

    /// Forgets everything.
    pub(crate) fn forget_all(&self) {
        self.compiled.write().clear();
        self.newest.lock().clear();
    }

    /// Forgets a removed workflow.
    pub(crate) fn forget(&self, name: &WorkflowName) {
        self.compiled.write().retain(|(n, _), _| n != name);
        self.newest.lock().remove(name);
    }
}

/// There is no such workflow, or no such version of it.
pub(crate) fn not_found(name: &WorkflowName, version: Option<u32>) -> AppError {
    let what =
        version.map_or_else(|| format!("workflow {name:?}"), |v| format!("version {v} of workflow {name:?}"));
    AppError::new(ErrorCode::WorkflowNotFound, format!("there is no {what}; register it first"))
}
