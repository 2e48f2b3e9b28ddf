//! The Rust SDK: a worker and a caller over gRPC. Never imports a server layer.
