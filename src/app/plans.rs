//! Compiled workflows, kept by name and version. Versions never change, so what is kept stays true;
//! which version is newest is asked of the store by every start, many starts sharing one question.

use super::AppError;
use super::error::store_error;
use crate::model::document;
use crate::model::error::ErrorCode;
use crate::model::ids::WorkflowName;
use crate::model::plan::Plan;
use crate::store::{Store, StoredWorkflow};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::Instant;

/// Compiled versions kept at most; beyond it the cache begins anew.
const KEPT: usize = 4_096;

type Newest = Arc<tokio::sync::Mutex<Option<(Instant, Result<Option<u32>, AppError>)>>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Plans {
    store: Arc<dyn Store>,
    inline: bool,
    compiled: RwLock<HashMap<(WorkflowName, u32), Arc<Plan>>>,
    newest: parking_lot::Mutex<HashMap<WorkflowName, Newest>>,
}

impl Plans {
    /// `inline`: see [`super::Options::compile_inline`].
    pub(crate) fn new(store: Arc<dyn Store>, inline: bool) -> Self {
        Self { store, inline, compiled: RwLock::default(), newest: parking_lot::Mutex::default() }
    }

    /// A version at hand.
    pub(crate) fn cached(&self, name: &WorkflowName, version: u32) -> Option<Arc<Plan>> {
        self.compiled.read().get(&(name.clone(), version)).cloned()
    }

    /// A version, read and compiled if need be.
    ///
    /// # Errors
    /// `workflow_not_found`; `store_unavailable`; `internal` if a stored document does not compile (a newer
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
            AppError::with_faults(
                ErrorCode::Internal,
                format!("version {} of {} does not compile here", stored.version, stored.name),
                faults,
            )
        })?;
        let plan = Arc::new(plan);
        let mut compiled = self.compiled.write();
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        compiled.insert((stored.name.clone(), stored.version), Arc::clone(&plan));
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
            && self.cached(name, stored.version).is_none()
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
