//! Home records in memory: for rehearsals and tests, where nothing else holds or waits for anything.

use super::HomeTxn;
use crate::engine::Env;
use crate::model::command::{Command, Outcome, Refusal};
use crate::model::home::Home;
use crate::model::ids::{Prefix, RunId};
use crate::model::outbox::Delivery;
use std::collections::BTreeMap;

/// Home records by id.
#[derive(Debug, Default)]
pub struct Homes(BTreeMap<RunId, (Home, Prefix)>);

impl Homes {
    /// Decides a command on a record and keeps what follows; returns its answer and what it tells others.
    pub fn apply(
        &mut self,
        id: &RunId,
        command: &Command,
        env: Env,
    ) -> (Result<Outcome, Refusal>, Vec<Delivery>) {
        let mut txn = HomeTxn::new(id, self.0.get(id).map(|(home, prefix)| (home, *prefix)), env);
        let outcome = txn.apply(command);
        let Some(decision) = txn.finish() else { return (outcome, Vec::new()) };
        match decision.home {
            Some(home) => drop(self.0.insert(id.clone(), (home, decision.prefix))),
            None => drop(self.0.remove(id)),
        }
        (outcome, decision.deliveries)
    }

    /// A record; none: nothing stands there.
    pub fn get(&self, id: &RunId) -> Option<&Home> {
        self.0.get(id).map(|(home, _)| home)
    }
}
