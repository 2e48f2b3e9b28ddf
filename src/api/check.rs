//! What both doors check and fill in before the application is asked, so that REST and gRPC cannot differ.

use super::error::{cut, invalid, invalid_all};
use super::limits::{CLAIM_MAX, CLAIM_TYPES_MAX, LABEL_MAX, TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX};
use crate::app::AppError;
use crate::dispatch::message::AckStatus;
use crate::model::error::{ErrorCode, Fault};
use crate::model::event::EventKind;
use crate::model::ids::TaskType;
use crate::model::json;
use crate::model::payload::PAYLOAD_MAX;
use crate::model::run::RunStatus;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt::Display;

/// Reads a name or another checked word; the fault carries `path`.
pub(crate) fn word<T, E: Display>(
    path: &str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, AppError> {
    parse(text).map_err(|e| invalid(path, e.to_string()))
}

/// Refuses a value of a user that is too large or not JSON that we take; empty means null.
pub(crate) fn check_payload(path: &str, text: &Bytes) -> Result<(), AppError> {
    if text.len() > PAYLOAD_MAX {
        let message = format!("{path} has {} bytes; at most {PAYLOAD_MAX} are taken", text.len());
        return Err(AppError::new(ErrorCode::TooLarge, message));
    }
    if text.is_empty() {
        return Ok(());
    }
    json::check(text).map_err(|message| invalid(path, message))
}

/// Refuses tags that would not fit beside a run or could not be filtered by.
pub(crate) fn check_tags(tags: &BTreeMap<String, String>) -> Result<(), AppError> {
    let mut faults = Vec::new();
    let mut fault = |path: String, message: String| faults.push(Fault { path, line: None, message });
    if tags.len() > TAGS_MAX {
        fault("tags".into(), format!("has {} tags; at most {TAGS_MAX} are taken", tags.len()));
    }
    for (key, value) in tags.iter().take(TAGS_MAX) {
        let path = format!("tags.{}", cut(key, 64));
        if key.is_empty() || key.contains(':') || key.len() > TAG_KEY_MAX {
            fault(path, format!("a key has 1 to {TAG_KEY_MAX} bytes and no ':'"));
        } else if value.len() > TAG_VALUE_MAX {
            fault(path, format!("a value has at most {TAG_VALUE_MAX} bytes"));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(invalid_all(faults)) }
}

/// Refuses a priority that is none.
pub(crate) fn check_priority(priority: Option<i32>) -> Result<Option<i32>, AppError> {
    match priority {
        Some(n) if !(-100..=100).contains(&n) => {
            Err(invalid("priority", format!("{n} is not from -100 to 100")))
        }
        other => Ok(other),
    }
}

/// Reads the status of a run.
pub(crate) fn run_status(text: &str) -> Result<RunStatus, String> {
    RunStatus::ALL.into_iter().find(|s| s.name() == text).ok_or_else(|| {
        let names: Vec<_> = RunStatus::ALL.iter().map(|s| s.name()).collect();
        format!("{text:?} is no status of a run: {}", names.join(", "))
    })
}

/// Reads a type of events, or a family of them.
pub(crate) fn event_type(text: &str) -> Result<String, String> {
    if matches!(text, "run.*" | "task.*") || EventKind::ALL.iter().any(|k| k.name() == text) {
        return Ok(text.to_owned());
    }
    let names: Vec<_> = EventKind::ALL.iter().map(|k| k.name()).collect();
    Err(format!("{text:?} is no type of event: run.*, task.*, {}", names.join(", ")))
}

/// Checks the types of a claim.
pub(crate) fn task_types(texts: &[String]) -> Result<Vec<TaskType>, AppError> {
    if !(1..=CLAIM_TYPES_MAX).contains(&texts.len()) {
        return Err(invalid("types", format!("has {} types, not 1 to {CLAIM_TYPES_MAX}", texts.len())));
    }
    let read = |(n, text): (usize, &String)| {
        let path = format!("types[{n}]");
        if let Some(first) = texts[..n].iter().position(|t| t == text) {
            return Err(invalid(
                path,
                format!("{text:?} stands in types[{first}] already; name each type once"),
            ));
        }
        word(&path, text, TaskType::new)
    };
    texts.iter().enumerate().map(read).collect()
}

/// Checks the size of a claim.
pub(crate) fn claim_max(max: u32) -> Result<u32, AppError> {
    match max {
        1..=CLAIM_MAX => Ok(max),
        _ => Err(invalid("max", format!("{max} is not from 1 to {CLAIM_MAX}"))),
    }
}

/// A worker's own name; one without is called `otherwise`.
pub(crate) fn label(
    path: &str,
    given: String,
    otherwise: impl FnOnce() -> String,
) -> Result<String, AppError> {
    match given.len() {
        0 => Ok(otherwise()),
        1..=LABEL_MAX => Ok(given),
        n => Err(invalid(path, format!("has {n} bytes; at most {LABEL_MAX} are taken"))),
    }
}

/// The fate of one result as the answer to a call.
pub(crate) fn accepted(status: AckStatus) -> Result<(), AppError> {
    let (code, message) = match status {
        AckStatus::Accepted => return Ok(()),
        AckStatus::Stale => {
            (ErrorCode::StaleToken, "the attempt was given to another worker, has ended or was cancelled")
        }
        AckStatus::Unknown => (ErrorCode::UnknownToken, "the token is not one of ours, or of no run"),
        AckStatus::Invalid => {
            (ErrorCode::InvalidRequest, "the output is not valid JSON or too large: the attempt has failed")
        }
    };
    Err(AppError::new(code, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_bounded_and_filterable() {
        let tags = |pairs: &[(&str, &str)]| {
            let tags: BTreeMap<String, String> =
                pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            check_tags(&tags).map_err(|e| e.faults.into_iter().map(|f| f.path).collect::<Vec<_>>())
        };
        assert_eq!(tags(&[("team", "a:b")]), Ok(()));
        assert_eq!(
            tags(&[("", "x"), ("a:b", "x"), ("c", &"v".repeat(257))]),
            Err(vec!["tags.".to_owned(), "tags.a:b".to_owned(), "tags.c".to_owned()])
        );
        let many: Vec<String> = (0..33).map(|n| format!("k{n}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|k| (k.as_str(), "")).collect();
        assert_eq!(tags(&many), Err(vec!["tags".to_owned()]));
    }

    #[test]
    fn payloads_are_json_of_at_most_a_mebibyte() {
        assert_eq!(check_payload("input", &Bytes::new()), Ok(()));
        let string = |n: usize| Bytes::from(format!("\"{}\"", "x".repeat(n - 2)));
        assert_eq!(check_payload("input", &string(PAYLOAD_MAX)), Ok(()));
        let error = check_payload("input", &string(PAYLOAD_MAX + 1)).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooLarge);
        assert_eq!(error.message, "input has 1048577 bytes; at most 1048576 are taken");
        assert_eq!(check_payload("input", &Bytes::from_static(b"{")).unwrap_err().faults[0].path, "input");
    }

    #[test]
    fn words_of_the_contract_are_read_back() {
        for status in RunStatus::ALL {
            assert_eq!(run_status(status.name()), Ok(status));
        }
        assert!(run_status("Running").unwrap_err().contains("timed_out"));
        for kind in EventKind::ALL {
            assert_eq!(event_type(kind.name()), Ok(kind.name().to_owned()));
        }
        assert_eq!(event_type("task.*"), Ok("task.*".to_owned()));
        assert!(event_type("task").is_err());
    }

    #[test]
    fn labels_are_bounded() {
        assert_eq!(label("worker", String::new(), || "peer".into()), Ok("peer".into()));
        assert_eq!(label("worker", "w".into(), || "peer".into()), Ok("w".into()));
        assert!(label("worker", "w".repeat(257), || "peer".into()).is_err());
    }

    #[test]
    fn claims_are_bounded_and_their_types_checked() {
        assert_eq!(task_types(&["pack".into()]), Ok(vec![TaskType::new("pack").unwrap()]));
        assert_eq!(task_types(&["pack".into(), "a b".into()]).unwrap_err().faults[0].path, "types[1]");
        assert_eq!(task_types(&[]).unwrap_err().faults[0].path, "types");
        assert!(task_types(&(0..101).map(|n| format!("t{n}")).collect::<Vec<_>>()).is_err());
        let twice = task_types(&["pack".into(), "ship".into(), "pack".into()]).unwrap_err();
        assert_eq!(twice.faults[0].path, "types[2]");
        assert_eq!(twice.faults[0].message, "\"pack\" stands in types[0] already; name each type once");
        assert_eq!(claim_max(1_000), Ok(1_000));
        assert!(claim_max(0).is_err() && claim_max(1_001).is_err());
    }

    #[test]
    fn only_accepted_results_are_a_success() {
        assert_eq!(accepted(AckStatus::Accepted), Ok(()));
        assert_eq!(accepted(AckStatus::Stale).unwrap_err().code, ErrorCode::StaleToken);
        assert_eq!(accepted(AckStatus::Unknown).unwrap_err().code, ErrorCode::UnknownToken);
        assert_eq!(accepted(AckStatus::Invalid).unwrap_err().code, ErrorCode::InvalidRequest);
    }
}
