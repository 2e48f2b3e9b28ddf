//! The talk between a driver and `run`, a line of JSON each way, on standard output and input.
//!
//! ```text
//! driver                    run
//! {"ready": true}     →           warmed up and connected
//!                     ←     go
//! {"done": {…}}       →           the work is done: figures
//!                     ←     audit
//! {"audit": ["…"]}    →           what was wrong; nothing, if nothing was
//! ```
//!
//! `run` reads the processors' time and Redis' memory between the lines.

use crate::ledger::Ends;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

/// `--name value` pairs behind the first argument, which says what this process is.
#[derive(Debug)]
pub struct Options {
    /// `worker` or `driver`, say.
    pub role: String,
    values: HashMap<String, String>,
}

impl Options {
    /// Of this process.
    pub fn read() -> Self {
        let mut words = std::env::args().skip(1);
        let role = words.next().unwrap_or_else(|| fail("say what to be: worker or driver"));
        let mut values = HashMap::new();
        while let Some(name) = words.next() {
            let value = words.next().unwrap_or_else(|| fail(format!("{name} has no value")));
            values.insert(name.trim_start_matches('-').to_owned(), value);
        }
        Self { role, values }
    }

    /// The value of `--name`; the process ends if there is none or it is not of this type.
    pub fn get<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> T {
        let value = self.values.get(name).unwrap_or_else(|| fail(format!("--{name} is missing")));
        value.parse().unwrap_or_else(|e| fail(format!("--{name} {value}: {e}")))
    }
}

/// Ends the process with a word about why.
pub fn fail(why: impl std::fmt::Display) -> ! {
    eprintln!("{why}");
    std::process::exit(1)
}

/// The part of a driver between its start and what it is told to do.
#[derive(Debug)]
pub struct Turn {
    ends: Ends,
    /// How many chains the worker had seen end when the driver began.
    before: u64,
}

impl Turn {
    /// Connects with the worker, `before` of whose chains have ended.
    pub async fn new(port: u16, before: u64) -> Result<Self, Box<dyn Error>> {
        Ok(Self { ends: Ends::connect(port).await?, before })
    }

    /// Returns when `number` more chains have ended since the driver began.
    pub async fn ended(&mut self, number: u64) -> Result<(), Box<dyn Error>> {
        Ok(self.ends.wait(self.before + number).await?)
    }

    /// Tells `run` that the work can begin, and returns when it shall.
    pub fn ready(&self) -> Result<(), Box<dyn Error>> {
        say(&json!({ "ready": true }))
    }
}

/// Tells `run` that the work is done, with its figures; returns when the audit shall begin.
pub fn done(figures: &Value) -> Result<(), Box<dyn Error>> {
    say(&json!({ "done": figures }))
}

/// Tells `run` what was wrong.
pub fn audit(wrong: &[String]) {
    println!("{}", json!({ "audit": wrong }));
}

/// Says it and reads the answer, which says only that it is this process' turn again.
fn say(message: &Value) -> Result<(), Box<dyn Error>> {
    println!("{message}");
    let mut answer = String::new();
    match std::io::stdin().read_line(&mut answer)? {
        0 => Err("the other end is gone".into()),
        _ => Ok(()),
    }
}

/// For figures.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
