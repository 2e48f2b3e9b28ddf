//! Workers, seen from the server's side of the stream: the SDK's in this process, the shell's as a program.

mod script;
mod sdk;
mod shell;
