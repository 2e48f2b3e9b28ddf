//! The stored forms of home records: prefix ‖ format u8 ‖ fields in a fixed order. A format that changes gets another
//! number; one that is not known is refused.
//!
//! ```text
//! 2  semaphore  key  limit  arrivals  ask-at  ( holder )*  ( waiter )*  last  ( number  claim )*
//!    claim      run  ticket
//!    holder     claim  task  since  grant
//!    waiter     score  arrival  claim  task
//! 3  bucket     key  paid-until
//! 4  schedule   numbered fields, see `schedule`
//! 5  schedule names  ( name  created-at )*
//! ```

use super::super::home::{Bucket, Claim, Held, Home, ScheduleNames, Semaphore};
use super::super::ids::{RunId, TaskPath};
use super::super::outbox::{Message, Outbox};
use super::super::schedule::ScheduleName;
use super::super::time::Timestamp;
use super::Result;
use super::schedule;
use super::wire::{Reader, Writer, bad, put_bytes, put_i64, put_u32, put_u64};

/// Formats; 1 is that of runs.
mod format {
    pub(super) const SEMAPHORE: u8 = 2;
    pub(super) const BUCKET: u8 = 3;
    pub(super) const SCHEDULE: u8 = 4;
    pub(super) const SCHEDULE_NAMES: u8 = 5;
}

/// Appends the encoding of `home` to `out` (which holds the prefix already).
pub fn encode_into(home: &Home, out: &mut Vec<u8>) {
    match home {
        Home::Semaphore(semaphore) => {
            out.push(format::SEMAPHORE);
            put_semaphore(out, semaphore);
        }
        Home::Bucket(bucket) => {
            out.push(format::BUCKET);
            put_bytes(out, bucket.key.as_bytes());
            put_i64(out, bucket.paid_until.0);
        }
        Home::Schedule(state) => {
            out.push(format::SCHEDULE);
            let mut writer = Writer::behind(std::mem::take(out));
            schedule::put(&mut writer, state);
            *out = writer.done();
        }
        Home::ScheduleNames(names) => {
            out.push(format::SCHEDULE_NAMES);
            put_u64(out, names.created.len() as u64);
            for (name, created_at) in &names.created {
                put_bytes(out, name.as_str().as_bytes());
                put_i64(out, created_at.0);
            }
        }
    }
}

/// Reads what follows the prefix.
pub fn decode(bytes: &[u8]) -> Result<Home> {
    let mut r = Reader::new(bytes);
    let home = match r.byte()? {
        format::SEMAPHORE => Home::Semaphore(semaphore(&mut r)?),
        format::BUCKET => Home::Bucket(Bucket { key: r.text()?.to_owned(), paid_until: Timestamp(r.i64()?) }),
        format::SCHEDULE => Home::Schedule(Box::new(schedule::read(&mut r)?)),
        format::SCHEDULE_NAMES => {
            let entry =
                |r: &mut Reader<'_>| Ok((ScheduleName::new(r.text()?).map_err(bad)?, Timestamp(r.i64()?)));
            Home::ScheduleNames(ScheduleNames { created: r.list(entry)?.into_iter().collect() })
        }
        other => return Err(bad(format!("a home record of format {other} is not known"))),
    };
    r.end()?;
    Ok(home)
}

fn put_claim(out: &mut Vec<u8>, claim: &Claim) {
    put_bytes(out, claim.run.as_str().as_bytes());
    put_u32(out, claim.ticket);
}

fn claim(r: &mut Reader<'_>) -> Result<Claim> {
    Ok(Claim { run: RunId::new(r.text()?).map_err(bad)?, ticket: r.u32()? })
}

fn task(r: &mut Reader<'_>) -> Result<TaskPath> {
    TaskPath::parse(r.text()?).map_err(bad)
}

fn put_semaphore(out: &mut Vec<u8>, semaphore: &Semaphore) {
    let Semaphore { key, limit, holders, waiters, arrivals, outbox, ask_at } = semaphore;
    put_bytes(out, key.as_bytes());
    put_u32(out, *limit);
    put_u32(out, *arrivals);
    put_i64(out, ask_at.0);
    put_u64(out, holders.len() as u64);
    for (claim, held) in holders {
        put_claim(out, claim);
        put_bytes(out, held.task.as_str().as_bytes());
        put_i64(out, held.since.0);
        put_u32(out, held.grant);
    }
    put_u64(out, waiters.len() as u64);
    for ((score, arrival), (claim, task)) in waiters {
        put_i64(out, *score);
        put_u32(out, *arrival);
        put_claim(out, claim);
        put_bytes(out, task.as_str().as_bytes());
    }
    put_u32(out, outbox.last);
    put_u64(out, outbox.pending.len() as u64);
    for (number, message) in &outbox.pending {
        put_u32(out, *number);
        put_claim(out, &message.what);
    }
}

fn semaphore(r: &mut Reader<'_>) -> Result<Semaphore> {
    let key = r.text()?.to_owned();
    let (limit, arrivals, ask_at) = (r.u32()?, r.u32()?, Timestamp(r.i64()?));
    let mut semaphore = Semaphore {
        key,
        limit,
        arrivals,
        ask_at,
        holders: std::collections::BTreeMap::new(),
        waiters: std::collections::BTreeMap::new(),
        outbox: Outbox::default(),
    };
    for _ in 0..r.count()? {
        let claim = claim(r)?;
        let held = Held { task: task(r)?, since: Timestamp(r.i64()?), grant: r.u32()? };
        semaphore.holders.insert(claim, held);
    }
    for _ in 0..r.count()? {
        let place = (r.i64()?, r.u32()?);
        semaphore.waiters.insert(place, (claim(r)?, task(r)?));
    }
    semaphore.outbox.last = r.u32()?;
    for _ in 0..r.count()? {
        let (number, what) = (r.u32()?, claim(r)?);
        semaphore.outbox.pending.insert(number, Message { to: what.run.clone(), what });
    }
    Ok(semaphore)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str) -> RunId {
        RunId::new(name).unwrap()
    }

    #[test]
    fn homes_read_what_they_wrote() {
        let mut semaphore = Semaphore {
            key: "env-a".into(),
            limit: 1,
            arrivals: 3,
            ask_at: Timestamp(30_000_000),
            holders: std::collections::BTreeMap::new(),
            waiters: std::collections::BTreeMap::new(),
            outbox: Outbox { last: 8, ..Outbox::default() },
        };
        let holder = Claim { run: run("r-1"), ticket: 2 };
        let grant = semaphore.outbox.push(holder.run.clone(), holder.clone());
        let held = Held { task: TaskPath::parse("deploy").unwrap(), since: Timestamp(7), grant };
        semaphore.holders.insert(holder, held);
        let waiter = Claim { run: run("r-2"), ticket: 1 };
        semaphore.waiters.insert((-5, 3), (waiter, TaskPath::parse("a[1]/b").unwrap()));
        let bucket = Home::Bucket(Bucket { key: "api".into(), paid_until: Timestamp(99) });
        let names = [("a", 1), ("b", -2)].map(|(n, at)| (ScheduleName::new(n).unwrap(), Timestamp(at)));
        let names = Home::ScheduleNames(ScheduleNames { created: names.into() });
        for home in [Home::Semaphore(semaphore), bucket, names] {
            let mut bytes = Vec::new();
            encode_into(&home, &mut bytes);
            assert_eq!(decode(&bytes).unwrap(), home);
            assert!(decode(&bytes[..bytes.len() - 1]).is_err());
            bytes.push(0);
            assert!(decode(&bytes).is_err(), "what is left over is an error");
        }
        assert!(decode(&[99]).unwrap_err().to_string().contains("format 99"));
    }
}
