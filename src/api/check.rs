//! What both doors check and fill in before the application is asked, so that REST and gRPC cannot differ.

use super::error::{cut, invalid, invalid_all};
use super::limits::{CLAIM_MAX, CLAIM_TYPES_MAX, LABEL_MAX, TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX};
use crate::app::AppError;
use crate::app::bulk::ITEMS_MAX;
use crate::app::error::invalid_schedule;
use crate::app::view::{ByHand, RunFilter, SchedulePut, StartAt, Which};
use crate::dispatch::message::AckStatus;
use crate::model::error::{ErrorCode, Fault};
use crate::model::event::EventKind;
use crate::model::ids::{RunId, TaskType};
use crate::model::labels::{LABEL_RULE, LABELS_MAX, Labels, is_label_part};
use crate::model::payload::PAYLOAD_MAX;
use crate::model::run::RunStatus;
use crate::model::schedule::{Asked, ScheduleName};
use crate::model::{duration, instant, json};
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

/// Next firings that are told if nothing is said.
pub(crate) const FIRINGS_DEFAULT: u32 = 10;

/// Reads how many next firings are to be told.
pub(crate) fn firings_count(count: u32) -> Result<u32, String> {
    if (1..=100).contains(&count) { Ok(count) } else { Err(format!("{count} is not from 1 to 100")) }
}

/// Checks the definition of a schedule; all faults are told at once.
pub(crate) fn schedule(name: ScheduleName, asked: &Asked) -> Result<SchedulePut, AppError> {
    let input = asked.input.clone().unwrap_or_default();
    if input.len() > PAYLOAD_MAX {
        check_payload("input", &input)?;
    }
    let tags = check_tags(&asked.tags).err().map(|e| e.faults).unwrap_or_default();
    match asked.check() {
        Ok(definition) if tags.is_empty() => {
            Ok(SchedulePut { name, definition, input, paused: asked.paused })
        }
        Ok(_) => Err(invalid_schedule(tags)),
        Err(mut faults) => {
            faults.extend(tags);
            Err(invalid_schedule(faults))
        }
    }
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

/// Reads when a run is to begin: an instant, or `+` and a duration.
pub(crate) fn start_at(text: &str) -> Result<StartAt, String> {
    match text.strip_prefix('+') {
        Some(span) => duration::parse(span).map(StartAt::After),
        None => {
            instant::parse(text).map(StartAt::At).map_err(|e| format!("{e}, or + and a duration: +1h30m"))
        }
    }
}

/// What a call by hand brings, as far as it is given.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    /// JSON text.
    pub(crate) output: Option<Bytes>,
    /// Code and message.
    pub(crate) error: Option<(String, String)>,
    /// JSON text.
    pub(crate) input: Option<Bytes>,
}

/// The names of what can be done by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ActionName)]
pub(crate) enum ActionName {
    /// An open task is skipped; not one that a worker has.
    Skip,
    /// An open task is completed with `output`.
    Complete,
    /// An open task is failed with `error`, unretried.
    Fail,
    /// An ended run begins again from the task, with `input` in place of the evaluated one.
    Rerun,
}

/// Puts together what is done by hand; what does not go with the action is refused.
pub(crate) fn by_hand(action: ActionName, brought: Brought) -> Result<ByHand, AppError> {
    let Brought { output, error, input } = brought;
    let given = [
        ("output", output.is_some(), ActionName::Complete, "complete"),
        ("error", error.is_some(), ActionName::Fail, "fail"),
        ("input", input.is_some(), ActionName::Rerun, "rerun"),
    ];
    let faults = given.into_iter().filter(|(_, given, of, _)| *given && *of != action);
    let faults: Vec<_> = faults
        .map(|(path, _, _, of)| Fault {
            path: path.to_owned(),
            line: None,
            message: format!("goes with the action {of} only"),
        })
        .collect();
    if !faults.is_empty() {
        return Err(invalid_all(faults));
    }
    Ok(match action {
        ActionName::Skip => ByHand::Skip,
        ActionName::Complete => ByHand::Complete { output: output.unwrap_or_default() },
        ActionName::Fail => {
            let (code, message) = error.unwrap_or_default();
            ByHand::Fail { code, message }
        }
        ActionName::Rerun => ByHand::Rerun { input },
    })
}

/// Which runs a call for many is about: ids, or a filter with what belongs to it.
pub(crate) fn which(
    ids: Option<Vec<String>>,
    filter: Option<RunFilter>,
    limit: Option<u32>,
    cursor: Option<String>,
) -> Result<Which, AppError> {
    match (ids, filter) {
        (Some(ids), None) if limit.is_none() && cursor.is_none() => {
            Ok(Which::Ids(ids.iter().map(|id| word("id", id, RunId::new)).collect()))
        }
        (Some(_), None) => Err(invalid("ids", "take neither limit nor cursor; these go with a filter")),
        (None, Some(filter)) => {
            let limit = limit.unwrap_or(ITEMS_MAX as u32);
            if !(1..=ITEMS_MAX as u32).contains(&limit) {
                return Err(invalid("limit", format!("{limit} is not from 1 to {ITEMS_MAX}")));
            }
            Ok(Which::Matching { filter, limit, cursor })
        }
        (None, None) => Err(invalid("ids", "give either ids or a filter")),
        (Some(_), Some(_)) => Err(invalid("filter", "give either ids or a filter, not both")),
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
    if matches!(text, "run.*" | "task.*" | "schedule.*") || EventKind::ALL.iter().any(|k| k.name() == text) {
        return Ok(text.to_owned());
    }
    let names: Vec<_> = EventKind::ALL.iter().map(|k| k.name()).collect();
    Err(format!("{text:?} is no type of event: run.*, task.*, schedule.*, {}", names.join(", ")))
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

/// Reads the labels of a worker, which stand at `path`.
pub(crate) fn labels(path: &str, given: &BTreeMap<String, String>) -> Result<Labels, AppError> {
    let mut faults = Vec::new();
    let mut fault = |path: String, message: String| faults.push(Fault { path, line: None, message });
    if given.len() > LABELS_MAX {
        fault(path.to_owned(), format!("has {} labels; at most {LABELS_MAX} are taken", given.len()));
    }
    for (key, value) in given.iter().take(LABELS_MAX) {
        for (what, part) in [("key", key), ("value", value)] {
            if !is_label_part(part) {
                let message = format!("the {what} of a label {:?} is not valid: {LABEL_RULE}", cut(part, 64));
                fault(format!("{path}.{}", cut(key, 64)), message);
            }
        }
    }
    let pairs = given.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    match Labels::new(pairs).filter(|_| faults.is_empty()) {
        Some(labels) => Ok(labels),
        None => Err(invalid_all(faults)),
    }
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
    use crate::model::time::{Span, Timestamp};

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
    fn a_start_is_an_instant_or_a_span_from_now() {
        assert_eq!(start_at("1970-01-01T00:00:01Z"), Ok(StartAt::At(Timestamp(1_000_000))));
        assert_eq!(start_at("+1h30m"), Ok(StartAt::After(Span::secs(5_400))));
        for bad in ["", "+", "5m", "-5m", "+-5m", "++5m", "+5", "now", "2030-01-01", "1893456000"] {
            assert!(start_at(bad).is_err(), "{bad:?}");
        }
        assert!(start_at("tomorrow").unwrap_err().ends_with(", or + and a duration: +1h30m"));
    }

    #[test]
    fn what_does_not_go_with_an_action_is_refused() {
        let json = || Some(Bytes::from_static(b"1"));
        let all = || Brought { output: json(), error: Some(("c".into(), "m".into())), input: json() };
        let paths = |action| -> Vec<String> {
            by_hand(action, all()).unwrap_err().faults.into_iter().map(|f| f.path).collect()
        };
        assert_eq!(paths(ActionName::Skip), ["output", "error", "input"]);
        assert_eq!(paths(ActionName::Complete), ["error", "input"]);
        assert_eq!(paths(ActionName::Fail), ["output", "input"]);
        assert_eq!(paths(ActionName::Rerun), ["output", "error"]);
        let bare = |action| by_hand(action, Brought::default()).unwrap();
        assert_eq!(bare(ActionName::Skip), ByHand::Skip);
        assert_eq!(bare(ActionName::Complete), ByHand::Complete { output: Bytes::new() });
        let (code, message) = (String::new(), String::new());
        assert_eq!(bare(ActionName::Fail), ByHand::Fail { code, message });
        assert_eq!(bare(ActionName::Rerun), ByHand::Rerun { input: None });
    }

    #[test]
    fn many_runs_are_named_by_ids_or_by_a_filter() {
        let path = |result: Result<Which, AppError>| result.unwrap_err().faults.remove(0).path;
        let filter = || Some(RunFilter::default());
        let ids = || Some(vec!["a".to_owned()]);
        assert_eq!(which(ids(), None, None, None), Ok(Which::Ids(vec![Ok(RunId::new("a").unwrap())])));
        let matching = Which::Matching { filter: RunFilter::default(), limit: 1_000, cursor: None };
        assert_eq!(which(None, filter(), None, None), Ok(matching));
        assert_eq!(path(which(None, None, None, None)), "ids");
        assert_eq!(path(which(ids(), filter(), None, None)), "filter");
        assert_eq!(path(which(ids(), None, Some(1), None)), "ids");
        assert_eq!(path(which(None, filter(), Some(0), None)), "limit");
        assert_eq!(path(which(None, filter(), Some(1_001), None)), "limit");
        let Ok(Which::Ids(ids)) = which(Some(vec!["a b".into()]), None, None, None) else { panic!() };
        assert_eq!(ids[0].clone().unwrap_err().faults[0].path, "id");
    }

    #[test]
    fn labels_of_workers_are_read_and_refused_with_all_faults() {
        let read = |pairs: &[(&str, &str)]| {
            let given = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            labels("labels", &given).map_err(|e| e.faults.into_iter().map(|f| f.path).collect::<Vec<_>>())
        };
        assert_eq!(read(&[]), Ok(Labels::NONE));
        assert_eq!(read(&[("region", "eu"), ("gpu", "true")]).unwrap().as_str(), "gpu=true;region=eu");
        let bad = read(&[("a b", "c"), ("d", ""), ("e", "f")]);
        assert_eq!(bad, Err(vec!["labels.a b".to_owned(), "labels.d".to_owned()]));
        let many: Vec<String> = (0..9).map(|n| format!("k{n}")).collect();
        let many: Vec<_> = many.iter().map(|k| (k.as_str(), "v")).collect();
        assert_eq!(read(&many), Err(vec!["labels".to_owned()]));
        assert!(read(&many[1..]).is_ok());
    }

    #[test]
    fn names_of_workers_are_bounded() {
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
