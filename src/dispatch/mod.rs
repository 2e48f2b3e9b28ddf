//! Layer 3: worker sessions as sans-I/O machines, credits, claims. A pure machine and a thin driver.

pub mod message;
