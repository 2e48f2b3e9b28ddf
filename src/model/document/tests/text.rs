//! From text to values: both formats, numbers, keys, marks.

use super::*;

#[test]
fn words_that_only_look_like_booleans_are_text() {
    assert_eq!(
        data(
            "{ country: no, mode: on, ans: yes, on: y, flag: true, n: N, off: Off, t: True, nil: Null, tilde: ~ }"
        ),
        r#"{"ans":"yes","country":"no","flag":true,"mode":"on","n":"N","nil":null,"off":"Off","on":"y","t":true,"tilde":null}"#
    );
    let document = yaml("name: w\ntags: { on: \"no\" }\ntasks: { t: { type: a } }");
    assert_eq!(document.plan.tags["on"], "no");
}

#[test]
fn numbers_keep_their_digits() {
    for (yaml, json) in [
        ("9007199254740993", "9007199254740993"),
        ("18446744073709551615", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1.0", "1.0"),
        ("0.10", "0.10"),
        ("1e400", "1e400"),
        ("1.5E-3", "1.5e-3"),
        ("+5", "5"),
        ("012", "12"),
        ("-00", "-0"),
        (".5", "0.5"),
        ("5.", "5.0"),
        ("0x1F", "31"),
        ("0xFFFFFFFFFFFFFFFF", "18446744073709551615"),
        ("0o17", "15"),
        ("1_000", "\"1_000\""),
        ("1:30", "\"1:30\""),
        ("2024-01-01", "\"2024-01-01\""),
        ("0b11", "\"0b11\""),
        ("-0x1", "\"-0x1\""),
        ("1e", "\"1e\""),
        ("'1.0'", "\"1.0\""),
        ("!!str 5", "\"5\""),
        ("! 5", "\"5\""),
        ("!!int '5'", "5"),
        ("''", "\"\""),
    ] {
        assert_eq!(data(&format!("[{yaml}]")), format!("[{json}]"), "{yaml}");
    }
    has(&faults("name: w\ntasks: { t: { type: a, input: [.inf] } }"), ":2: .inf is no JSON number");
    has(&faults("name: w\ntasks: { t: { type: a, input: [.nan] } }"), ":2: .nan is no JSON number");
    has(&faults("name: w\ntasks: { t: { type: a, input: !x 1 } }"), ":2: the tag \"!x\"");
    let exact = json(r#"{"name":"w","tasks":{"t":{"type":"a","input":[1.0,9007199254740993,1E5]}}}"#);
    assert!(canonical(&exact).contains("[1.0,9007199254740993,1E5]"));
}

#[test]
fn a_key_that_stands_twice_is_refused_in_both_formats() {
    let text = "name: w\ntasks:\n  t:\n    type: a\n    timeout: 5s\n    timeout: 500s\n";
    assert_eq!(faults(text), ["tasks.t.timeout:6: the key \"timeout\" stands here twice; keep one"]);
    let text = r#"{"name":"w","tasks":{"t":{"type":"a","timeout":"5s","timeout":"500s"}}}"#;
    let found = parse(text.as_bytes(), Format::Json).unwrap_err();
    assert_eq!((found.len(), found[0].path.as_str(), found[0].line), (1, "tasks.t.timeout", None));
    assert!(found[0].message.contains("stands here twice"));
    has(
        &task_faults("type: a\ninput:\n  1: x\n  '1': y"),
        "tasks.t.input.1:7: the key \"1\" stands here twice",
    );
    has(
        &task_faults("type: a\ninput: [ { a: 1, \"a\": 2 } ]"),
        "tasks.t.input[0].a:5: the key \"a\" stands here twice",
    );
    let twice = faults("name: w\ntasks:\n  notify: { type: a }\n  b: { type: b }\n  notify: { type: c }\n");
    assert_eq!(twice, ["tasks.notify:5: the key \"notify\" stands here twice; keep one"]);
}

#[test]
fn byte_order_marks_and_line_ends_do_not_change_a_document() {
    let lines = ORDER.replace('\n', "\r\n");
    let plain = yaml(ORDER).canonical;
    assert_eq!(yaml(&lines).canonical, plain);
    assert_eq!(yaml(&format!("\u{feff}{ORDER}")).canonical, plain);
    assert_eq!(yaml(&format!("\u{feff}{lines}")).canonical, plain);
    has(
        &faults(&format!("\u{feff}\u{feff}{ORDER}")),
        ":1: the document begins with more than one byte order mark",
    );
    let text = "{\r\n\"name\":\"w\",\r\n\"tasks\":{\"t\":{\"type\":\"a\"}}}";
    assert_eq!(json(&format!("\u{feff}{text}")).canonical, json(&text.replace('\r', "")).canonical);
    let two = parse(format!("\u{feff}\u{feff}{text}").as_bytes(), Format::Json).unwrap_err();
    assert!(two[0].message.contains("more than one byte order mark"));
    // A mark inside a key is spelled out, so that it does not read like the right key.
    let inner = parse("{\"\u{feff}name\":\"w\"}".as_bytes(), Format::Json).unwrap_err();
    assert!(inner.iter().any(|f| f.message.contains(r#"unknown key "\u{feff}name""#)), "{inner:?}");
    let utf16: Vec<u8> =
        [0xff, 0xfe].into_iter().chain("name: w".encode_utf16().flat_map(u16::to_le_bytes)).collect();
    assert!(parse(&utf16, Format::Yaml).unwrap_err()[0].message.contains("UTF-16"));
    assert_eq!(parse(b"name: w\nx: \xff", Format::Yaml).unwrap_err()[0].line, Some(2));
}

#[test]
fn block_text_has_one_line_end_whatever_the_file_has() {
    let text = "name: w\ntasks:\n  t:\n    type: a\n    input: |\n      one\n      two\n";
    assert_eq!(yaml(text).canonical, yaml(&text.replace('\n', "\r\n")).canonical);
    assert!(canonical(&yaml(text)).contains(r#""one\ntwo\n""#));
}

#[test]
fn text_that_is_no_yaml_or_json_is_one_fault_with_its_place() {
    has(&faults("name: w\ntasks: [\n"), ":2: the document is not valid YAML: unclosed bracket");
    has(&faults("name: w\n\tx: 1\n"), ":1: the document is not valid YAML");
    has(&faults("--- a\n--- b\n"), ":2: the text holds more than one YAML document");
    has(&faults("? [a]\n: b\n"), ":1: a key must be plain text");
    has(&faults("just text"), ":1: must be a map with name");
    let found = parse(b"{\"name\":\n 'w'}", Format::Json).unwrap_err();
    assert_eq!(found[0].message, "the document is not valid JSON: expected a value at line 2, column 2");
    assert!(parse(b"", Format::Json).is_err());
    assert!(
        parse(br#"{"name":"\ud800","tasks":{"t":{"type":"a"}}}"#, Format::Json).unwrap_err()[0]
            .message
            .contains("surrogate")
    );
}

#[test]
fn a_schema_that_is_none_is_refused_at_registration() {
    has(
        &faults("name: w\ninput:\n  type: strnig\ntasks: { t: { type: a } }"),
        "input:3: not a valid JSON Schema at /type",
    );
    has(&faults("name: w\ninput: text\ntasks: { t: { type: a } }"), "input:2: a JSON Schema is an object");
    // Inside a schema nothing is an expression.
    assert!(
        canonical(&yaml("name: w\ninput: { description: '${{ x }}' }\ntasks: { t: { type: a } }"))
            .contains("${{ x }}")
    );
}
