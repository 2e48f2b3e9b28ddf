//! The port on Redis ≥ 6.2 and Valkey: one script per verb, keys in `keys.rs`.
