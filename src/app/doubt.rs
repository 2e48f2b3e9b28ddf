//! Calls whose outcome is not known: they were handed to the store, and there was no answer in time. The caller is told
//! so by a code of its own, and how to repeat the call so that it is done once at most.
//!
//! Invariant: every other error of a call that writes means that nothing was done.
//!
//! To add a command: its line in [`Doubt::of`], and in `docs/errors/outcome_unknown.md`.

use super::AppError;
use super::error::store_error;
use crate::model::command::{Command, HomeCommand};
use crate::model::error::ErrorCode;
use crate::model::ids::RunId;
use crate::model::schedule::ScheduleCommand;
use crate::model::time::Span;
use crate::store::StoreError;

/// How a call is repeated safely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// As it was.
    Same,
    /// With the id of the run, which is then started once at most.
    Start,
    /// As it was: it has an id, and is accepted once.
    Named,
    /// With an id it would be; as it is, after a look.
    Unnamed,
    /// As it was: the exact result is accepted again.
    Result,
    /// After a look at what it was to change.
    Look,
}

impl Doubt {
    /// Of a command.
    pub(crate) fn of(command: &Command) -> Self {
        match command {
            Command::Start(_) => Self::Start,
            Command::Signal { id: Some(_), .. } => Self::Named,
            Command::Signal { id: None, .. }
            | Command::Home(HomeCommand::Schedule(ScheduleCommand::RunNow { .. })) => Self::Unnamed,
            Command::Complete { .. }
            | Command::Fail { .. }
            | Command::Release { .. }
            | Command::Heartbeat { .. } => Self::Result,
            Command::Retry | Command::Rerun { .. } | Command::Act { .. } => Self::Look,
            // Ours, or no different when it is done twice.
            _ => Self::Same,
        }
    }

    /// What the caller is told. `run`: what it was about, a run or a record of ours.
    pub(crate) fn told(self, run: &RunId) -> AppError {
        let how = match self {
            Self::Same => "a repeat of the same call is safe".to_owned(),
            Self::Start => {
                format!("repeat it with the id {:?}: it is then started at most once", run.as_str())
            }
            Self::Named => {
                "a repeat of the same call, with the same id, is safe: it is accepted once".to_owned()
            }
            Self::Unnamed => {
                "look whether it was done before you repeat it; with an id it would be done at most once"
                    .to_owned()
            }
            Self::Result => "a repeat of the same call is safe: an exact repeat is accepted again".to_owned(),
            Self::Look => "look whether it was done before you repeat it".to_owned(),
        };
        unknown(&how)
    }
}

/// What a verb that writes has failed with: whether it was done may not be known. `again`: how it is repeated.
pub(crate) fn of_write(error: StoreError, again: &str) -> AppError {
    if error.was_sent() { unknown(again) } else { store_error(error) }
}

/// It was not done in time, or not seen to be. `how`: how it is repeated.
pub(crate) fn unknown(how: &str) -> AppError {
    let message = format!("the store did not answer in time, and this may have taken effect: {how}");
    AppError::new(ErrorCode::OutcomeUnknown, message).retry_after(Span::secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_done_has_a_code_of_its_own_and_says_how_to_repeat_it() {
        let sent = |sent| StoreError::Unavailable { message: "m".into(), sent };
        assert_eq!(of_write(sent(true), "a repeat is safe").code, ErrorCode::OutcomeUnknown);
        assert_eq!(of_write(sent(false), "a repeat is safe").code, ErrorCode::StoreUnavailable);
        assert_eq!(of_write(StoreError::Full("m".into()), "").code, ErrorCode::StoreUnavailable);

        let signal = |id| Doubt::of(&Command::Signal { name: "s".into(), id, payload: None });
        assert_eq!((signal(None), signal(Some("x".into()))), (Doubt::Unnamed, Doubt::Named));
        assert_eq!(Doubt::of(&Command::Pause), Doubt::Same);
        assert_eq!(Doubt::of(&Command::Retry), Doubt::Look);
        let error = Doubt::Start.told(&RunId::new("r-1").unwrap());
        assert!(error.message.contains("\"r-1\""), "{error}");
        assert_eq!(error.retry_after, Some(Span::secs(1)));
    }
}
