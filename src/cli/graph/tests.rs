#![allow(clippy::format_collect, reason = "documents of many lines read best like this")]

use super::*;

const EVERY: &str = include_str!("../../model/document/tests/every.yaml");
const ORDER: &str = include_str!("../../../examples/order.yaml");

fn plan(text: &str) -> Plan {
    parse(text.as_bytes(), Format::Yaml).unwrap_or_else(|f| panic!("{f:#?}")).plan
}

/// Elements of an SVG in order, with a check that they close as they open and that text has no stray signs.
fn elements(svg: &str) -> Vec<String> {
    let (mut open, mut all, mut rest): (Vec<String>, Vec<String>, &str) = (Vec::new(), Vec::new(), svg);
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "stray > in {:?}", &rest[..at]);
        let end = at + rest[at..].find('>').unwrap();
        let tag = &rest[at + 1..end];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else {
            all.push(name.clone());
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.is_empty(), "{open:?} {rest:?}");
    all
}

#[test]
fn a_plain_document_as_mermaid() {
    assert_eq!(
        mermaid::draw(&plan(ORDER)),
        "\
---
title: \"order\"
---
flowchart TB
  n0[\"reserve<br/>reserve-stock\"]
  n1[\"charge<br/>charge-card\"]
  n2[\"review<br/>review-order<br/>if $#123;#123; tasks.reserve.output.total #62; 1000 #125;#125;\"]
  n3[\"ship<br/>ship-order\"]
  n4[\"notify<br/>notify-customer<br/>goes on if it fails\"]
  n0 --> n1
  n1 --> n2
  n1 --> n3
  n2 --> n3
  n3 --> n4
  classDef workerTask fill:#eef4ff,stroke:#3b6fd4,color:#1f2430
  class n0,n1,n2,n3,n4 workerTask"
    );
}

#[test]
fn every_construct_has_its_shape_in_mermaid() {
    let drawn = mermaid::draw(&plan(EVERY));
    for part in [
        "n0[\"reserve<br/>reserve-stock<br/>undone by release-stock\"]",
        "n1[\"chosen<br/>pay-$#123;#123; input.provider #125;#125;<br/>on gpu.model=h100, region=eu<br/>if ",
        "subgraph n2[\"pack · for each of $#123;#123; input.items #125;#125;, 8 at once, 10#37; m… · at most 2 at once of pack-",
        "  subgraph n16[\"check · repeat up to 5 times while ",
        "n3[/\"numbers<br/>set<br/>for each of [1,",
        "n4([\"paid<br/>wait for signal paid-",
        "n5([\"pause<br/>wait for 1h30m\"])",
        "n7([\"day<br/>wait until 2030-01-31T08:00:00+01:00\"])",
        "n9[[\"child<br/>workflow order\"]]",
        "<br/>at most 3 at once of pay<br/>at most 10 in 1m of pay-",
        "n11[[\"old_child<br/>workflow order version 3, detached<br/>repeat 2 times\"]]",
        "n12{{\"broken<br/>fail child_failed\"}}",
        "n14(((\"gone<br/>finish<br/>if false\")))",
        "n9 -. failure .-> n12",
        "n13 -. always .-> n14",
        "subgraph n19[\"finally · at most 10m\"]",
        "n14 -.-> n19",
        "class n12,n18 failTask",
    ] {
        assert!(drawn.contains(part), "{part} is not in\n{drawn}");
    }
    let count = |word: &str| drawn.lines().filter(|l| l.trim_start().starts_with(word)).count();
    assert_eq!((count("subgraph "), count("end"), count("direction TB")), (4, 4, 4));
}

#[test]
fn every_construct_is_in_the_picture() {
    let plan = plan(EVERY);
    let drawn = svg::draw(&plan);
    let elements = elements(&drawn);
    let tasks: Vec<_> =
        plan.tasks.iter().filter(|t| t.role != crate::model::plan::Role::Compensation).collect();
    for task in &tasks {
        assert!(drawn.contains(&format!("<g id=\"task-{}\">", task.id)), "{}", task.id);
    }
    assert_eq!(elements.iter().filter(|e| *e == "g").count(), tasks.len());
    for look in labels::Look::ALL {
        assert!(
            drawn.contains(&format!("class=\"{}\"", look.name()))
                || drawn.contains(&format!("class=\"box {}\"", look.name()))
        );
    }
    for part in [
        ">wait for signal paid-${{ run.id }}<",
        ">undone by release-stock<",
        ">if ${{ tasks.reserve.output.total &gt; 1000 }}<",
        "<title>chosen: Pays.</title>",
        ">failure</text>",
    ] {
        assert!(drawn.contains(part), "{part}");
    }
    assert_eq!(svg::draw(&plan), drawn, "the same every time");
}

#[test]
fn text_of_users_stays_text() {
    let nasty = "</text><script>alert(1)</script>&amp;\\\"'`#;\\u0007%%{{}}";
    let text = format!(
        "name: w\ndescription: \"{nasty}\"\ntasks:\n  end:\n    description: \"{nasty}\"\n    fail: {{ code: \"{nasty}\" }}\n  x: {{ needs: [end], set: 1, for_each: [\"\\n{nasty}\"] }}\n"
    );
    let plan = plan(&text);
    let drawn = svg::draw(&plan);
    elements(&drawn);
    assert!(!drawn.contains("<script") && drawn.contains("&lt;script&gt;"), "{drawn}");
    assert!(drawn.contains('\u{fffd}') || !drawn.contains('\u{7}'));
    let drawn = mermaid::draw(&plan);
    let label = drawn.lines().find(|l| l.trim_start().starts_with("n0")).unwrap();
    assert_eq!(label.matches('"').count(), 2, "{label}");
    assert!(!drawn.contains("<script") && label.contains("#60;script#62;"), "{label}");
    assert!(drawn.lines().all(|l| !l.contains('\u{7}')));
}

#[test]
fn large_documents_are_drawn() {
    let star: String = (1..3_000).map(|i| format!("  t{i}: {{ type: a, needs: [t0] }}\n")).collect();
    let chain: String = (1..3_000)
        .map(|i| format!("  t{i}: {{ type: a, needs: [t{}, t0] }}\n", i - 1).replace("t0, t0", "t0"))
        .collect();
    for tasks in [star, chain] {
        let plan = plan(&format!("name: w\ntasks:\n  t0: {{ type: a }}\n{tasks}"));
        assert_eq!(svg::draw(&plan).matches("<g id=").count(), 3_000);
        assert!(mermaid::draw(&plan).lines().count() > 5_900);
    }
}
