//! The OpenAPI document in the repository is the one the code describes.
//!
//! After a change of a route: `UPDATE_OPENAPI=1 cargo test openapi`, and look at what changed.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn openapi_document_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/downbeat.json");
    let described = downbeat::api::openapi_json();
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&path, &described).unwrap();
    }
    let stored = std::fs::read(&path).unwrap_or_default();
    assert!(stored == described, "{} is out of date: UPDATE_OPENAPI=1 cargo test openapi", path.display());
}

#[test]
fn openapi_document_describes_every_call_and_its_errors() {
    let document: serde_json::Value = serde_json::from_slice(&downbeat::api::openapi_json()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let mut names = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{name} is not unique");
            assert!(operation["summary"].is_string(), "{method} {path} has no summary");
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(response["description"].is_string(), "{method} {path} does not describe {status}");
            }
            if path.starts_with("/v1") {
                let error = &operation["responses"]["default"]["content"];
                assert!(error["application/problem+json"].is_object(), "{method} {path} tells no errors");
            }
        }
    }
    assert!(names.contains("startRun") && names.contains("claimTasks") && names.contains("watchRuns"));
}

#[test]
fn openapi_document_has_every_schema_it_refers_to() {
    let text = String::from_utf8(downbeat::api::openapi_json().to_vec()).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let referred: BTreeSet<&str> =
        text.split("\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(referred.contains("Run") && referred.contains("Problem"));
    for name in referred {
        assert!(schemas.contains_key(name), "{name} is not described");
    }
}
