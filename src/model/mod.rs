//! Layer 0: the words of Downbeat as types. Names that validate themselves, time, the workflow
//! document and the [`plan::Plan`] it becomes, run and task state, commands, events, error codes.
//!
//! Invariants
//! - A constructor validates; a value that exists is valid.
//! - States are enums that carry their data. An unknown stored state is an error, never a default.
//! - Nothing here does I/O, reads a clock (but [`time::SystemClock`], the one owner of it) or logs.

pub mod command;
pub mod commit;
pub mod cron;
pub mod document;
pub mod duration;
pub mod entropy;
pub mod error;
pub mod event;
pub mod expr;
pub mod home;
pub mod ids;
pub mod instant;
pub mod json;
pub mod labels;
pub(crate) mod nearest;
pub mod nodes;
pub mod outbox;
pub mod payload;
pub mod plan;
pub mod record;
pub mod run;
pub mod schedule;
pub mod shared;
pub mod time;
pub mod token;
