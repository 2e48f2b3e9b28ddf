//! Sessions of workers: each in one partition, with its lease on the clock of that.
//!
//! Invariant: a session is changed only by who names its epoch.

use super::link::Value;
use super::scripts::{Call, Script};
use super::servers::At;
use super::{HOME, RedisStore, reply};
use crate::model::ids::{Nonce, Partition, SessionId};
use crate::model::time::{LeaseTime, Span};
use crate::store::{LEASE_STEP, Result, SESSION_KEPT, SessionRecord, StoreError, session_partition};
use futures::future::{join_all, try_join_all};
use std::collections::BTreeMap;

/// Sessions renewed by one call.
const RENEW_MAX: usize = 1_000;

impl RedisStore {
    /// See [`Store::put_session`](crate::store::Store::put_session).
    pub(super) async fn session_put(
        &self,
        id: &SessionId,
        record: &SessionRecord,
        expect: Option<u32>,
        lease: Span,
    ) -> Result<bool> {
        let Some(partition) = session_partition(id, self.layout) else { return Ok(false) };
        let mut call = Call::new(Script::SessionPut, 3);
        call.arg(self.keys.clock(partition))
            .arg(self.keys.sessions(partition))
            .arg(self.keys.leases(partition));
        call.arg(id.as_str());
        match expect {
            Some(epoch) => call.arg(epoch),
            None => call.arg(""),
        };
        let details = [&record.owner.0[..], record.label.as_bytes()].concat();
        call.arg(record.epoch).arg(details).arg(lease.0).arg(SESSION_KEPT.0).arg(LEASE_STEP.0);
        Ok(reply::number(&self.servers.call(At::Partition(partition), &call).await?, "a session")? == 1)
    }

    /// See [`Store::renew_sessions`](crate::store::Store::renew_sessions).
    pub(super) async fn session_renew(
        &self,
        sessions: &[(SessionId, u32)],
        lease: Span,
    ) -> Result<Vec<bool>> {
        let places: Vec<Vec<usize>> = if self.servers.spans() {
            vec![(0..sessions.len()).collect()]
        } else {
            self.by_partition(sessions.iter().map(|(id, _)| id)).into_values().collect()
        };
        let renewed = places.iter().flat_map(|places| places.chunks(RENEW_MAX)).map(|places| async move {
            let some: Vec<_> = places.iter().map(|place| sessions[*place].clone()).collect();
            Ok::<_, StoreError>((places, self.renew_some(&some, lease).await?))
        });
        let mut marks = vec![false; sessions.len()];
        for renewed in join_all(renewed).await {
            let (places, some) = renewed?;
            for (place, mark) in places.iter().zip(some) {
                marks[*place] = mark;
            }
        }
        Ok(marks)
    }

    /// See [`Store::sessions`](crate::store::Store::sessions).
    pub(super) async fn session_read(&self, ids: &[SessionId]) -> Result<Vec<Option<SessionRecord>>> {
        let by_partition = self.by_partition(ids.iter());
        let read = by_partition.iter().map(|(partition, places)| async move {
            let wanted: Vec<_> = places.iter().map(|at| &ids[*at]).collect();
            self.sessions_of(*partition, &wanted).await
        });
        let read = try_join_all(read).await?;
        let mut found = vec![None; ids.len()];
        for (places, sessions) in by_partition.values().zip(read) {
            for (at, session) in places.iter().zip(sessions) {
                found[*at] = session;
            }
        }
        Ok(found)
    }

    /// See [`Store::remove_session`](crate::store::Store::remove_session).
    pub(super) async fn session_remove(&self, id: &SessionId, epoch: u32) -> Result<()> {
        let Some(partition) = session_partition(id, self.layout) else { return Ok(()) };
        let mut call = Call::new(Script::SessionRemove, 2);
        call.arg(self.keys.sessions(partition)).arg(self.keys.leases(partition)).arg(id.as_str()).arg(epoch);
        self.servers.call(At::Partition(partition), &call).await?;
        Ok(())
    }

    /// One call for up to [`RENEW_MAX`] sessions.
    async fn renew_some(&self, sessions: &[(SessionId, u32)], lease: Span) -> Result<Vec<bool>> {
        const WHAT: &str = "sessions renewed";
        let by_partition = self.by_partition(sessions.iter().map(|(id, _)| id));
        let mut renewed = vec![false; sessions.len()];
        if by_partition.is_empty() {
            return Ok(renewed);
        }
        let mut call = Call::sized(
            Script::SessionRenew,
            2 * by_partition.len(),
            sessions.len() + 64,
            48 * sessions.len(),
        );
        for partition in by_partition.keys() {
            call.arg(self.keys.clock(*partition)).arg(self.keys.leases(*partition));
        }
        call.arg(lease.0).arg(SESSION_KEPT.0).arg(LEASE_STEP.0);
        for places in by_partition.values() {
            call.arg(places.len());
            for (id, epoch) in places.iter().filter_map(|at| sessions.get(*at)) {
                call.arg(format!("{id} {epoch}"));
            }
        }
        let at = At::Partition(by_partition.keys().next().copied().unwrap_or(HOME));
        let marks = reply::bytes(self.servers.call(at, &call).await?, WHAT)?.unwrap_or_default();
        let places = by_partition.into_values().flatten();
        for (at, mark) in places.zip(marks) {
            if let Some(renewed) = renewed.get_mut(at) {
                *renewed = mark == b'1';
            }
        }
        Ok(renewed)
    }

    /// Where the sessions of each partition stand in a list; those of none are left out.
    fn by_partition<'s>(&self, ids: impl Iterator<Item = &'s SessionId>) -> BTreeMap<Partition, Vec<usize>> {
        let mut by_partition = BTreeMap::<Partition, Vec<usize>>::new();
        for (at, id) in ids.enumerate() {
            if let Some(partition) = session_partition(id, self.layout) {
                by_partition.entry(partition).or_default().push(at);
            }
        }
        by_partition
    }

    async fn sessions_of(
        &self,
        partition: Partition,
        ids: &[&SessionId],
    ) -> Result<Vec<Option<SessionRecord>>> {
        const WHAT: &str = "sessions";
        let mut call = Call::new(Script::SessionRead, 3);
        call.arg(self.keys.clock(partition))
            .arg(self.keys.sessions(partition))
            .arg(self.keys.leases(partition));
        call.arg(LEASE_STEP.0).arg(SESSION_KEPT.0);
        for id in ids {
            call.arg(id.as_str());
        }
        let at = At::Partition(partition);
        let mut items = reply::array(self.servers.call(at, &call).await?, WHAT)?.into_iter();
        let lease_now = items.next().ok_or_else(|| reply::unexpected(WHAT))?;
        let lease_now = LeaseTime(reply::number(&lease_now, WHAT)?);
        items.map(|fields| read_session(fields, lease_now)).collect()
    }
}

/// `{ value, deadline }`, empty if there is no session; the value is `"EPOCH " ‖ owner 16 B ‖ label`.
fn read_session(fields: Value, lease_now: LeaseTime) -> Result<Option<SessionRecord>> {
    const WHAT: &str = "a session";
    let fields = reply::array(fields, WHAT)?;
    if fields.is_empty() {
        return Ok(None);
    }
    let [value, deadline] = <[Value; 2]>::try_from(fields).map_err(|_| reply::unexpected(WHAT))?;
    let value = reply::bytes(value, WHAT)?.unwrap_or_default();
    let read = || {
        let cut = value.iter().position(|b| *b == b' ')?;
        let (epoch, rest) = (value.get(..cut)?, value.get(cut + 1..)?);
        let (owner, label) = rest.split_first_chunk::<16>()?;
        let epoch = std::str::from_utf8(epoch).ok()?.parse().ok()?;
        Some((epoch, Nonce(*owner), String::from_utf8(label.to_vec()).ok()?))
    };
    let (epoch, owner, label) = read().ok_or_else(|| reply::unexpected(WHAT))?;
    let deadline = LeaseTime(reply::number(&deadline, WHAT)?);
    Ok(Some(SessionRecord { epoch, label, owner, deadline, lease_now }))
}
