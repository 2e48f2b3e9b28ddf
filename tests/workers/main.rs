//! Workers, seen from the server's side of the stream: the SDK's in this process, the shell's as a program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod script;
mod sdk;
mod shell;
