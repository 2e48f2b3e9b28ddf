use super::*;
use proptest::prelude::*;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn canon(json: &str) -> String {
    String::from_utf8(canonical(json.as_bytes()).unwrap()).unwrap()
}

#[test]
fn valid_texts_pass_the_check() {
    for good in [
        "null",
        " true ",
        "-0",
        "0.5e-10",
        "9007199254740993",
        "\"\\ud800\"",
        "\"\\u00e4\\n\"",
        "[]",
        "{}",
        "[[],{\"a\":[1,2,{\"b\":null}]}]",
        "{\"a\":1,\"a\":2}",
        "\r\n[1\t,\n2 ]\n",
        "123456789012345678901234567890.000e999999",
    ] {
        assert_eq!(check(good.as_bytes()), Ok(()), "{good}");
    }
}

#[test]
fn invalid_texts_are_refused_and_the_message_says_where() {
    for bad in [
        "",
        " ",
        "nul",
        "tru",
        "[1,]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{'a':1}",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "--1",
        "NaN",
        "Infinity",
        "\"a",
        "\"\n\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "[1 2]",
        "[1]]",
        "1 2",
        "[1}",
        "{\"a\":1]",
        "{,}",
        "\u{feff}1",
        "[",
        "{\"a\":1,",
        "-",
    ] {
        assert!(check(bad.as_bytes()).is_err(), "{bad:?} must be refused");
    }
    assert_eq!(check(b"[1,\n 2,\n x]").unwrap_err(), "expected a value at line 3, column 2");
    assert_eq!(check(b"[1").unwrap_err(), "expected ',' or ']', but the text ends at line 1, column 3");
    assert_eq!(check(b"\"\xff\"").unwrap_err(), "not UTF-8 at byte 1");
    assert_eq!(
        check("\u{feff}1".as_bytes()).unwrap_err(),
        "a byte order mark stands before the value; leave it out"
    );
}

#[test]
fn nesting_stops_at_its_limit() {
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert_eq!(check(deep(128).as_bytes()), Ok(()));
    assert_eq!(
        check(deep(129).as_bytes()).unwrap_err(),
        "lists and objects are nested deeper than 128 at line 1, column 129"
    );
    assert!(check(deep(500_000).as_bytes()).is_err());
}

#[test]
fn walk_gives_the_bytes_as_they_stand() {
    let json =
        br#" {"a": {"b": [1.0, 9007199254740993, [], {}, null, "x\u0041"]}, "e\u0301": 1, "0": "zero"} "#;
    let at = |steps: &[&str]| walk(json, steps).unwrap().map(text);
    assert_eq!(at(&["a", "b", "0"]), Some("1.0"));
    assert_eq!(at(&["a", "b", "1"]), Some("9007199254740993"));
    assert_eq!(at(&["a", "b", "2"]), Some("[]"));
    assert_eq!(at(&["a", "b", "3"]), Some("{}"));
    assert_eq!(at(&["a", "b", "4"]), Some("null"));
    assert_eq!(at(&["a", "b", "5"]), Some(r#""x\u0041""#));
    assert_eq!(at(&["e\u{301}"]), Some("1"));
    assert_eq!(at(&["0"]), Some("\"zero\""));
    assert_eq!(at(&[]), Some(text(json).trim()));
    for missing in
        [&["a", "b", "6"][..], &["a", "b", "-1"], &["a", "b", "00"], &["a", "c"], &["a", "b", "0", "x"]]
    {
        assert_eq!(at(missing), None, "{missing:?}");
    }
}

#[test]
fn walk_takes_the_last_of_equal_keys() {
    assert_eq!(walk(br#"{"a":{"b":1},"a":{"c":2}}"#, &["a", "b"]).unwrap(), None);
    assert_eq!(walk(br#"{"a":1,"a":2}"#, &["a"]).unwrap(), Some(&b"2"[..]));
}

#[test]
fn many_paths_find_what_single_walks_find() {
    let json = br#"{"a":{"x":1,"y":[10,{"z":true}]},"b":null,"a":{"y":[11,{"z":"last"}]}}"#;
    let wanted: Vec<Vec<String>> = ["", "a", "a.x", "a.y", "a.y.0", "a.y.1.z", "a.y.7", "b", "b.c", "q"]
        .iter()
        .map(|p| p.split('.').filter(|s| !s.is_empty()).map(str::to_owned).collect())
        .collect();
    let mut paths = Paths::default();
    let slots: Vec<usize> = wanted.iter().map(|w| paths.add(w)).collect();
    assert_eq!(paths.add(&wanted[3]), slots[3], "the same path has the same number");
    let found = paths.find(json).unwrap();
    for (steps, slot) in wanted.iter().zip(slots) {
        let single = walk(json, steps).unwrap();
        assert_eq!(found[slot].clone().map(|r| &json[r]), single, "{steps:?}");
    }
}

#[test]
fn numbers_are_equal_by_value_at_any_length() {
    for same in [
        &["1", "1.0", "10e-1", "0.1E1", "1e0", "0.001e+3"][..],
        &["0", "-0", "0.000", "0e99"],
        &["100", "1e2", "1E+02", "100.0"],
        &["9007199254740993", "9007199254740993.0", "90071992547409930e-1"],
    ] {
        for n in same {
            assert_eq!(canon(n), canon(same[0]), "{n}");
        }
    }
    let distinct =
        ["9007199254740993", "9007199254740992", "-1", "1", "1.0000000000000000000001", "1e400", "1e401"];
    for (i, a) in distinct.iter().enumerate() {
        for b in &distinct[i + 1..] {
            assert_ne!(canon(a), canon(b));
        }
    }
}

#[test]
fn canonical_text_has_sorted_keys_and_one_escaping() {
    assert_eq!(canon(r#" { "b" : [ 1 , {} ] , "a" : "\u0041\/\n" } "#), r#"{"a":"A/\n","b":[1,{}]}"#);
    assert_eq!(canon(r#"{"a":1,"a":2}"#), r#"{"a":2}"#);
    assert_eq!(canon(r#"["\uD83D\uDE00","\ud83d x"]"#), "[\"😀\",\"\\ud83d x\"]");
    assert_ne!(canon("[]"), canon("{}"));
    assert!(canonical(b"[1,]").is_err());
}

#[test]
fn digests_keep_parts_apart() {
    assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
    assert_ne!(digest(&[b"ab"]), digest(&[b"ab", b""]));
    assert_eq!(digest(&[b"ab"]), digest(&[b"ab"]));
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(serde_json::Value::from),
        any::<String>().prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..5)
                .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_check_agrees_with_serde_json(bytes in prop::collection::vec(prop::sample::select(
        b"{}[]\",:\\ntfu0123-+.eEalsr \xc3\xa4".to_vec()), 0..12)) {
        prop_assert_eq!(check(&bytes).is_ok(), serde_json::from_slice::<&serde_json::value::RawValue>(&bytes).is_ok());
    }

    #[test]
    fn what_a_string_has_to_be_looked_at_for_is_found_wherever_it_stands(
        bytes in prop::collection::vec(prop_oneof![9 => b' '..=0xff, 1 => 0u8..0x20, 1 => Just(b'"')], 0..40),
        at in 0usize..42,
    ) {
        let special = |b: &u8| matches!(b, b'"' | b'\\' | 0..=0x1f);
        let first = bytes.iter().skip(at).position(special).map(|n| at + n);
        prop_assert_eq!(plain_end(&bytes, at), first.unwrap_or(bytes.len().max(at)));
    }

    #[test]
    fn nothing_panics_on_any_bytes(bytes in any::<Vec<u8>>(), steps in prop::collection::vec("[a0\"]", 0..3)) {
        let _ = (check(&bytes), canonical(&bytes), walk(&bytes, &steps));
    }

    #[test]
    fn canonical_does_not_depend_on_layout_and_is_its_own_canonical(value in any_json()) {
        let one = canonical(&serde_json::to_vec(&value).unwrap()).unwrap();
        let two = canonical(serde_json::to_string_pretty(&value).unwrap().as_bytes()).unwrap();
        prop_assert_eq!(&one, &two);
        prop_assert_eq!(canonical(&one).unwrap(), one);
    }

    #[test]
    fn every_key_of_an_object_can_be_walked_to(map in prop::collection::btree_map(any::<String>(), any_json(), 1..6)) {
        let json = serde_json::to_vec(&map).unwrap();
        for (key, value) in &map {
            let found = walk(&json, &[key]).unwrap().unwrap();
            prop_assert_eq!(found, &serde_json::to_vec(value).unwrap()[..]);
        }
    }
}
