//! Hostile documents die inside their limits; large ones are read.

use super::*;

#[test]
fn the_limits_of_a_document_hold() {
    let many = |n: usize| {
        let tasks: String = (0..n).map(|i| format!("  t{i}: {{ type: a }}\n")).collect();
        format!("name: w\ntasks:\n{tasks}")
    };
    assert_eq!(yaml(&many(10_000)).plan.tasks.len(), 10_000);
    has(&faults(&many(10_001)), "tasks:3: there are 10001 tasks; the limit is 10000");
    let long = format!("name: w\n# {}", "x".repeat(1 << 20));
    has(&faults(&long), ":0: the document has 1048586 bytes; the limit is 1048576");
    let deep = |n: usize| {
        format!("name: w\ntasks: {{ t: {{ type: a, input: {}{} }} }}", "[".repeat(n), "]".repeat(n))
    };
    assert_eq!(yaml(&deep(128)).plan.tasks.len(), 1);
    has(&faults(&deep(129)), "tasks.t.input");
    assert!(faults(&deep(200))[0].contains("nest"), "{:?}", faults(&deep(200)));
    assert_eq!(faults(&format!("{}\n", "- ".repeat(300_000))).len(), 1);
    let json = format!("{}1{}", "[".repeat(500_000), "]".repeat(500_000));
    assert!(parse(json.as_bytes(), Format::Json).unwrap_err()[0].message.contains("nested deeper"));
    let unknown: String = (0..5_000).map(|n| format!("k{n}: 1\n")).collect();
    let found = faults(&unknown);
    assert_eq!(found.len(), 1_001);
    has(&found, ":0: there are 4002 more faults");
}

#[test]
fn what_would_not_fit_once_stored_is_refused_at_once() {
    let text = format!("name: w\ntasks: {{ t: {{ type: a, input: '{}' }} }}", "\"".repeat(600_000));
    has(&faults(&text), ":0: as JSON, the document comes to 12000");
}

#[test]
fn faults_without_end_are_told_in_time() {
    let needs = (0..60_000).map(|n| format!("u{n}")).collect::<Vec<_>>().join(",");
    let tasks: String = (0..999).map(|i| format!("  t{i}: {{ type: a }}\n")).collect();
    let found = faults(&format!("name: w\ntasks:\n{tasks}  x: {{ type: a, needs: [{needs}] }}\n"));
    assert_eq!(found.len(), 1_001);
    // Every task needs all others: one circle after the other.
    let all = (0..300).map(|n| format!("t{n}")).collect::<Vec<_>>();
    let tasks: String = all
        .iter()
        .map(|t| {
            let others: Vec<&str> = all.iter().filter(|o| *o != t).map(String::as_str).collect();
            format!("  {t}: {{ type: a, needs: [{}] }}\n", others.join(","))
        })
        .collect();
    let found = faults(&format!("name: w\ntasks:\n{tasks}"));
    assert_eq!(found.len(), 150);
    has(&found, "tasks.t0.needs:3: the needs go in a circle: t0 → t1 → t0");
}

#[test]
fn a_chain_of_a_thousand_tasks_is_read() {
    let tasks: String = (0..1_000)
        .map(|i| match i {
            0 => "  t0: { type: a }\n".to_owned(),
            _ => format!(
                "  t{i}: {{ type: a, needs: [t{}], input: '${{{{ tasks.t0.output.n + {i} }}}}' }}\n",
                i - 1
            ),
        })
        .collect();
    let plan = yaml(&format!("name: w\ntasks:\n{tasks}")).plan;
    assert_eq!(plan.tasks[999].needs, [998]);
    let circle = format!(
        "name: w\ntasks:\n{}",
        tasks.replacen("t0: { type: a }", "t0: { type: a, needs: [t999] }", 1)
    );
    let found = faults(&circle);
    assert!(found[0].contains("the needs go in a circle: t0 → t999 → t998"), "{}", found[0]);
}

#[test]
fn aliases_are_copied_within_the_limits_of_a_document() {
    let text = "name: w\ntasks:\n  a: &base { type: x, timeout: &t 5s }\n  b: *base\n  c: { type: y, timeout: *t, input: *t }\n";
    let plan = yaml(text).plan;
    assert_eq!(plan.tasks[1].timeout.run, Some(Span::secs(5)));
    let bomb: String =
        (1..20).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "))).collect();
    has(&faults(&format!("a0: &a0 [x]\n{bomb}")), ":7: the document has more than 250000 values");
    let big = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 100].join(", "));
    has(&faults(&big), ":2: the document has more than 1048576 bytes");
    has(&faults("a: &a [*a]\n"), ":1: an alias stands inside the value it names");
    has(&faults("a: *b\n"), ":1: the document is not valid YAML");
    let nested: String = (0..140).map(|n| format!("{}k: &n{n}\n", " ".repeat(n))).collect();
    let wide = format!("{nested}{}[{}]\n", " ".repeat(141), "1,".repeat(100_000));
    has(&faults(&wide), ":142: the document has more than 250000 values");
}

#[test]
fn ten_thousand_tasks_are_read_as_a_chain_and_as_a_star() {
    let input = "'${{ tasks.t0.output }}'";
    let chain: String = (1..10_000)
        .map(|i| format!("  t{i}: {{ type: a, needs: [t{}], input: {input} }}\n", i - 1))
        .collect();
    let plan = yaml(&format!("name: w\ntasks:\n  t0: {{ type: a }}\n{chain}")).plan;
    assert_eq!(plan.tasks[9_999].needs, [9_998]);
    let star: String =
        (1..10_000).map(|i| format!("  t{i}: {{ type: a, needs: [t0], input: {input} }}\n")).collect();
    let all: String = (1..10_000).map(|i| format!("  o{i}: '${{{{ tasks.t{i}.output }}}}'\n")).collect();
    let plan = yaml(&format!("name: w\ntasks:\n  t0: {{ type: a }}\n{star}output:\n{all}")).plan;
    assert_eq!(plan.tasks[0].dependents.len(), 9_999);
    assert_eq!(plan.output.unwrap().roots().len(), 9_999);
    // And in a group, where the whole of it is one level down.
    let inside = chain.lines().take(9_998).map(|l| format!("      {}\n", l.trim())).collect::<String>();
    let plan = yaml(&format!("name: w\ntasks:\n  g:\n    tasks:\n      t0: {{ type: a }}\n{inside}")).plan;
    assert_eq!((plan.body, plan.tasks.len()), (0..1, 10_000));
}

#[test]
fn tasks_are_nested_sixteen_levels_deep_and_no_deeper() {
    let nest = |groups: usize, inner: &str| {
        let open: String = (0..groups).map(|n| format!("{{ g{n}: {{ tasks: ")).collect();
        format!("name: w\ntasks: {open}{{ t: {{ type: a{inner} }} }}{}", " } }".repeat(groups))
    };
    let plan = yaml(&nest(15, "")).plan;
    assert_eq!(plan.tasks.len(), 16);
    assert_eq!(plan.tasks[15].parent, Some(14));
    let found = faults(&nest(16, ""));
    assert!(found.len() == 1 && found[0].contains("tasks are nested deeper than 16"), "{found:?}");
    // A value of full depth fits at the bottom, and into what undoes it.
    let value = format!("{}{}", "[".repeat(128), "]".repeat(128));
    yaml(&nest(15, &format!(", input: {value}, compensate: {{ type: b, input: {value} }}")));
    let finally = nest(15, &format!(", input: {value}")).replacen(
        "tasks: ",
        "tasks: { a: { type: a } }\nfinally: { tasks: ",
        1,
    );
    yaml(&format!("{finally} }}"));
    for deeper in [40, 60, 100] {
        assert!(faults(&nest(deeper, ""))[0].contains("nested deeper than"));
    }
}

#[test]
fn many_circles_behind_a_long_chain_are_told_in_time() {
    // The chain ends at a task that waits for every circle, so that each look for one could go down all of it.
    let chain: String = (0..5_000).map(|i| format!("  c{i}: {{ type: a, needs: [c{}] }}\n", i + 1)).collect();
    let circles: String = (0..2_000)
        .map(|i| format!("  a{i}: {{ type: a, needs: [b{i}] }}\n  b{i}: {{ type: a, needs: [a{i}] }}\n"))
        .collect();
    let all: Vec<String> = (0..2_000).map(|i| format!("a{i}")).collect();
    let text =
        format!("name: w\ntasks:\n{chain}  c5000: {{ type: a, needs: [{}] }}\n{circles}", all.join(","));
    let found = faults(&text);
    assert_eq!(found.len(), 1_001);
    has(&found, "tasks.a0.needs:5004: the needs go in a circle: a0 → b0 → a0");
    has(&found, ":0: there are 1000 more faults");
}

#[test]
fn names_that_are_missed_in_a_large_document_are_told_in_time() {
    let tasks: String = (0..10_000)
        .map(|i| format!("  task{i}: {{ type: a, input: '${{{{ tasks.taskk{i}.output }}}}' }}\n"))
        .collect();
    let found = faults(&format!("name: w\ntasks:\n{tasks}"));
    assert_eq!(found.len(), 1_001);
    assert!(found[0].contains("there is no task \"taskk0\" (did you mean 'task0'?)"), "{}", found[0]);
}

#[test]
fn copies_of_a_group_are_paid_for_and_their_ids_clash() {
    let text = "name: w\ntasks:\n  a: &g { tasks: { x: { type: t } } }\n  b: *g\n";
    has(&faults(text), "tasks.b.tasks.x:3: the task id 'x' is taken by tasks.a.tasks.x");
    let bomb: String = (1..12)
        .map(|n| {
            let copies: Vec<String> = (0..9).map(|k| format!("x{n}_{k}: *g{}", n - 1)).collect();
            format!("  g{n}: &g{n} {{ tasks: {{ {} }} }}\n", copies.join(", "))
        })
        .collect();
    let found = faults(&format!("name: w\ntasks:\n  g0: &g0 {{ type: t }}\n{bomb}"));
    assert!(found.len() == 1 && found[0].contains("aliases included"), "{found:?}");
}
