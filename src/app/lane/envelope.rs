//! What a lane is asked, and where the answer goes.

use crate::app::AppError;
use crate::dispatch::dispatcher::Party;
use crate::dispatch::{Reservation, SessionKey};
use crate::model::command::{Command, Outcome, Refusal};
use crate::model::home::Home;
use crate::model::ids::{Partition, RunId};
use crate::model::plan::Plan;
use crate::model::run::RunState;
use crate::store::Taken;
use std::sync::Arc;
use tokio::sync::oneshot;

/// One command on its way to one run.
#[derive(Debug)]
pub(crate) struct Envelope {
    /// Of the run.
    pub(crate) partition: Partition,
    /// The run.
    pub(crate) run: RunId,
    /// What is asked.
    pub(crate) ask: Ask,
    /// Where the answer goes.
    pub(crate) reply: Reply,
}

impl Envelope {
    /// Whether it asks for a new run.
    pub(crate) fn is_start(&self) -> bool {
        matches!(self.ask, Ask::Command(Command::Start(_)))
    }

    /// Whether it asks for a new run and nobody waits for the answer any more: the caller was told that it failed.
    pub(crate) fn is_abandoned_start(&self) -> bool {
        let gone = match &self.reply {
            Reply::Once(tx) => tx.is_closed(),
            Reply::Brief(tx) => tx.is_closed(),
            Reply::None | Reply::Result { .. } => false,
        };
        gone && self.is_start()
    }
}

/// What is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    /// This.
    Command(Command),
    /// The run's wake-up is due; the lane reads the sessions it needs and makes it a command.
    Wake,
    /// Lease a taken queue entry to a worker that has credit set aside.
    Lease {
        /// The entry, in the claimed set.
        taken: Taken,
        /// The credit.
        reservation: Reservation,
        /// Whose.
        party: Party,
    },
}

/// Where the answer goes.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Nowhere.
    None,
    /// To a caller that waits, with the record as it is then.
    Once(oneshot::Sender<Result<Answer, AppError>>),
    /// To a caller that waits and wants to know how it was taken, nothing more: spares a copy of the run.
    Brief(oneshot::Sender<Result<Taking, AppError>>),
    /// To a worker's stream, as the acknowledgement of a result.
    Result {
        /// The stream.
        session: SessionKey,
        /// The token, as the worker wrote it.
        token: String,
    },
}

/// How a command was taken: confirmed by the store.
pub(crate) type Taking = Result<Outcome, Refusal>;

/// An answer to a caller that waits.
#[derive(Debug)]
pub(crate) struct Answer {
    /// How the command was taken.
    pub(crate) outcome: Taking,
    /// The run after it, if there is one. There is one behind every command that has changed a run and left it there.
    pub(crate) state: Option<Box<RunState>>,
    /// The plan of that run.
    pub(crate) plan: Option<Arc<Plan>>,
    /// The home record after it, if that is what it is and there is one.
    pub(crate) home: Option<Box<Home>>,
}
