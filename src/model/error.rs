//! One table of error codes for REST and gRPC. Each has a page in `docs/errors/`.

/// A fault in a document or request: where and what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where, as a path: `tasks.charge.retry.max`.
    pub path: String,
    /// Line in the YAML text, from 1; none for JSON.
    pub line: Option<u32>,
    /// What is wrong and how to mend it.
    pub message: String,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $http:literal, $grpc:literal, $title:literal;)*) => {
        /// A stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode { $($(#[$doc])* $name,)* }
        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// The code as users read it.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $code,)* } }
            /// HTTP status.
            pub fn http_status(self) -> u16 { match self { $(Self::$name => $http,)* } }
            /// Number of the gRPC status code.
            pub fn grpc_code(self) -> i32 { match self { $(Self::$name => $grpc,)* } }
            /// One line for people.
            pub fn title(self) -> &'static str { match self { $(Self::$name => $title,)* } }
        }
    };
}

error_codes! {
    /// The workflow document has faults; all of them are listed.
    InvalidWorkflow = "invalid_workflow", 422, 3, "The workflow document has faults";
    /// The request is not of the right form.
    InvalidRequest = "invalid_request", 400, 3, "The request is not valid";
    /// The input does not match the workflow's schema.
    InvalidInput = "invalid_input", 422, 3, "The input does not match the workflow's schema";
    /// No such workflow or version.
    WorkflowNotFound = "workflow_not_found", 404, 5, "There is no such workflow or version";
    /// A run uses the workflow.
    WorkflowInUse = "workflow_in_use", 409, 9, "A run uses the workflow";
    /// No such run.
    RunNotFound = "run_not_found", 404, 5, "There is no such run";
    /// The id is taken by another run.
    RunIdTaken = "run_id_taken", 409, 6, "The run id is taken";
    /// The run has ended.
    RunEnded = "run_ended", 409, 9, "The run has ended";
    /// The run has not ended.
    RunNotEnded = "run_not_ended", 409, 9, "The run has not ended";
    /// Nothing in the run has failed.
    NothingToRetry = "nothing_to_retry", 409, 9, "Nothing in the run has failed";
    /// No such task in the run, or none that is laid out yet.
    TaskNotFound = "task_not_found", 404, 5, "The run has no such task";
    /// The task is not in a state in which this can be done to it.
    TaskNotOpen = "task_not_open", 409, 9, "The task has ended or is with a worker";
    /// The token was fenced.
    StaleToken = "stale_token", 409, 9, "The task token is stale";
    /// The token is not one of ours, or of no run.
    UnknownToken = "unknown_token", 404, 5, "The task token is unknown";
    /// The definition of a schedule has faults.
    InvalidSchedule = "invalid_schedule", 422, 3, "The schedule has faults";
    /// No such schedule.
    ScheduleNotFound = "schedule_not_found", 404, 5, "There is no such schedule";
    /// A run of the schedule is open, or too many wait.
    ScheduleBusy = "schedule_busy", 409, 9, "The schedule has a run that is open";
    /// There are as many schedules as there may be.
    TooManySchedules = "too_many_schedules", 409, 8, "There are as many schedules as there may be";
    /// The session is gone or was taken over.
    SessionLost = "session_lost", 409, 10, "The worker session is gone";
    /// Something is over its size limit.
    TooLarge = "too_large", 413, 8, "Something is over its size limit";
    /// The address of a request is longer than can be read.
    AddressTooLong = "address_too_long", 414, 3, "The address of the request is too long";
    /// The headers of a request are more than can be read.
    HeadersTooLarge = "headers_too_large", 431, 8, "The headers of the request are too large";
    /// The media type is not one we read.
    UnsupportedMediaType = "unsupported_media_type", 415, 3, "The media type is not supported";
    /// No such route or method.
    NotFound = "not_found", 404, 12, "There is nothing at this address";
    /// The route exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405, 12, "The method is not allowed here";
    /// The store is away, slow or full.
    StoreUnavailable = "store_unavailable", 503, 14, "The store cannot take this now";
    /// The store holds something that this version cannot read; nothing was done.
    StoreUnreadable = "store_unreadable", 503, 14, "The store holds what this version cannot read";
    /// A change was handed to the store and not answered in time: it may have been made.
    OutcomeUnknown = "outcome_unknown", 504, 4, "It is not known whether this was done";
    /// The server is full or draining.
    Overloaded = "overloaded", 503, 8, "The server cannot take more now";
    /// A request took longer than its limit.
    DeadlineExceeded = "deadline_exceeded", 504, 4, "The request took too long";
    /// Our fault.
    Internal = "internal", 500, 13, "Downbeat made a mistake";
}
