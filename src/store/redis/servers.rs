//! Whom a call goes to: the one Redis there is, or the node of a cluster that has its slot.
//!
//! Invariants
//! - All keys of a call are in one slot, or there is one Redis ([`Servers::spans`]).
//! - A call is repeated only if it was provably not carried out: a script that was forgotten, a slot that has moved.
//!
//! To add a way of asking: here, in terms of [`Servers::together`].

use super::cluster::Cluster;
use super::keys::{self, Keys};
use super::link::{Durability, Endpoint, Lane, Link, LinkReport, Value};
use super::reply;
use super::scripts::{Call, Script};
use crate::model::ids::Partition;
use crate::store::{Result, StoreError};
use redis::Cmd;
use std::sync::Arc;

/// How long a replica may take to confirm a commit, in ms; commits behind it wait as long.
const REPLICA_MS: u64 = 1_000;

/// Whom calls go to.
#[derive(Debug)]
pub(super) enum Servers {
    One(Link),
    Cluster(Arc<Cluster>),
}

/// Where the keys of a call are.
#[derive(Debug, Clone, Copy)]
pub(super) enum At {
    Partition(Partition),
    /// What belongs to no partition: workflows.
    Workflows,
    /// The record of the store itself.
    Meta,
}

/// One Redis of all that hold parts of the store.
#[derive(Debug, Clone)]
pub(super) struct Node(Option<Endpoint>);

impl At {
    /// The partition, or the first of the store.
    pub(super) fn partition(self) -> Partition {
        match self {
            Self::Partition(partition) => partition,
            Self::Workflows | Self::Meta => Partition(0),
        }
    }
}

impl Servers {
    /// Whether one call may be about several partitions.
    pub(super) fn spans(&self) -> bool {
        matches!(self, Self::One(_))
    }

    /// How its keys are spelled.
    pub(super) fn keys(&self) -> Keys {
        match self {
            Self::One(_) => Keys::ALONE,
            Self::Cluster(_) => Keys::CLUSTER,
        }
    }

    /// Runs a script; loads it again if Redis has forgotten it.
    pub(super) async fn call(&self, at: At, call: &Call) -> Result<Value> {
        self.script(at, call, &[]).await.map(|(value, _)| value)
    }

    /// Runs a script that commits: with durability `replicated` it is answered when a replica has it.
    pub(super) async fn commit(
        &self,
        partition: Partition,
        call: &Call,
        durability: Durability,
    ) -> Result<Value> {
        let at = At::Partition(partition);
        if durability == Durability::Local {
            return self.call(at, call).await;
        }
        let [probe, wait] = self.replica(partition);
        let (value, confirmed) = self.script(at, call, &[&probe, &wait]).await?;
        is_confirmed(confirmed)?;
        Ok(value)
    }

    /// Sends a command that reads, and answers when a replica has whatever it could see.
    pub(super) async fn confirmed(&self, partition: Partition, cmd: &Cmd) -> Result<Value> {
        let [probe, wait] = self.replica(partition);
        let commands = [cmd, &probe, &wait];
        let values = self.together(At::Partition(partition), Lane::Confirming, &commands).await?;
        let mut values = values.into_iter();
        let value = reply::checked(values.next().unwrap_or(Value::Nil), true)?;
        is_confirmed(values.next_back())?;
        Ok(value)
    }

    /// What waits for a replica. WAIT is about the writes of its own connection. A batch that is sent again on another
    /// one, and is answered from memory, has written nothing there: so that there is something to wait for, we write.
    fn replica(&self, partition: Partition) -> [Cmd; 2] {
        let mut probe = redis::cmd("SET");
        probe.arg(self.keys().probe(partition)).arg(1).arg("EX").arg(60);
        let mut wait = redis::cmd("WAIT");
        wait.arg(1).arg(REPLICA_MS);
        [probe, wait]
    }

    /// Runs a script, with commands behind it. Returns its value and that of the last of them.
    async fn script(&self, at: At, call: &Call, behind: &[&Cmd]) -> Result<(Value, Option<Value>)> {
        let mut commands = vec![&call.cmd];
        commands.extend(behind);
        let lane = if behind.is_empty() { Lane::Common } else { Lane::Confirming };
        let mut loaded = false;
        loop {
            let mut values = self.together(at, lane, &commands).await?.into_iter();
            match values.next().unwrap_or(Value::Nil) {
                Value::Error(text) if text.starts_with("NOSCRIPT") && !loaded => {
                    loaded = true;
                    self.command(at, &load(call.script)).await?;
                }
                value => return Ok((reply::checked(value, true)?, values.next_back())),
            }
        }
    }

    /// Sends one command.
    pub(super) async fn command(&self, at: At, cmd: &Cmd) -> Result<Value> {
        let value = self.together(at, Lane::Common, &[cmd]).await?.pop().unwrap_or(Value::Nil);
        reply::checked(value, true)
    }

    /// Sends commands in one piece. Returns what each answered, errors among them.
    pub(super) async fn together(&self, at: At, lane: Lane, commands: &[&Cmd]) -> Result<Vec<Value>> {
        match self {
            Self::One(link) => link.together(lane, commands).await,
            Self::Cluster(cluster) => {
                let slot = match at {
                    At::Partition(partition) => Keys::CLUSTER.slot(partition),
                    At::Workflows => keys::slot(keys::WORKFLOW_NAMES.as_bytes()),
                    At::Meta => keys::slot(keys::META.as_bytes()),
                };
                cluster.together(slot, lane, commands).await
            }
        }
    }

    /// Every Redis that holds a part of the store, and a number that changes when parts move.
    pub(super) fn nodes(&self) -> (Vec<Node>, u64) {
        match self {
            Self::One(_) => (vec![Node(None)], 0),
            Self::Cluster(cluster) => {
                let (nodes, turn) = cluster.nodes();
                (nodes.into_iter().map(|node| Node(Some(node))).collect(), turn)
            }
        }
    }

    /// Sends a command to one of [`Self::nodes`], whatever keys it holds.
    pub(super) async fn command_on(&self, node: &Node, cmd: &Cmd) -> Result<Value> {
        let values = match (self, &node.0) {
            (Self::Cluster(cluster), Some(node)) => cluster.together_on(node, &[cmd]).await?,
            (Self::Cluster(_), None) | (Self::One(_), _) => {
                self.together(At::Meta, Lane::Common, &[cmd]).await?
            }
        };
        reply::checked(values.into_iter().next().unwrap_or(Value::Nil), true)
    }

    /// How the links are doing, each with the name of its Redis if there are several.
    pub(super) fn reports(&self) -> Vec<(String, LinkReport)> {
        match self {
            Self::One(link) => vec![(String::new(), link.report())],
            Self::Cluster(cluster) => cluster.reports(),
        }
    }
}

/// Reads the answer to WAIT.
fn is_confirmed(confirmed: Option<Value>) -> Result<()> {
    let message = match confirmed {
        Some(Value::Int(n)) if n >= 1 => return Ok(()),
        Some(Value::Error(text)) => format!("Redis cannot tell whether a replica has it: {text}"),
        _ => format!("no replica confirmed a commit within {REPLICA_MS} ms"),
    };
    Err(StoreError::Unavailable { message, sent: true })
}

/// The command that loads a script.
pub(super) fn load(script: Script) -> Cmd {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(script.source());
    load
}
