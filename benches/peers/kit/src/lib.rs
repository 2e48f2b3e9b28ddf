//! What the Rust peers share: the ledger in which a worker notes what it ran, and how a driver talks with `run`.
//!
//! A task is given one number and answers with the next one. The number says which chain and which task of it this is:
//! `chain * 16 + task`. So a chain that ends with `chain * 16 + 9` has gone through nine tasks in their order, and the
//! ledger knows for each of them how often it ran.
//!
//! ```text
//! ledger.rs   cells of what ran; a port on which a driver waits for ends; the file that `run` audits
//! driver.rs   options, and the lines between a driver and `run`
//! ```

#![forbid(unsafe_code)]

mod driver;
mod ledger;

pub use driver::{Options, Turn, audit, done, fail, milliseconds};
pub use ledger::{Ledger, ledger};

/// Tasks of a chain.
pub const TASKS: u64 = 9;

/// What the first task of a chain is given.
#[must_use]
pub fn first(chain: u64) -> u64 {
    chain * 16
}

/// What the last task of a chain answers with.
#[must_use]
pub fn last(chain: u64) -> u64 {
    chain * 16 + TASKS
}
