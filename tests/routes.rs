//! The doors of a real server, laid out like its addresses.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

mod routes {
    mod bulk;
    mod constructs;
    mod control;
    mod control_grpc;
    mod docs;
    mod door;
    mod events;
    mod grpc;
    mod grpc_worker;
    mod labels;
    mod limits;
    mod metrics;
    mod runs;
    mod schedules;
    mod stop;
    mod tasks;
    mod workflows;
}
