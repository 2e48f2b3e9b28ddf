//! The one error of all use cases.

use crate::model::command::Refusal;
use crate::model::error::{ErrorCode, Fault};
use crate::model::ids::RunId;
use crate::model::time::Span;
use crate::store::StoreError;

/// Why a use case did not do what was asked. Doors map it by the table of [`ErrorCode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct AppError {
    /// The stable code.
    pub code: ErrorCode,
    /// What, where and how to mend it, for this case.
    pub message: String,
    /// Every fault, where there can be many.
    pub faults: Vec<Fault>,
    /// When it is worth trying again.
    pub retry_after: Option<Span>,
}

impl AppError {
    /// An error with a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), faults: Vec::new(), retry_after: None }
    }

    /// An error that lists faults.
    pub fn with_faults(code: ErrorCode, message: impl Into<String>, faults: Vec<Fault>) -> Self {
        Self { code, message: message.into(), faults, retry_after: None }
    }
}

impl AppError {
    /// The same error, worth trying again after `after`.
    #[must_use]
    pub fn retry_after(mut self, after: Span) -> Self {
        self.retry_after = Some(after);
        self
    }
}

/// What a failing store means to a caller.
pub(crate) fn store_error(error: StoreError) -> AppError {
    match &error {
        StoreError::Unavailable { .. }
        | StoreError::Unfit(_)
        | StoreError::Full(_)
        | StoreError::Forgotten => {
            AppError::new(ErrorCode::StoreUnavailable, error.to_string()).retry_after(Span::secs(1))
        }
        // While servers are replaced one after the other, another one may know it.
        StoreError::Unreadable(_) => {
            AppError::new(ErrorCode::StoreUnreadable, error.to_string()).retry_after(Span::secs(10))
        }
    }
}

/// The server is going down.
pub(crate) fn stopping() -> AppError {
    AppError::new(ErrorCode::Overloaded, "this server is stopping; ask another one")
        .retry_after(Span::secs(1))
}

/// The store did not answer in time what only reads, or was not asked yet; nothing was done. (Of what may have been
/// done, `doubt` tells.)
pub(crate) fn too_slow() -> AppError {
    AppError::new(ErrorCode::StoreUnavailable, "the store did not answer in time; nothing was done")
        .retry_after(Span::secs(1))
}

/// The store has taken nothing for a while; nothing of this start was done.
pub(crate) fn strained(since: std::time::Duration) -> AppError {
    let message = format!(
        "the store has taken nothing for {} s; this run was not started: start it again when the store is back",
        since.as_secs()
    );
    AppError::new(ErrorCode::StoreUnavailable, message).retry_after(Span::secs(1))
}

/// Too many starts wait; nothing of this one was done.
pub(crate) fn crowded() -> AppError {
    let message =
        "more runs are being started than can be taken now; this one was not started: try again, slower";
    AppError::new(ErrorCode::Overloaded, message).retry_after(Span::secs(1))
}

/// Not one of our tokens.
pub(crate) fn unknown_token() -> AppError {
    AppError::new(
        ErrorCode::UnknownToken,
        "this token is none that Downbeat gave out, or of a run that is gone",
    )
}

/// No such run.
pub(crate) fn no_run(id: &RunId) -> AppError {
    AppError::new(ErrorCode::RunNotFound, format!("there is no run {id:?}"))
}

/// What is wrong with the definition of a schedule.
pub(crate) fn invalid_schedule(faults: Vec<Fault>) -> AppError {
    let n = faults.len();
    let s = if n == 1 { "" } else { "s" };
    AppError::with_faults(ErrorCode::InvalidSchedule, format!("the schedule has {n} fault{s}"), faults)
}

/// What a refused command means to a caller.
pub(crate) fn refusal(refusal: &Refusal, id: &RunId) -> AppError {
    let code = match refusal {
        Refusal::NoRun => return no_run(id),
        Refusal::IdTaken => ErrorCode::RunIdTaken,
        Refusal::Stale => ErrorCode::StaleToken,
        Refusal::Unknown => return unknown_token(),
        Refusal::Ended(_) | Refusal::Ending(_) => ErrorCode::RunEnded,
        Refusal::NothingToRetry => ErrorCode::NothingToRetry,
        Refusal::TaskEnded(_)
        | Refusal::TaskRunning
        | Refusal::IterationPassed
        | Refusal::AroundSkipped(_) => ErrorCode::TaskNotOpen,
        Refusal::NoTask => ErrorCode::TaskNotFound,
        Refusal::TooManySignals(_) => ErrorCode::TooLarge,
        Refusal::NotEnded(_) | Refusal::Telling => ErrorCode::RunNotEnded,
        Refusal::TooLate => ErrorCode::DeadlineExceeded,
        Refusal::Full => ErrorCode::Overloaded,
        // Runs do not say this; `schedules` has the words for it.
        Refusal::Schedule(_) => ErrorCode::Internal,
    };
    AppError::new(code, format!("run {id:?}: {refusal}"))
}
