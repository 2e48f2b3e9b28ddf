//! Spaces that say nothing another space does not: a map on disk keeps them in memory only and makes them anew when
//! it opens.
//!
//! ```text
//! W wake-ups in order        from V    Q ready queue in order    from T
//! X claims by expiry         from C    N how many are ready      from T
//! ```

use super::keys::{HEAD, Key, Space};
use super::{Pair, Writes, damaged};
use crate::model::ids::Partition;
use crate::store::Result;
use bytes::Bytes;

/// Whether keys of this space are derived.
pub(crate) fn is_derived(space: u8) -> bool {
    [Space::Wake, Space::Ready, Space::Depth, Space::ClaimExpiry].iter().any(|s| *s as u8 == space)
}

/// Adds what derives from one kept pair. Every pair must be given exactly once.
pub(crate) fn derive(pair: &Pair, into: &mut Writes) -> Result<()> {
    let (key, value) = pair;
    let (Some(first), Some(&[high, low])) = (key.first(), key.get(1..HEAD)) else { return Ok(()) };
    let partition = Partition(u16::from_be_bytes([high, low]));
    let rest = key.get(HEAD..).unwrap_or_default();
    let time = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec).ok_or_else(|| damaged("a time"));
    if *first == Space::WakeOf as u8 {
        let at = time(value.get(..8))?;
        into.insert(Key::of(Space::Wake, partition).raw(&at).raw(rest).bytes(), Some(Bytes::new()));
    } else if *first == Space::ReadyOf as u8 {
        let cut = rest.iter().position(|b| *b == 0).ok_or_else(|| damaged("a ready entry"))?;
        let (queue, entry) = rest.split_at(cut);
        let place = time(value.get(..8))?;
        let entry = entry.get(1..).unwrap_or_default();
        let ready = Key::of(Space::Ready, partition).raw(queue).end().raw(&place).raw(entry);
        into.insert(ready.bytes(), Some(Bytes::new()));
        let depth = into.entry(Key::of(Space::Depth, partition).raw(queue).bytes()).or_default();
        let counted = depth.as_deref().and_then(|d| d.try_into().ok()).map_or(0, u64::from_be_bytes);
        *depth = Some((counted + 1).to_be_bytes().to_vec().into());
    } else if *first == Space::Claim as u8 {
        let expiry = time(value.get(8..16))?;
        into.insert(
            Key::of(Space::ClaimExpiry, partition).raw(&expiry).raw(rest).bytes(),
            Some(Bytes::new()),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::commit::{Expect, QueueEntry, QueueOp, RunWrite, WakeOp, Write};
    use crate::model::ids::{Nonce, RunId, TaskPath};
    use crate::model::labels::QueueName;
    use crate::model::time::{Span, Timestamp};
    use crate::store::kv::memory::Map;
    use crate::store::kv::{Kv, Order, Shape, Tx, commit, queue};
    use crate::store::{Batch, LAYOUT, Layout};

    #[test]
    fn what_is_derived_is_what_the_verbs_wrote() {
        let mut map = Map::default();
        let layout = Layout { version: LAYOUT, partitions: 300, epoch: 1 };
        let shape = Shape { layout, stream_bound: 10 };
        let (partition, queue) = (Partition(258), "charge;gpu=true".parse::<QueueName>().unwrap());
        let run = RunId::new("r").unwrap();
        let entry =
            |generation| QueueEntry { run: run.clone(), path: TaskPath::parse("a").unwrap(), generation };
        let add = |generation: u32| QueueOp::Add {
            queue: queue.clone(),
            entry: entry(generation),
            score: i64::from(generation) - 2,
        };
        let write = RunWrite {
            run: run.clone(),
            expect: Expect::Absent,
            write: Write::Put(vec![1; 24].into()),
            payloads: Vec::new(),
            queue: (0..5).map(add).collect(),
            wake: WakeOp::Set(Timestamp(77)),
            index: None,
            retain_until: None,
            event: None,
            of: None,
        };
        let batch = Batch { lane: Nonce([1; 16]), sequence: 1, writes: vec![(partition, write)] };
        let mut tx = Tx::new(&map);
        commit::commit(&mut tx, &shape, Partition(0), &batch, Timestamp(5)).unwrap();
        queue::take(&mut tx, &shape, &[(partition, queue.clone(), 2)], Span(9), Timestamp(5)).unwrap();
        let writes = tx.into_writes();
        map.apply(writes).unwrap();

        let all = map.scan(&[0], &[255], usize::MAX, Order::Ascending).unwrap();
        let (derived, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|(key, _)| is_derived(key[0]));
        let mut made = Writes::new();
        for pair in &kept {
            derive(pair, &mut made).unwrap();
        }
        let made: Vec<Pair> = made.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
        assert_eq!(derived.len(), 1 + 3 + 1 + 2, "a wake-up, three ready, their number, two claims");
        assert_eq!(made, derived);
    }
}
