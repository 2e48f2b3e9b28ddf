#![allow(clippy::format_collect, reason = "documents of many lines read best like this")]

use super::*;
use crate::model::document::{Kind, Node};
use crate::model::error::Fault;
use proptest::prelude::*;

/// Tasks 0 `a`, 1 `b`, 2 `c`; the last is not upstream.
struct Known;

impl Names for Known {
    fn task(&self, id: &str) -> Result<u32, String> {
        match id {
            "a" => Ok(0),
            "b" => Ok(1),
            "c" => Err("task 'c' is not upstream".to_owned()),
            _ => Err(format!("there is no task '{id}'")),
        }
    }

    fn place(&self) -> Place {
        Place::default()
    }
}

#[derive(Default)]
struct World {
    input: String,
    a: String,
}

impl Scope for World {
    fn input(&self) -> &[u8] {
        self.input.as_bytes()
    }
    fn task(&self, index: u32) -> TaskFacts<'_> {
        match index {
            0 => TaskFacts { status: "completed", output: self.a.as_bytes(), error: None },
            _ => TaskFacts {
                status: "failed",
                output: b"null",
                error: Some(("card_declined", "no \"funds\"")),
            },
        }
    }
    fn item(&self) -> (&[u8], u32) {
        (br#"{"sku":"a-1","n":1.0}"#, 3)
    }
    fn iteration(&self) -> super::LoopFacts<'_> {
        super::LoopFacts { index: 2, output: br#"{"done":false}"#, previous: br"[9007199254740993]" }
    }
    fn run(&self) -> Bytes {
        Bytes::from_static(br#"{"id":"r-1","workflow":"order","version":3,"try":1,"created_at":"2026-11-30T18:31:59.000123Z","tags":{"team":"x"},"priority":-5}"#)
    }
}

fn text(text: &str) -> Node {
    Node { line: 7, kind: Kind::String(text.to_owned()) }
}

fn compile_node(node: &Node) -> Result<Template, Vec<Fault>> {
    on_deep_stack(|| {
        let mut faults = Vec::new();
        let template = Template::compile(node, "t", &Known, &mut faults);
        if faults.is_empty() { Ok(template) } else { Err(faults) }
    })
    .unwrap()
}

fn compile(source: &str) -> Result<Template, Vec<Fault>> {
    compile_node(&text(source))
}

/// Renders `source` over an input.
fn render(source: &str, input: &str) -> Result<String, ExprError> {
    let template = compile(source).unwrap_or_else(|f| panic!("{source}: {f:?}"));
    let world = World { input: input.to_owned(), a: r#"{"total":12,"list":[{"p":1},{"p":2}]}"#.to_owned() };
    template.render(&world, "place").map(|b| String::from_utf8(b.to_vec()).unwrap())
}

fn ok(source: &str, input: &str) -> String {
    render(source, input).unwrap_or_else(|e| panic!("{source}: {e}"))
}

fn code(source: &str, input: &str) -> &'static str {
    match render(source, input) {
        Err(e) => e.code,
        Ok(value) => panic!("{source} gives {value}"),
    }
}

fn refusal(source: &str) -> String {
    match compile(source) {
        Ok(_) => panic!("{source} is taken"),
        Err(faults) => faults.iter().map(|f| f.message.as_str()).collect::<Vec<_>>().join("; "),
    }
}

#[test]
fn templates_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<Template>();
    shared::<InputSchema>();
}

#[test]
fn a_plain_path_copies_the_bytes_it_points_at() {
    let input = r#"{"n":9007199254740993,"f":1.0,"l":[],"o":{},"nn":[[]],"m":{"k":[]},"z":null,"e":1e400,
        "s":"a\u0041\/","sp": { "b" : 1, "a":2 } }"#;
    for (path, expected) in [
        ("n", "9007199254740993"),
        ("f", "1.0"),
        ("l", "[]"),
        ("o", "{}"),
        ("nn", "[[]]"),
        ("m", r#"{"k":[]}"#),
        ("z", "null"),
        ("e", "1e400"),
        ("s", r#""a\u0041\/""#),
        ("sp", r#"{ "b" : 1, "a":2 }"#),
    ] {
        assert_eq!(ok(&format!("${{{{ input.{path} }}}}"), input), expected);
    }
    assert_eq!(ok("${{input}}", input), input);
    assert_eq!(ok("${{ input['m'].k }}", input), "[]");
    assert_eq!(ok("${{ input.nn[0] }}", input), "[]");
    assert_eq!(ok("${{ input.nn.0 }}", input), "[]");
    assert_eq!(ok("${{ input[\"m\"][\"k\"] }}", input), "[]");
}

#[test]
fn integers_beyond_2_to_53_survive_paths_text_and_arithmetic() {
    for n in ["9007199254740993", "3544790567247868102", "18446744073709551615", "-9223372036854775808"] {
        let input = format!("{{\"n\":{n}}}");
        assert_eq!(ok("${{ input.n }}", &input), n);
        assert_eq!(ok("n=${{ input.n }}", &input), format!("\"n={n}\""));
        assert_eq!(ok("${{ input.n + 0 }}", &input), n);
        assert_eq!(ok("${{ [input.n] }}", &input), format!("[{n}]"));
        assert_eq!(ok("${{ input.n | string }}", &input), format!("\"{n}\""));
    }
    assert_eq!(ok("${{ input.n + 1 }}", r#"{"n":9007199254740992}"#), "9007199254740993");
    assert_eq!(ok("${{ input.n * 1000 }}", r#"{"n":18446744073709551615}"#), "18446744073709551615000");
}

#[test]
fn a_number_that_would_be_rounded_is_refused_by_computed_expressions_only() {
    let wide = "999999999999999999999999999999999999999999";
    for n in [wide, "0.12345678901234567890123", "1e400", "123456789012345678.5"] {
        let input = format!("{{\"n\":{n}}}");
        assert_eq!(ok("${{ input.n }}", &input), n);
        assert_eq!(ok("${{ input.n | default(1) }}", &input), n);
        assert_eq!(code("${{ input.n * 2 }}", &input), "number_out_of_range");
        assert!(render("${{ input.n * 2 }}", &input).unwrap_err().message.contains("input.n"));
    }
    assert_eq!(ok("${{ input.n * 2 }}", r#"{"n":0.1}"#), "0.2");
    assert_eq!(ok("${{ input.n + 0 }}", r#"{"n":1.50}"#), "1.5");
    assert_eq!(ok("${{ input.n * 1 }}", r#"{"n":1.0}"#), "1.0");
    assert_eq!(code("${{ 1e308 * 10 }}", "{}"), "number_out_of_range");
}

#[test]
fn null_missing_and_empty_are_three_things() {
    assert_eq!(ok("${{ input.a }}", r#"{"a":null}"#), "null");
    assert_eq!(ok("x-${{ input.a }}-y", r#"{"a":""}"#), r#""x--y""#);
    assert_eq!(code("x-${{ input.a }}-y", r#"{"a":null}"#), "expression_failed");
    assert_eq!(code("x-${{ input.a }}-y", r#"{"a":[]}"#), "expression_failed");
    assert_eq!(code("x-${{ input.a }}-y", r#"{"a":{}}"#), "expression_failed");
    for source in [
        "${{ input.a }}",
        "x-${{ input.a }}-y",
        "${{ input.a.b.c }}",
        "${{ input.a == 1 }}",
        "${{ not input.a }}",
    ] {
        let error = render(source, "{}").unwrap_err();
        assert_eq!(error.code, "missing_value", "{source}");
        assert!(error.message.contains("place") && error.message.contains("input.a"), "{error}");
    }
    assert_eq!(code("${{ input.a.b }}", r#"{"a":null}"#), "missing_value");
    assert_eq!(code("${{ input.a.b }}", r#"{"a":"text"}"#), "missing_value");
    assert_eq!(code("${{ input.a }}", "null"), "missing_value");
    assert_eq!(code("${{ input.a }}", ""), "missing_value");
}

#[test]
fn default_covers_missing_at_any_depth_and_null() {
    for input in
        ["{}", r#"{"a":null}"#, r#"{"a":{}}"#, r#"{"a":{"b":null}}"#, r#"{"a":"x"}"#, r#"{"a":[]}"#, "null"]
    {
        assert_eq!(ok("${{ input.a.b | default(5) }}", input), "5", "{input}");
        assert_eq!(ok("${{ input.a.b|d('x') }}", input), "\"x\"", "{input}");
        assert_eq!(ok("${{ (input.a.b | default(5)) + 1 }}", input), "6", "{input}");
        assert_eq!(ok("${{ (input.a.b) | default(5) }}", input), "5", "{input}");
        assert_eq!(ok("${{ input.a.b | default(run.version) }}", input), "3", "{input}");
        assert_eq!(ok("${{ input.a.b | default(input.c | default([])) }}", input), "[]", "{input}");
        assert_eq!(ok("<${{ input.a.b | default('-') }}>", input), "\"<->\"", "{input}");
        assert_eq!(ok("${{ input.a.b[run.version].c | default(5) }}", input), "5", "{input}");
    }
    assert_eq!(ok("${{ input.a.b | default(5) }}", r#"{"a":{"b":1.0}}"#), "1.0");
    assert_eq!(ok("${{ input.a.b | default(5) }}", r#"{"a":{"b":false}}"#), "false");
    assert_eq!(ok("${{ input.a | default }}", "{}"), "\"\"");
    assert_eq!(code("${{ input.a | default(input.b) }}", "{}"), "missing_value");
    assert_eq!(code("${{ input.a | upper | default('x') }}", "{}"), "missing_value");
}

#[test]
fn strictness_holds_everywhere_but_before_default_and_defined() {
    assert_eq!(ok("${{ input.a is defined }}", "{}"), "false");
    assert_eq!(ok("${{ input.a is not defined }}", "{}"), "true");
    assert_eq!(ok("${{ input.a is defined and input.a > 1 }}", "{}"), "false");
    assert_eq!(ok("${{ input.a if input.a is defined else 'no' }}", "{}"), "\"no\"");
    assert_eq!(code("${{ input.a is none }}", "{}"), "missing_value");
    assert_eq!(code("${{ input.l[run.version] }}", r#"{"l":[1]}"#), "missing_value");
    assert!(
        render("${{ input.l[run.version].x }}", r#"{"l":[1]}"#)
            .unwrap_err()
            .message
            .contains("input.l[3] is missing")
    );
    assert_eq!(code("${{ input.a ~ 'x' }}", "{}"), "missing_value");
    assert_eq!(code("${{ [input.a] }}", "{}"), "missing_value");
    assert_eq!(code("${{ 1 if false }}", "{}"), "expression_failed");
    assert_eq!(code("${{ [] | first }}", "{}"), "expression_failed");
    assert_eq!(code("${{ ([] | first) == 1 }}", "{}"), "expression_failed");
    assert_eq!(code("${{ {'a': 1}.b == 1 }}", "{}"), "expression_failed");
    // What is not reached is not missed.
    assert_eq!(ok("${{ 1 if true else input.a }}", "{}"), "1");
    assert_eq!(ok("${{ true or input.a }}", "{}"), "true");
}

#[test]
fn data_is_never_expanded_again() {
    for data in
        ["Pool$1.run", "$HOME", "$$", "${{ input.secret }}", "$${{ x }}", "{{ 1 }}", "{% if %}", "a\"b\n\\c"]
    {
        let json = serde_json::to_string(data).unwrap();
        let input = format!("{{\"v\":{json},\"secret\":\"s3\"}}");
        assert_eq!(ok("${{ input.v }}", &input), json);
        let inside: String =
            serde_json::from_str(&ok("<${{ input.v }}|${{ input.v ~ '' }}>", &input)).unwrap();
        assert_eq!(inside, format!("<{data}|{data}>"));
        // JSON written by hand as text: tojson keeps it JSON.
        let outer: String = serde_json::from_str(&ok("{\"q\": ${{ input.v | tojson }}}", &input)).unwrap();
        let inner: serde_json::Value = serde_json::from_str(&outer).unwrap();
        assert_eq!(inner["q"], data);
    }
    assert_eq!(ok("$${{ input.v }}", "{}"), r#""${{ input.v }}""#);
}

#[test]
fn text_takes_text_numbers_and_booleans() {
    let input = r#"{"s":"ä\n","n":1.50,"b":true}"#;
    assert_eq!(ok("${{ input.s }}/${{ input.n }}/${{ input.b }}", input), r#""ä\n/1.50/true""#);
    assert_eq!(ok("${{ 1 + 1 }} ${{ 1 / 2 }} ${{ 1 == 1 }} ${{ 'q\"' }}", input), r#""2 0.5 true q\"""#);
    assert_eq!(code("x${{ none }}", input), "expression_failed");
    assert_eq!(code("x${{ [1] }}", input), "expression_failed");
}

#[test]
fn tasks_and_run_are_seen() {
    assert_eq!(ok("${{ tasks.a.output.total }}", "{}"), "12");
    assert_eq!(ok("${{ tasks.a.output.list[1].p }}", "{}"), "2");
    assert_eq!(ok("${{ tasks['a'].output.list | map(attribute='p') | sum }}", "{}"), "3");
    assert_eq!(ok("${{ tasks.a.status }}", "{}"), "\"completed\"");
    assert_eq!(ok("${{ tasks.a.error }}", "{}"), "null");
    assert_eq!(ok("${{ tasks.b.error.code == 'card_declined' }}", "{}"), "true");
    assert_eq!(ok("${{ tasks.b.error }}", "{}"), r#"{"code":"card_declined","message":"no \"funds\""}"#);
    assert_eq!(ok("${{ tasks.b.output }}", "{}"), "null");
    assert_eq!(code("${{ tasks.b.output.x }}", "{}"), "missing_value");
    assert_eq!(code("${{ tasks.a.error.code }}", "{}"), "missing_value");
    assert_eq!(ok("${{ tasks.a.error.code | default('none') }}", "{}"), "\"none\"");
    assert_eq!(ok("${{ run.id }} ${{ run.tags.team }} ${{ run.try + 1 }}", "{}"), r#""r-1 x 2""#);
    assert_eq!(ok("${{ run.version }}", "{}"), "3");
}

#[test]
fn items_and_iterations_are_seen_to_the_byte() {
    /// Where everything is seen.
    struct Inside;
    impl Names for Inside {
        fn task(&self, id: &str) -> Result<u32, String> {
            Known.task(id)
        }
        fn place(&self) -> Place {
            Place { item: true, repeat: true, ended: true, finally: true }
        }
    }
    let compile = |source: &str| {
        let mut faults = Vec::new();
        let template = on_deep_stack(|| Template::compile(&text(source), "t", &Inside, &mut faults)).unwrap();
        assert_eq!(faults, [], "{source}");
        template
    };
    for (source, expected, root) in [
        ("${{ item }}", r#"{"sku":"a-1","n":1.0}"#, Root::Item),
        ("${{ item.n }}", "1.0", Root::Item),
        ("${{ index }}", "3", Root::Index),
        ("${{ index * 2 }}", "6", Root::Index),
        ("${{ loop.index }}", "2", Root::LoopIndex),
        ("${{ loop.output.done }}", "false", Root::LoopOutput),
        ("${{ loop.previous[0] }}", "9007199254740993", Root::LoopPrevious),
        ("n${{ loop.previous[0] }}", "\"n9007199254740993\"", Root::LoopPrevious),
        ("${{ loop.previous.x | default(item.sku) == 'a-1' }}", "true", Root::Item),
    ] {
        let template = compile(source);
        assert_eq!(template.roots()[0], root, "{source}");
        assert_eq!(template.render(&World::default(), "here").unwrap(), expected, "{source}");
    }
    assert_eq!(compile("${{ item.a[0] }}").as_path().unwrap().1, ["a", "0"]);
    assert_eq!(compile("${{ loop.previous }}").as_path(), Some((Root::LoopPrevious, &[][..])));
    assert!(compile("${{ index }}").as_path().is_none() && compile("${{ run.status }}").as_path().is_none());
    let error = compile("${{ item.price }}").render(&World::default(), "here").unwrap_err();
    assert!(error.message.starts_with("here: item.price is missing"), "{error}");
    assert_eq!(compile("a-${{ item.sku }}-$${{ x").source(), "\"a-${{ item.sku }}-${{ x\"");
}

#[test]
fn roots_are_exactly_what_is_read() {
    let roots = |source: &str| compile(source).unwrap().roots().to_vec();
    assert_eq!(roots("plain"), []);
    assert_eq!(roots("${{ 1 + 1 }}"), []);
    assert_eq!(roots("${{ input.a }}"), [Root::Input]);
    assert_eq!(roots("${{ tasks.b.status == 'failed' }}"), [Root::Facts(1)]);
    assert_eq!(
        roots("${{ tasks.b.error.code }}-${{ tasks.a.output.x }}-${{ input.a + input.b }}-${{ run.id }}"),
        [Root::Input, Root::Output(0), Root::Facts(1), Root::Run]
    );
    assert_eq!(roots("${{ 'input.a ~ tasks.a.output' }}"), []);
}

#[test]
fn a_whole_path_into_a_payload_is_told_as_such() {
    let path = |source: &str| compile(source).unwrap().as_path().map(|(r, s)| (r, s.join("/")));
    assert_eq!(path("${{ input }}"), Some((Root::Input, String::new())));
    assert_eq!(path("${{ tasks.b.output.x['y z'][0] }}"), Some((Root::Output(1), "x/y z/0".to_owned())));
    for none in [
        "${{ input.a }} ",
        "x",
        "${{ input.a + 1 }}",
        "${{ run.id }}",
        "${{ tasks.b.status }}",
        "${{ input.a | d(1) }}",
    ] {
        assert_eq!(path(none), None, "{none}");
    }
}

#[test]
fn names_are_checked_at_registration() {
    for (source, why) in [
        ("${{ inptu.a }}", "did you mean 'input'"),
        ("${{ foo }}", "there is no 'foo'"),
        ("${{ tasks }}", "name a task"),
        ("${{ tasks.a }}", "tasks.a.output"),
        ("${{ tasks.a.outptu }}", "did you mean 'output'"),
        ("${{ tasks.a.status.x }}", "is text"),
        ("${{ tasks.a.error.stack }}", "code and message"),
        ("${{ tasks.c.output }}", "not upstream"),
        ("${{ tasks.zz.output }}", "no task 'zz'"),
        ("${{ tasks[input.x].output }}", "name a task"),
        ("${{ run.idd }}", "did you mean 'id'"),
        ("${{ item.sku }}", "'item' is seen under for_each only"),
        ("${{ index }}", "'index' is seen under for_each only"),
        ("${{ loop.index }}", "'loop' is seen under repeat only"),
        ("${{ run.status }}", "run.status is seen in 'finally' only"),
        ("${{ input.a | uper }}", "did you mean 'upper'"),
        ("${{ input.a | safe }}", "no filter 'safe'"),
        ("${{ input.a is defind }}", "did you mean 'defined'"),
        ("${{ rang(3) }}", "did you mean 'range'"),
        ("${{ debug() }}", "no function 'debug'"),
        ("${{ input.a() }}", "no function 'a'"),
        ("${{ input() }}", "no function 'input'"),
        ("${{ (input.a)() }}", "x"),
        ("${{ _v0 }}", "there is no '_v0'"),
        ("${{ _get('x', input) }}", "no function '_get'"),
        ("${{ input. }}", "expression"),
        ("${{ 1 + }}", "not a valid expression"),
        ("${{ input.a input.b }}", "not a valid expression"),
        ("${{ [1, 2 }}", "not closed"),
        ("${{ for x in y }}", "there is no 'for'"),
        ("${{ 1 }} ${{ 2 +* }}", "not a valid expression"),
    ] {
        if why == "x" {
            // Only known to fail when it runs.
            assert_eq!(code(source, r#"{"a":1}"#), "expression_failed");
            continue;
        }
        assert!(refusal(source).contains(why), "{source}: {}", refusal(source));
    }
    let faults = compile("${{ foo + bar + tasks.c.output }}").unwrap_err();
    assert_eq!(faults.len(), 3, "all in one answer: {faults:?}");
    assert!(faults.iter().all(|f| f.line == Some(7) && f.path == "t"));
}

#[test]
fn every_listed_filter_test_and_function_exists() {
    assert_eq!(program::missing_builtins(), Vec::<String>::new());
}

#[test]
fn literal_values_are_written_once_with_sorted_keys() {
    let node = crate::model::document::test_node(
        r#"{"z":[1.0,9007199254740993,null,true,{}],"a":"pre ${{ input.x }} post","m":{"k":"${{ input }}"},"$${{k":1}"#,
    );
    let template = compile_node(&node).unwrap();
    let world = World { input: r#"{"x":1}"#.to_owned(), ..World::default() };
    assert_eq!(
        template.render(&world, "place").unwrap(),
        r#"{"${{k":1,"a":"pre 1 post","m":{"k":{"x":1}},"z":[1.0,9007199254740993,null,true,{}]}"#
    );
    let node = crate::model::document::test_node(r#"{"a":{"${{ input.x }}":1},"b":["${{ foo }}"]}"#);
    let paths: Vec<String> = compile_node(&node).unwrap_err().into_iter().map(|f| f.path).collect();
    assert_eq!(paths, [r#"t.a["${{ input.x }}"]"#, "t.b[0]"]);
}

#[test]
fn values_over_their_limits_are_refused() {
    let big = format!("{{\"s\":\"{}\"}}", "x".repeat(600_000));
    assert_eq!(ok("${{ input.s }}", &big).len(), 600_002);
    let error = render("${{ input.s }}${{ input.s }}", &big).unwrap_err();
    assert_eq!(error.code, "value_too_large");
    assert!(error.message.contains("1048576") && error.message.contains("120000"), "{error}");
    assert_eq!(code("${{ input.s ~ input.s }}", &big), "value_too_large");
    let deep = format!("{{\"d\":{}{}}}", "[".repeat(127), "]".repeat(127));
    assert!(render("${{ input.d }}", &deep).is_ok());
    let node = crate::model::document::test_node(r#"[["${{ input.d }}"]]"#);
    let world = World { input: deep.clone(), ..World::default() };
    assert_eq!(compile_node(&node).unwrap().render(&world, "p").unwrap_err().code, "value_too_deep");
    assert_eq!(code("${{ [[input.d]] }}", &deep), "value_too_deep");
    let many: String = (0..300).map(|n| format!("${{{{ {n} + 1 }}}}")).collect();
    assert!(refusal(&many).contains("300 computed expressions"));
}

/// Everything here is at most 4 KiB and must neither end the process nor run long, on an ordinary stack.
#[test]
fn hostile_expressions_are_harmless() {
    let fill = |part: &str, last: &str| {
        let n = (lex::MAX_EXPRESSION - last.len() - 2) / part.len();
        format!("${{{{{}{last}}}}}", part.repeat(n))
    };
    let wrap = |open: &str, inner: &str, close: &str| {
        let n = (lex::MAX_EXPRESSION - inner.len()) / (open.len() + close.len());
        format!("${{{{{}{inner}{}}}}}", open.repeat(n), close.repeat(n))
    };
    let x = "input.x";
    let sources: Vec<String> = vec![
        fill("-", x),
        fill("- ", "1"),
        fill("not ", x),
        fill("1+", "1"),
        fill("x+", x),
        fill("input.x+", x),
        fill("input.x~", x),
        fill("1**", "1"),
        fill("2**", "2"),
        fill("1<", "1"),
        fill("1 if 1 else ", "1"),
        fill("true and ", x),
        fill("'a' ", "'b'"),
        fill("input.", "x"),
        format!("${{{{{x}{}}}}}", ".x".repeat(2000)),
        format!("${{{{{x}{}}}}}", "()".repeat(2000)),
        format!("${{{{range{}}}}}", "(1)".repeat(1300)),
        format!("${{{{{x}{}}}}}", "[0]".repeat(1300)),
        format!("${{{{{x}{}}}}}", "[0:]".repeat(1000)),
        format!("${{{{{x}{}}}}}", "[run.try]".repeat(450)),
        format!("${{{{{x}{}}}}}", "|list".repeat(800)),
        format!("${{{{{x}{}}}}}", "|batch(1)".repeat(450)),
        format!("${{{{{x}{}}}}}", "|select".repeat(580)),
        format!("${{{{{x}{}}}}}", "|map('list')".repeat(330)),
        format!("${{{{{x}{}}}}}", "|chain([1])".repeat(350)),
        format!("${{{{{x}{}}}}}", "|zip([1])".repeat(400)),
        format!("${{{{{x}{}}}}}", "|reverse".repeat(500)),
        format!("${{{{{x}{}}}}}", "|items".repeat(650)),
        format!("${{{{{x}{}}}}}", "|list|tojson".repeat(330)),
        format!("${{{{{x}{}}}}}", " is defined".repeat(370)),
        format!("${{{{[{x}]{}}}}}", "*9".repeat(1900)),
        format!("${{{{'a'{}}}}}", "*9".repeat(1900)),
        wrap("(", x, ")"),
        wrap("[", x, "]"),
        wrap("{'a':", x, "}"),
        wrap("input[", "0", "]"),
        wrap("range(", "1", ")"),
        wrap("dict(a=", "1", ")"),
        wrap("input.x|default(", "1", ")"),
        wrap("1|default(", "1", ")"),
        "${{ 'a' * 1000000000000 }}".to_owned(),
        "${{ [1] * 1000000000 }}".to_owned(),
        "${{ range(1000000000) }}".to_owned(),
        "${{ range(100000) | map('string') | join | length }}".to_owned(),
        "${{ '%1000000000d' | format(1) }}".to_owned(),
        "${{ '%1000000d' | format(1) | length }}".to_owned(),
        "${{ '%.1000000000f' | format(1.5) }}".to_owned(),
        "${{ 'x\\n' | indent(1000000000, true) }}".to_owned(),
        "${{ 1.5 | round(1000000000) }}".to_owned(),
        "${{ 9 ** 9 ** 9 ** 9 }}".to_owned(),
        "${{ 'x' | replace('', input.x) }}".to_owned(),
        "${{ [1] | batch(1000000000, 'x') | list }}".to_owned(),
        "${{ [1] | slice(1000000000) | list }}".to_owned(),
        "${{ input.x[::-9223372036854775808] }}".to_owned(),
        "${{ input.x[-9223372036854775808] }}".to_owned(),
        "${{ [1,2][-9223372036854775808:] }}".to_owned(),
        "${{ -9223372036854775808 // -1 }}".to_owned(),
        "${{ -170141183460469231731687303715884105728 // -1 }}".to_owned(),
        "${{ 1 % 0 }}".to_owned(),
        "${{ 1 // 0 }}".to_owned(),
        "${{ 1 / 0 }}".to_owned(),
    ];
    let templates: Vec<_> = sources.iter().filter_map(|s| Some((s.clone(), compile(s).ok()?))).collect();
    assert!(templates.len() > 40, "most of them compile, or this shows nothing");
    // A quarter of what any thread has that renders.
    let small = std::thread::Builder::new().stack_size(512 << 10);
    let rendering = small.spawn(move || {
        let mut values = 0;
        for input in [r#"{"x":"some text"}"#, r#"{"x":[[[1]],[2]]}"#, r#"{"x":{"x":{"x":1}}}"#, r#"{"x":3}"#]
        {
            let world = World { input: input.to_owned(), ..World::default() };
            for (source, template) in &templates {
                if let Ok(value) = template.render(&world, "p") {
                    assert!(crate::model::json::check(&value).is_ok(), "{source} gives {value:?}");
                    values += 1;
                }
            }
        }
        values
    });
    assert!(rendering.unwrap().join().unwrap() > 20);
}

#[test]
fn fuel_ends_what_would_run_long() {
    let error = render("${{ range(100000) | map('string') | list | sort | join }}", "{}").unwrap_err();
    assert_eq!(error.code, "expression_failed");
    assert!(error.message.contains("more work than is allowed"), "{error}");
    let items: Vec<String> = (0..5_000).map(|n| format!("{{\"p\":{n}}}")).collect();
    let input = format!("{{\"l\":[{}]}}", items.join(","));
    assert_eq!(ok("${{ input.l | map(attribute='p') | sum }}", &input), "12497500");
    assert_eq!(ok("${{ input.l | selectattr('p', 'gt', 4997) | list | length }}", &input), "2");
}

mod schema {
    use super::*;

    fn check(schema: &str, input: &str) -> Vec<(String, String)> {
        let schema = InputSchema::compile(schema.as_bytes()).unwrap();
        schema.check(input.as_bytes()).into_iter().map(|f| (f.path, f.message)).collect()
    }

    #[test]
    fn every_fault_is_told_with_its_pointer() {
        let schema = r#"{"type":"object","required":["id","n"],"properties":{
            "id":{"type":"string","pattern":"^[a-z]+$"},"items":{"type":"array","items":{"type":"integer"}}}}"#;
        assert_eq!(check(schema, r#"{"id":"abc","n":1,"items":[1,2]}"#), []);
        let faults = check(schema, r#"{"id":"ABC","items":[1,"x",2,null]}"#);
        let paths: Vec<_> = faults.iter().map(|(p, _)| p.as_str()).collect();
        assert_eq!(paths, ["", "/id", "/items/1", "/items/3"]);
        assert!(faults[0].1.contains("\"n\" is a required property"), "{faults:?}");
        assert_eq!(check(schema, "null").len(), 1);
    }

    #[test]
    fn big_integers_are_integers() {
        let schema = r#"{"type":"integer","minimum":0}"#;
        assert_eq!(check(schema, "18446744073709551615"), []);
        assert_eq!(check(schema, "9007199254740993"), []);
        assert_eq!(check(schema, "-1").len(), 1);
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for (bad, why) in [
            (r#"{"type":"strnig"}"#, "/type"),
            (r#"{"properties":{"a":{"type":5}}}"#, "/properties/a/type"),
            (r#"{"properties":5}"#, "/properties"),
            (r#"{"pattern":"("}"#, "/pattern"),
            (r#"{"pattern":"(?=a)b"}"#, "/pattern"),
            (r#"{"pattern":"(a{1000}){1000}"}"#, "/pattern"),
            ("5", "object"),
            (r#"{"$ref":"http://example.com/s.json"}"#, "reaches outside"),
            (r#"{"properties":{"a":{"$ref":"file:///etc/passwd"}}}"#, "reaches outside"),
            (r#"{"$schema":"http://example.com/meta.json"}"#, ""),
            (r##"{"$ref":"#"}"##, "refers to itself"),
            (r##"{"allOf":[{"anyOf":[{"$ref":"#"}]}]}"##, "refers to itself"),
            (r##"{"$ref":"#/$defs/a","$defs":{"a":{"not":{"$ref":"#/%24defs/a"}}}}"##, "refers to itself"),
            (r##"{"$ref":"#/$defs/none"}"##, "none"),
        ] {
            let error = InputSchema::compile(bad.as_bytes()).map(|_| ()).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn references_that_double_are_refused() {
        let defs: Vec<String> = (0..15)
            .map(|n| {
                format!(
                    r##""d{n}":{{"allOf":[{{"$ref":"#/$defs/d{0}"}},{{"$ref":"#/$defs/d{0}"}}]}}"##,
                    n + 1
                )
            })
            .collect();
        let schema = format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d15":true}}}}"##, defs.join(","));
        assert!(
            InputSchema::compile(schema.as_bytes()).map(|_| ()).unwrap_err().contains("too many schemas")
        );
    }

    #[test]
    fn deep_values_under_deep_schemas_do_not_overflow() {
        let mut inner = r##"{"type":"array","items":{"$ref":"#"}}"##.to_owned();
        for _ in 0..14 {
            inner = format!(r#"{{"allOf":[{inner}]}}"#);
        }
        let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
        assert_eq!(check(&inner, &deep), []);
        let shallow = format!("{}{}", "[".repeat(24), "]".repeat(24));
        assert_eq!(check(&inner, &shallow), []);
    }

    #[test]
    fn patterns_take_linear_time() {
        let input = format!("\"{}!\"", "a".repeat(200_000));
        assert_eq!(check(r#"{"pattern":"^(a+)+$"}"#, &input).len(), 1);
    }
}

fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
        any::<String>().prop_map(|s| serde_json::to_string(&s).unwrap()),
    ];
    leaf.prop_recursive(4, 30, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|v| format!("[ {} ]", v.join(" , "))),
            prop::collection::vec(("[a-z]{1,3}", inner), 0..4).prop_map(|v| {
                let entries: Vec<String> = v.into_iter().map(|(k, v)| format!("\"{k}\" : {v}")).collect();
                format!("{{{}}}", entries.join(","))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_path_gives_the_very_bytes(value in any_json()) {
        let input = format!("{{\"k\":[0,{value}]}}");
        prop_assert_eq!(ok("${{ input.k[1] }}", &input), value.clone());
        if value != "null" {
            prop_assert_eq!(ok("${{ input.k[1] | default(1) }}", &input), value);
        }
    }

    #[test]
    fn what_a_program_passes_on_is_the_same_value(value in any_json()) {
        let input = format!("{{\"k\":{value}}}");
        // A program may refuse a number, but never change one.
        if let Ok(out) = render("${{ [input.k] }}", &input) {
            let canonical = |t: &str| crate::model::json::canonical(t.as_bytes()).unwrap();
            prop_assert_eq!(canonical(&out), canonical(&format!("[{value}]")));
        }
    }

    #[test]
    fn text_around_a_string_keeps_it(s in any::<String>()) {
        let input = format!("{{\"s\":{}}}", serde_json::to_string(&s).unwrap());
        let out: String = serde_json::from_str(&ok("<${{ input.s }}>${{ input.s ~ '' }}", &input)).unwrap();
        prop_assert_eq!(out, format!("<{s}>{s}"));
    }

    #[test]
    fn any_text_is_taken_or_refused(source in "\\PC{0,40}|\\$\\{\\{[ a-z0-9.()\\[\\]|~+'\"=,{}-]{0,40}\\}\\}") {
        if let Ok(template) = compile(&source) {
            let _ = template.render(&World { input: "{}".to_owned(), ..World::default() }, "p");
        }
    }
}
