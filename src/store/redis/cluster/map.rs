//! Which node has which slot: what `CLUSTER SLOTS` tells, and what a node answers that does not have one (any more).

use crate::store::redis::keys::SLOTS;
use crate::store::redis::link::{Endpoint, Value};
use crate::store::redis::reply;
use crate::store::{Result, StoreError};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

/// What `CLUSTER SLOTS` is called in errors.
const WHAT: &str = "the slots of the cluster";

/// The primary of every slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    /// First and last slot, and who has them; in order of slots, without overlap.
    ranges: Vec<(u16, u16, Endpoint)>,
}

impl Map {
    /// Reads `CLUSTER SLOTS`, as a node answered that was asked at `asked`.
    ///
    /// # Errors
    /// Not the form of that answer, or slots that nobody has: the cluster is not whole.
    pub(super) fn read(value: Value, asked: &Endpoint) -> Result<Self> {
        let mut ranges = Vec::new();
        for range in reply::array(value, WHAT)? {
            let mut parts = reply::array(range, WHAT)?.into_iter();
            let (Some(from), Some(to), Some(primary)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(reply::unexpected(WHAT));
            };
            let mut primary = reply::array(primary, WHAT)?.into_iter();
            let (Some(host), Some(port)) = (primary.next(), primary.next()) else {
                return Err(reply::unexpected(WHAT));
            };
            let slot = |value: &Value| {
                let number = u16::try_from(reply::number(value, WHAT)?).ok().filter(|n| *n < SLOTS);
                number.ok_or_else(|| reply::unexpected(WHAT))
            };
            let host = reply::bytes(host, WHAT)?.unwrap_or_default();
            let host = String::from_utf8_lossy(&host).into_owned();
            ranges.push((slot(&from)?, slot(&to)?, endpoint(&host, reply::number(&port, WHAT)?, asked)?));
        }
        ranges.sort();
        let mut next = 0;
        for (from, to, _) in &ranges {
            if *from != next || to < from {
                break;
            }
            next = to + 1;
        }
        if next != SLOTS {
            return Err(StoreError::Unavailable {
                message: format!("the Redis Cluster is not whole: no node has slot {next}"),
                sent: false,
            });
        }
        Ok(Self { ranges })
    }

    /// Who has a slot.
    pub(super) fn primary_of(&self, slot: u16) -> Option<&Endpoint> {
        let at = self.ranges.partition_point(|(_, to, _)| *to < slot);
        self.ranges.get(at).map(|(_, _, node)| node)
    }

    /// All primaries, each once.
    pub(super) fn primaries(&self) -> Vec<&Endpoint> {
        let mut found: Vec<_> = self.ranges.iter().map(|(_, _, node)| node).collect();
        found.sort();
        found.dedup();
        found
    }
}

/// What most nodes say: one that is cut off from the others does not know what has changed. If as many say one as the
/// other, what is not `known` yet.
pub(super) async fn of_most(
    mut told: FuturesUnordered<impl Future<Output = Option<Map>>>,
    known: &Map,
) -> Option<Map> {
    let asked = told.len();
    let mut votes: Vec<(usize, Map)> = Vec::new();
    while let Some(map) = told.next().await {
        let Some(map) = map else { continue };
        let at = votes.iter().position(|(_, m)| *m == map).unwrap_or_else(|| {
            votes.push((0, map));
            votes.len() - 1
        });
        votes[at].0 += 1;
        if votes[at].0 * 2 > asked {
            break;
        }
    }
    votes.into_iter().max_by_key(|(n, map)| (*n, map != known)).map(|(_, map)| map)
}

/// A node as another one names it; without a host it is that of the one that was asked.
fn endpoint(host: &str, port: i64, asked: &Endpoint) -> Result<Endpoint> {
    let port = u16::try_from(port).ok().filter(|p| *p != 0).ok_or_else(|| reply::unexpected(WHAT))?;
    let host = match (host, asked) {
        ("" | "?", Endpoint::Tcp(host, _)) => host.clone(),
        ("" | "?", Endpoint::Unix(_)) => return Err(reply::unexpected(WHAT)),
        (host, _) => host.to_owned(),
    };
    Ok(Endpoint::Tcp(host, port))
}

/// Where a node sends us instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// There for good.
    Moved(Endpoint),
    /// There for this once: the slot is on its way.
    Ask(Endpoint),
    /// Nowhere yet: keys are on their way, or the slot has no primary just now. Nothing was done.
    Later,
}

impl Elsewhere {
    /// What an error of a node says about the way; none if it is another error.
    pub(super) fn read(error: &str, asked: &Endpoint) -> Option<Self> {
        let mut words = error.split(' ');
        match words.next()? {
            "TRYAGAIN" | "CLUSTERDOWN" => Some(Self::Later),
            kind @ ("MOVED" | "ASK") => {
                let (host, port) = words.nth(1)?.rsplit_once(':')?;
                let node = endpoint(host.trim_matches(['[', ']']), port.parse().ok()?, asked).ok()?;
                Some(if kind == "MOVED" { Self::Moved(node) } else { Self::Ask(node) })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp(host.into(), port)
    }

    fn range(from: i64, to: i64, host: &'static str, port: i64) -> Value {
        let text = |t: &'static str| Value::BulkString(t.as_bytes().into());
        let node = |host, port| Value::Array(vec![text(host), Value::Int(port), text("id")]);
        Value::Array(vec![Value::Int(from), Value::Int(to), node(host, port), node("replica", 1)])
    }

    #[test]
    fn every_slot_has_its_primary() {
        let told = Value::Array(vec![
            range(10_923, 16_383, "c", 3),
            range(0, 5_460, "a", 1),
            range(5_461, 10_921, "", 2),
            range(10_922, 10_922, "a", 1),
        ]);
        let map = Map::read(told, &tcp("asked", 9)).unwrap();
        for (slot, node) in [
            (0, tcp("a", 1)),
            (5_460, tcp("a", 1)),
            (5_461, tcp("asked", 2)),
            (10_922, tcp("a", 1)),
            (16_383, tcp("c", 3)),
        ] {
            assert_eq!(map.primary_of(slot), Some(&node), "{slot}");
        }
        assert_eq!(map.primaries(), [&tcp("a", 1), &tcp("asked", 2), &tcp("c", 3)]);
        assert_eq!(map.primary_of(SLOTS), None);
    }

    #[test]
    fn a_cluster_with_holes_or_nonsense_is_refused() {
        let asked = tcp("asked", 9);
        for (told, why) in [
            (vec![], "no node has slot 0"),
            (vec![range(0, 16_382, "a", 1)], "no node has slot 16383"),
            (vec![range(0, 5, "a", 1), range(7, 16_383, "a", 1)], "no node has slot 6"),
            (vec![range(0, 16_384, "a", 1)], "form"),
            (vec![range(0, 16_383, "a", 0)], "form"),
            (vec![Value::Int(1)], "form"),
            (vec![Value::Array(vec![])], "form"),
        ] {
            let error = Map::read(Value::Array(told), &asked).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert!(!error.was_sent());
        }
    }

    #[tokio::test]
    async fn one_that_is_cut_off_is_outvoted() {
        let map = |host| Map { ranges: vec![(0, SLOTS - 1, tcp(host, 1))] };
        let say = |hosts: &[Option<&'static str>]| {
            hosts.iter().map(|host| std::future::ready(host.map(map))).collect::<FuturesUnordered<_>>()
        };
        let known = map("old");
        for (told, most) in [
            (&[Some("old"), Some("new"), Some("new")][..], Some("new")),
            (&[Some("new"), Some("old"), Some("old")], Some("old")),
            (&[Some("old"), Some("new")], Some("new")),
            (&[Some("new"), None, Some("old")], Some("new")),
            (&[None, Some("old")], Some("old")),
            (&[None], None),
            (&[], None),
        ] {
            assert_eq!(of_most(say(told), &known).await, most.map(map), "{told:?}");
        }
    }

    #[test]
    fn errors_tell_the_way() {
        let asked = tcp("asked", 9);
        let read = |text: &str| Elsewhere::read(text, &asked);
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), Some(Elsewhere::Moved(tcp("127.0.0.1", 6381))));
        assert_eq!(read("MOVED 3999 :6381"), Some(Elsewhere::Moved(tcp("asked", 6381))));
        assert_eq!(read("ASK 1 [::1]:7"), Some(Elsewhere::Ask(tcp("::1", 7))));
        assert_eq!(read("TRYAGAIN Multiple keys request during rehashing of slot"), Some(Elsewhere::Later));
        assert_eq!(read("CLUSTERDOWN Hash slot not served"), Some(Elsewhere::Later));
        for other in ["", "MOVED", "MOVED 1", "MOVED 1 x", "ASK 1 h:0", "ERR MOVED 1 h:1", "MOVEDX 1 h:1"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
