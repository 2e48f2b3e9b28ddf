//! What serde says of a body that does not fit, in the words of those who wrote it.
//!
//! Takes the message of a `serde_json::Error`; what is not known here is passed on without its place in the text,
//! since the path of the fault tells that. To add a type of field: a line in [`wanted`].

/// What is wrong with one value of a body, without the names of our types.
pub(super) fn plain(message: &str) -> String {
    let message = without_place(message);
    if let Some(rest) = message.strip_prefix("invalid type: ").or(message.strip_prefix("invalid value: "))
        && let Some((found, expected)) = rest.rsplit_once(", expected ")
    {
        return format!("is {}; it must be {}", found_as(found), wanted(expected));
    }
    if message.starts_with("missing field `") {
        return "is missing".to_owned();
    }
    if message.starts_with("duplicate field `") {
        return "is given more than once".to_owned();
    }
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let known = rest.split_once("`, expected ").map(|(_, known)| listed(known));
        return known.map_or_else(
            || "is not known here; nothing is".to_owned(),
            |known| format!("is not known here; known are {known}"),
        );
    }
    if let Some((found, known)) =
        message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once("`, expected "))
    {
        return format!("is {found:?}; it must be one of {}", listed(known));
    }
    if message == "expected value" {
        // The text is JSON, so this is a choice that is no text.
        return "must be text in double quotes".to_owned();
    }
    if message == "number out of range" {
        return "is a number that is too large".to_owned();
    }
    message.to_owned()
}

fn without_place(message: &str) -> &str {
    message.rsplit_once(" at line ").map_or(message, |(says, _)| says)
}

/// `one of `a`, `b`` and `` `a` or `b` `` as `a, b`.
fn listed(names: &str) -> String {
    names.split('`').skip(1).step_by(2).collect::<Vec<_>>().join(", ")
}

/// `string "1"`, ``integer `-1` ``, `map` as people call them.
fn found_as(found: &str) -> String {
    let (kind, value) = found.split_once(' ').map_or((found, ""), |(kind, value)| (kind, value));
    match kind {
        "string" => format!("the text {value}"),
        "integer" | "boolean" => value.trim_matches('`').to_owned(),
        "floating" => value.trim_start_matches("point ").trim_matches('`').to_owned(),
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" => "null".to_owned(),
        _ => found.to_owned(),
    }
}

fn wanted(expected: &str) -> String {
    match expected {
        "u8" => whole(0, u8::MAX),
        "u16" => whole(0, u16::MAX),
        "u32" => whole(0, u32::MAX),
        "u64" => whole(0, u64::MAX),
        "i32" => whole(i32::MIN, i32::MAX),
        "i64" => whole(i64::MIN, i64::MAX),
        "a string" | "a borrowed string" | "string or map" => "text in double quotes".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        "option" => "a value or null".to_owned(),
        other if other.starts_with("struct ") => "an object".to_owned(),
        other if other.starts_with("enum ") => "text in double quotes".to_owned(),
        other => other.to_owned(),
    }
}

fn whole(from: impl std::fmt::Display, to: impl std::fmt::Display) -> String {
    format!("a whole number from {from} to {to}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        One,
        Other,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only what does not fit is looked at")]
    struct Example {
        count: Option<u32>,
        level: Option<i32>,
        name: Option<String>,
        flag: Option<bool>,
        list: Option<Vec<String>>,
        tags: Option<BTreeMap<String, String>>,
        choice: Option<Choice>,
    }

    #[test]
    fn every_kind_of_fault_is_told_without_the_names_of_our_types() {
        let u32_wanted = "it must be a whole number from 0 to 4294967295";
        for (text, says) in [
            (r#"{"count":"1"}"#, format!("is the text \"1\"; {u32_wanted}")),
            (r#"{"count":-1}"#, format!("is -1; {u32_wanted}")),
            (r#"{"count":1.5}"#, format!("is 1.5; {u32_wanted}")),
            (r#"{"count":4294967296}"#, format!("is 4294967296; {u32_wanted}")),
            (r#"{"count":true}"#, format!("is true; {u32_wanted}")),
            (r#"{"count":{}}"#, format!("is an object; {u32_wanted}")),
            (r#"{"count":[]}"#, format!("is a list; {u32_wanted}")),
            (r#"{"count":1e999}"#, "is a number that is too large".into()),
            (
                r#"{"level":"x, expected y"}"#,
                "is the text \"x, expected y\"; it must be a whole number from -2147483648 to 2147483647"
                    .into(),
            ),
            (r#"{"name":1}"#, "is 1; it must be text in double quotes".into()),
            (r#"{"flag":"yes"}"#, "is the text \"yes\"; it must be true or false".into()),
            (r#"{"list":"a"}"#, "is the text \"a\"; it must be a list".into()),
            (r#"{"list":[null]}"#, "is null; it must be text in double quotes".into()),
            (r#"{"tags":[]}"#, "is a list; it must be an object".into()),
            (r#"{"choice":"both"}"#, "is \"both\"; it must be one of one, other".into()),
            (r#"{"choice":7}"#, "must be text in double quotes".into()),
            (r#"{"name":"a","name":"b"}"#, "is given more than once".into()),
            (
                r#"{"nmae":"a"}"#,
                "is not known here; known are count, level, name, flag, list, tags, choice".into(),
            ),
        ] {
            let error = serde_json::from_str::<Example>(text).unwrap_err();
            assert_eq!(plain(&error.to_string()), says, "{text}: {error}");
        }
    }

    #[test]
    fn a_missing_field_is_missing() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "it is missing")]
        struct Needs {
            workflow: String,
        }
        let error = serde_json::from_str::<Needs>("{}").unwrap_err();
        assert_eq!(plain(&error.to_string()), "is missing");
    }
}
