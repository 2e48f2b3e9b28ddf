//! The JSON Schema of documents says what the parser does. That good documents match it is checked by the helpers
//! `yaml` and `json`, for every one of these tests.

use super::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::LazyLock;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(json_schema()).unwrap());
static VALIDATOR: LazyLock<jsonschema::Validator> =
    LazyLock::new(|| jsonschema::draft202012::new(&SCHEMA).unwrap());

/// What of a document does not match the schema.
pub(super) fn mismatches(text: &str, format: Format) -> Vec<String> {
    let node = on_deep_stack(|| load::load(text.as_bytes(), format)).unwrap().unwrap();
    let mut json = Vec::new();
    node.write_json(&mut json);
    // Numbers that only we can hold, and values deeper than this reader goes.
    let Ok(value) = serde_json::from_slice::<Value>(&json) else { return Vec::new() };
    VALIDATOR.iter_errors(&value).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

fn keys_at(pointer: &str) -> BTreeSet<&'static str> {
    let Some(Value::Object(map)) = SCHEMA.pointer(pointer) else { panic!("{pointer}") };
    map.keys().map(String::as_str).collect()
}

#[test]
fn the_schema_is_one_by_the_book() {
    assert!(jsonschema::draft202012::meta::is_valid(&SCHEMA));
    assert_eq!(SCHEMA["$schema"], "https://json-schema.org/draft/2020-12/schema");
}

#[test]
fn the_keys_of_the_schema_are_those_of_the_parser() {
    let task = "/$defs/task/properties";
    for (pointer, keys) in [
        ("/properties".to_owned(), keys::DOCUMENT.to_vec()),
        ("/properties/finally/then/properties".to_owned(), keys::FINALLY.to_vec()),
        (task.to_owned(), keys::task()),
        (format!("{task}/workflow/anyOf/1/properties"), keys::WORKFLOW.to_vec()),
        (format!("{task}/wait/properties"), keys::WAIT.to_vec()),
        (format!("{task}/fail/properties"), keys::FAIL.to_vec()),
        (format!("{task}/finish/properties"), keys::FINISH.to_vec()),
        (format!("{task}/repeat/properties"), keys::REPEAT.to_vec()),
        (format!("{task}/concurrency/properties"), keys::CONCURRENCY.to_vec()),
        (format!("{task}/rate/properties"), keys::RATE.to_vec()),
        (format!("{task}/compensate/properties"), keys::COMPENSATE.to_vec()),
        ("/$defs/retry/properties".to_owned(), keys::RETRY.to_vec()),
        ("/$defs/timeout/anyOf/1/properties".to_owned(), keys::TIMEOUT.to_vec()),
    ] {
        assert_eq!(keys_at(&pointer), keys.into_iter().collect(), "{pointer}");
    }
    let required = |value: &Value| value["required"][0].as_str().unwrap().to_owned();
    let kinds: Vec<String> =
        SCHEMA["$defs"]["task"]["oneOf"].as_array().unwrap().iter().map(required).collect();
    assert_eq!(kinds, keys::KINDS);
    let depends = &SCHEMA["$defs"]["task"]["dependentSchemas"];
    for (key, kinds) in keys::SOME {
        let with: Vec<String> = depends[key]["anyOf"].as_array().unwrap().iter().map(required).collect();
        assert_eq!(with, kinds, "{key}");
    }
    assert_eq!(depends.as_object().unwrap().len(), keys::SOME.len() + 1);
}

#[test]
fn every_key_says_what_it_is_for() {
    fn walk(value: &Value, path: &str, silent: &mut Vec<String>) {
        if let Value::Object(map) = value {
            if let Some(Value::Object(properties)) =
                map.get("properties").filter(|_| !path.contains("/$defs/task/then"))
            {
                for (key, property) in properties {
                    let told = property.get("description").is_some()
                        || matches!(key.as_str(), "retry" | "timeout") && property.get("$ref").is_some();
                    if !told {
                        silent.push(format!("{path}/{key}"));
                    }
                }
            }
            for (key, value) in map {
                walk(value, &format!("{path}/{key}"), silent);
            }
        }
    }
    let mut silent = Vec::new();
    walk(&SCHEMA, "", &mut silent);
    assert_eq!(silent, Vec::<String>::new());
}

#[test]
fn examples_match_the_schema() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "yaml") {
            yaml(&std::fs::read_to_string(&path).unwrap());
            seen += 1;
        }
    }
    assert!(seen >= 2);
    yaml(EVERY);
}

/// What both refuse: by structure, where a schema can say it.
#[test]
fn what_the_parser_refuses_by_structure_the_schema_refuses_too() {
    let task = |lines: &str| format!("name: w\ntasks:\n  t:\n{}\n", indented(lines));
    let whole = |lines: &str| format!("name: w\ntasks: {{ t: {{ type: a }} }}\n{lines}\n");
    let mut bad: Vec<String> = [
        "",
        "just text",
        "name: w",
        "tasks: { t: { type: a } }",
        "name: w\ntasks: {}",
        "name: w\ntasks: []",
        "name: w\ntasks: ~",
        "name: a b\ntasks: { t: { type: a } }",
        "name: '${{ input.x }}'\ntasks: { t: { type: a } }",
        "name: w\ntasks: { bad-id: { type: a } }",
        "name: w\ntasks: { finally: { type: a } }",
        "name: w\ntasks: { compensate: { type: a } }",
    ]
    .map(str::to_owned)
    .to_vec();
    bad.extend(
        [
            "taskz: {}",
            "timeout: 30",
            "timeout: 0s",
            "timeout: 1m 30s",
            "fail_fast: 'yes'",
            "tags: { a: 1 }",
            "priority: 101",
            "priority: 1.5",
            "retention: -1d",
            "description: [x]",
            "input: text",
            "finally: {}",
            "finally: ~",
            "finally: { tasks: {} }",
            "finally: { tasks: { n: { type: x } }, timeout: 0s }",
            "finally: { tasks: { n: { type: x } }, output: 1 }",
            "finally: { n: { type: x }, timeout: 5s }",
        ]
        .map(whole),
    );
    bad.extend(
        [
            "needs: []",
            "type: a\nset: 1",
            "type: 5",
            "type: a b",
            "type: a\nneeds: u",
            "type: a\nneeds: ['${{ input.x }}']",
            "type: a\nwhen: never",
            "type: a\nif: 'yes'",
            "type: a\nif: 'x${{ input.a }}'",
            "type: a\nif: 1",
            "type: a\nretry: 3",
            "type: a\nretry: { max_attempts: 0 }",
            "type: a\nretry: { factor: 0.5 }",
            "type: a\nretry: { initial: 1 }",
            "type: a\nretry: { jitter: 2 }",
            "type: a\nretry: { tries: 1 }",
            "type: a\nretry: { non_retryable: [5] }",
            "type: a\nretry: { non_retryable: [''] }",
            "type: a\ntimeout: 5",
            "type: a\ntimeout: '${{ input.x }}'",
            "type: a\ntimeout: { sum: 1s }",
            "type: a\ntimeout: { run: 0s }",
            "type: a\non_error: ignore",
            "type: a\npriority: ~",
            "type: a\nretries: 3",
            "type: a\nconcurrency: {}",
            "type: a\nlabels: ~",
            "type: a\nlabels: [gpu]",
            "type: a\nlabels: { gpu: true }",
            "type: a\nlabels: { gpu: '' }",
            "type: a\nlabels: { 'a b': x }",
            "type: a\nlabels: { gpu: '${{ input.x }}' }",
            "type: a\nlabels: { a: x, b: x, c: x, d: x, e: x, f: x, g: x, h: x, i: x }",
            "type: a\ncompensate: { type: u, labels: { gpu: 1 } }",
            "set: 1\nlabels: { a: x }",
            "workflow: w\nlabels: { a: x }",
            "tasks: { u: { type: a } }\nlabels: { a: x }",
            "type: a\noutput: 1",
            "type: a\nfail_fast: true",
            "type: a\nfor_each: ~",
            "type: a\nfor_each: items",
            "type: a\nmax_parallel: 1",
            "type: a\ntolerate: 1",
            "type: a\nfor_each: []\nmax_parallel: 0",
            "type: a\nfor_each: []\ntolerate: -1",
            "type: a\nfor_each: []\ntolerate: 101%",
            "type: a\nfor_each: []\ntolerate: '5'",
            "type: a\nrepeat: {}",
            "type: a\nrepeat: { max: 0 }",
            "type: a\nrepeat: { max: 1, while: x }",
            "type: a\nrepeat: { max: 1, delay: 5 }",
            "type: a\ncompensate: {}",
            "type: a\ncompensate: { type: u, needs: [] }",
            "tasks: {}",
            "tasks: { u: 5 }",
            "tasks: { u: { type: a } }\ninput: 1",
            "tasks: { u: { type: a } }\ntimeout: { run: 1s }",
            "workflow: ~",
            "workflow: a b",
            "workflow: {}",
            "workflow: { name: a, version: 0 }",
            "workflow: { name: a, detach: 1 }",
            "workflow: { name: a, input: 1 }",
            "wait: {}",
            "wait: 5s",
            "wait: { for: 1s, signal: x }",
            "wait: { for: 5 }",
            "wait: { for: -1s }",
            "wait: { until: tomorrow }",
            "wait: { signal: a b }",
            "wait: { signal: x }\nretry: {}",
            "set: ~",
            "set: 1\ntimeout: 5s",
            "fail: {}",
            "fail: { code: 5 }",
            "fail: { code: '' }",
            "fail: { code: x, message: {} }",
            "finish: ~",
            "finish: { outptu: 1 }",
            "finish: {}\nfor_each: []",
            "finish: {}\nrepeat: { max: 1 }",
            "set: 1\npriority: 1",
            "type: a\nconcurrency: 5",
            "type: a\nconcurrency: {}",
            "type: a\nconcurrency: { key: k }",
            "type: a\nconcurrency: { limit: 1 }",
            "type: a\nconcurrency: { key: '', limit: 1 }",
            "type: a\nconcurrency: { key: 5, limit: 1 }",
            "type: a\nconcurrency: { key: k, limit: 0 }",
            "type: a\nconcurrency: { key: k, limit: 10001 }",
            "type: a\nconcurrency: { key: k, limit: 1, per: 1s }",
            "set: 1\nconcurrency: { key: k, limit: 1 }",
            "wait: { for: 1s }\nconcurrency: { key: k, limit: 1 }",
            "type: a\nrate: { key: k, limit: 1 }",
            "type: a\nrate: { key: k, per: 1s }",
            "type: a\nrate: { key: k, limit: 1, per: 0s }",
            "type: a\nrate: { key: k, limit: 1, per: 5 }",
            "tasks: { x: { type: a } }\nrate: { key: k, limit: 1, per: 1s }",
            "wait: { for: 1s }\nrate: { key: k, limit: 1, per: 1s }",
            "type: a\ncompensate: { type: u, rate: { key: k, limit: 1, per: 1s } }",
        ]
        .map(task),
    );
    for text in bad {
        assert!(parse(text.as_bytes(), Format::Yaml).is_err(), "the parser takes {text}");
        assert!(!mismatches(&text, Format::Yaml).is_empty(), "the schema takes {text}");
    }
}
