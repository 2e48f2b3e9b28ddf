//! An ordered map on disk: fjall, with the spaces that are hot and small mirrored in memory.
//!
//! ```text
//! hot      queues, claims, wake-ups, sessions, clocks, lanes, heads  read from the mirror only, written to both
//! derived  orders and counts of the hot                              in the mirror only, made anew at opening
//! cold     records, payloads, events, index, retention, documents    read from fjall
//! ```
//!
//! A queue in a log-structured tree leaves a tombstone for every entry taken, and its head is read at every commit:
//! the mirror keeps that a lookup in memory. It costs about 200 B for each open run and each queued task.

use crate::model::ids::Prefix;
use crate::store::kv::keys::Space;
use crate::store::kv::memory::Map;
use crate::store::kv::{Kv, Order, Pair, Writes, derive, is_derived, prefix_of};
use crate::store::{Result, StoreError};
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// The map. Clones share it.
#[derive(Clone)]
pub(super) struct Disk {
    db: Database,
    hot: Keyspace,
    cold: Keyspace,
    mirror: Arc<RwLock<Map>>,
    prefixes: Arc<Mutex<Prefixes>>,
    /// Whether each group of writes is on the disk, not only with the system, when it is answered.
    sync_groups: bool,
}

/// What a failure of the disk means. `sent`: something may have been written.
pub(super) fn failure(error: &fjall::Error, sent: bool) -> StoreError {
    StoreError::Unavailable { message: format!("the data directory failed: {error}"), sent }
}

/// Prefixes of the records written or compared last, so that a compare need not read the record again. Only the
/// committer uses it, the one that writes.
///
/// Two generations: when the young one is full it becomes the old, and what was the old is forgotten.
#[derive(Default)]
struct Prefixes {
    young: HashMap<Box<[u8]>, Prefix>,
    old: HashMap<Box<[u8]>, Prefix>,
}

impl Prefixes {
    /// Records in one generation: about 15 MB.
    const GENERATION: usize = 100_000;

    fn get(&mut self, record: &[u8]) -> Option<Prefix> {
        if let Some(prefix) = self.young.get(record) {
            return Some(*prefix);
        }
        let prefix = self.old.remove(record)?;
        self.insert(record, prefix);
        Some(prefix)
    }

    fn insert(&mut self, record: &[u8], prefix: Prefix) {
        if let Some(stands) = self.young.get_mut(record) {
            *stands = prefix;
            return;
        }
        if self.young.len() >= Self::GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(record.into(), prefix);
    }

    fn remove(&mut self, record: &[u8]) {
        self.young.remove(record);
        self.old.remove(record);
    }
}

fn is_record(key: &[u8]) -> bool {
    key.first() == Some(&(Space::Record as u8))
}

fn is_hot(key: &[u8]) -> bool {
    const HOT: [Space; 8] = [
        Space::WakeOf,
        Space::ReadyOf,
        Space::Claim,
        Space::Session,
        Space::Clock,
        Space::Lane,
        Space::StreamHead,
        Space::Meta,
    ];
    key.first().is_some_and(|first| HOT.iter().any(|space| *space as u8 == *first))
}

fn is_mirrored(key: &[u8]) -> bool {
    is_hot(key) || key.first().is_some_and(|first| is_derived(*first))
}

impl Disk {
    /// Opens or creates the map in a directory, which one process holds at a time.
    pub(super) fn open(dir: &Path, cache_bytes: u64, sync_groups: bool) -> Result<Self> {
        let refused = |why: String| StoreError::Unavailable {
            message: format!("the data directory {} cannot be opened: {why}", dir.display()),
            sent: false,
        };
        let db =
            Database::builder(dir).cache_size(cache_bytes).worker_threads(2).open().map_err(|e| match e {
                fjall::Error::Locked => refused("another process uses it".into()),
                fjall::Error::Io(e) => refused(e.to_string()),
                other => refused(format!("{other}. If it is damaged, restore a backup into a new directory")),
            })?;
        let keyspace =
            |name| db.keyspace(name, KeyspaceCreateOptions::default).map_err(|e| failure(&e, false));
        let (hot, cold) = (keyspace("hot")?, keyspace("cold")?);
        let mut mirror = Map::default();
        let mut writes = Writes::new();
        for pair in hot.iter() {
            let (key, value) = pair.into_inner().map_err(|e| failure(&e, false))?;
            let pair = (key.to_vec(), Bytes::copy_from_slice(&value));
            derive(&pair, &mut writes)?;
            writes.insert(pair.0, Some(pair.1));
        }
        mirror.apply(writes)?;
        Ok(Self {
            db,
            hot,
            cold,
            mirror: Arc::new(RwLock::new(mirror)),
            prefixes: Arc::default(),
            sync_groups,
        })
    }

    /// The map as it is now, for a reader.
    pub(super) fn view(&self) -> View {
        View { cold: self.db.snapshot(), disk: self.clone() }
    }

    /// Has the disk take what the system holds.
    pub(super) fn sync(&self) -> Result<()> {
        self.db.persist(PersistMode::SyncData).map_err(|e| failure(&e, true))
    }
}

/// The map as it was at one moment: a group of writes is seen whole or not at all. Fjall lets a plain read see
/// the first writes of a group before its last ones are in, an event before the record that it tells of, say.
pub(super) struct View {
    disk: Disk,
    cold: fjall::Snapshot,
}

impl Kv for View {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        if is_mirrored(key) {
            return self.disk.get(key);
        }
        let value = self.cold.get(&self.disk.cold, key).map_err(|e| failure(&e, false))?;
        Ok(value.map(|v| Bytes::copy_from_slice(&v)))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize, order: Order) -> Result<Vec<Pair>> {
        if is_mirrored(from) || from >= to {
            return self.disk.scan(from, to, limit, order);
        }
        collect(self.cold.range(&self.disk.cold, from..to), limit, order)
    }

    fn apply(&mut self, writes: Writes) -> Result<()> {
        self.disk.apply(writes)
    }
}

fn collect(range: fjall::Iter, limit: usize, order: Order) -> Result<Vec<Pair>> {
    let read = |pair: fjall::Guard| {
        let (key, value) = pair.into_inner().map_err(|e| failure(&e, false))?;
        Ok((key.to_vec(), Bytes::copy_from_slice(&value)))
    };
    match order {
        Order::Ascending => range.take(limit).map(read).collect(),
        Order::Descending => range.rev().take(limit).map(read).collect(),
    }
}

impl Kv for Disk {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        if is_mirrored(key) {
            return self.mirror.read().get(key);
        }
        let value = self.cold.get(key).map_err(|e| failure(&e, false))?;
        Ok(value.map(|v| Bytes::copy_from_slice(&v)))
    }

    fn prefix(&self, record: &[u8]) -> Result<Option<Prefix>> {
        if let Some(prefix) = self.prefixes.lock().get(record) {
            return Ok(Some(prefix));
        }
        let prefix = prefix_of(self.get(record)?.as_deref())?;
        if let Some(prefix) = prefix {
            self.prefixes.lock().insert(record, prefix);
        }
        Ok(prefix)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize, order: Order) -> Result<Vec<Pair>> {
        if is_mirrored(from) {
            return self.mirror.read().scan(from, to, limit, order);
        }
        if from >= to {
            return Ok(Vec::new());
        }
        collect(self.cold.range(from..to), limit, order)
    }

    fn apply(&mut self, writes: Writes) -> Result<()> {
        let mut batch = self.db.batch();
        if self.sync_groups {
            batch = batch.durability(Some(PersistMode::SyncData));
        }
        let mut mirrored = Writes::new();
        let mut prefixes = Vec::new();
        for (key, write) in writes {
            if !key.first().is_some_and(|first| is_derived(*first)) {
                let keyspace = if is_hot(&key) { &self.hot } else { &self.cold };
                match &write {
                    Some(value) => batch.insert(keyspace, &key[..], &value[..]),
                    None => batch.remove(keyspace, &key[..]),
                }
            }
            if is_mirrored(&key) {
                mirrored.insert(key, write);
            } else if is_record(&key) {
                let prefix = write.as_deref().and_then(Prefix::of);
                prefixes.push((key, prefix));
            }
        }
        batch.commit().map_err(|e| failure(&e, !matches!(e, fjall::Error::Poisoned)))?;
        let mut cache = self.prefixes.lock();
        for (record, prefix) in prefixes {
            match prefix {
                Some(prefix) => cache.insert(&record, prefix),
                None => cache.remove(&record),
            }
        }
        drop(cache);
        self.mirror.write().apply(mirrored)
    }
}
