//! Layer 5: the doors. Each route: parse → one call of `app` → map; one error table for REST and gRPC.
