//! Workflows of a seed: small graphs with everything a task may say.

use crate::profile::Profile;
use crate::rng::Rng;
use downbeat::model::ids::TaskType;
use serde_json::{Map, Value, json};

/// A document as JSON; it is one in YAML as well.
pub(crate) fn draw(rng: &mut Rng, p: &Profile, types: &[TaskType], number: u64) -> Value {
    let n = *rng.pick(&[1, 2, 3, 3, 4, 5, 6, 8]);
    let mut tasks = Map::new();
    let composed = rng.chance(0.5);
    for i in 0..n {
        let plain = task(rng, i, types);
        let mut task = if composed && rng.chance(0.5) {
            compose(rng, i, plain, types)
        } else if number > 0 && rng.chance(0.15) {
            child(rng, number, plain)
        } else {
            plain
        };
        limit(rng, &mut task);
        tasks.insert(format!("t{i}"), task);
    }
    let mut document = json!({ "name": format!("flow-{number}"), "tasks": tasks });
    if composed && rng.chance(0.4) {
        document["finally"] = json!({
            "tasks": { "last": { "type": rng.pick(types).as_str(), "input": "${{ run.status }}" } },
            "timeout": format!("{}s", rng.range(20, 60)),
        });
    }
    let last = format!("t{}", n - 1);
    match rng.below(4) {
        0 => {}
        1 => document["output"] = json!(format!("${{{{ tasks.{last}.output }}}}")),
        2 => {
            document["output"] =
                json!({ "last": format!("${{{{ tasks.{last}.output }}}}"), "in": "${{ input }}" });
        }
        _ => document["output"] = json!({ "first": "${{ tasks.t0.status }}", "text": "n is ${{ input.n }}" }),
    }
    if rng.chance(0.3) {
        document["input"] = json!({ "type": "object", "required": ["n"] });
    }
    if rng.chance(0.25) {
        document["timeout"] = json!(format!("{}s", rng.range(15, 90)));
    }
    if rng.chance(0.3) {
        document["fail_fast"] = json!(true);
    }
    if rng.chance(0.3) {
        document["priority"] = json!(rng.range(0, 20) as i64 - 10);
    }
    if rng.chance(0.3) {
        document["tags"] = json!({ "team": "sim" });
    }
    if p.short_retention {
        document["retention"] = json!(format!("{}s", rng.range(1, 8)));
    }
    if p.labels {
        let mut rng = rng.split("labels", number);
        for part in ["tasks", "finally"] {
            if let Some(part) = document.get_mut(part) {
                label(&mut rng, part);
            }
        }
    }
    document
}

/// What tasks ask for and workers have.
pub(crate) const LABELS: [(&str, &str); 3] = [("disk", "ssd"), ("gpu", "true"), ("zone", "z-1.a")];

/// Lets some of the tasks in `value` that workers do ask for labels.
fn label(rng: &mut Rng, value: &mut Value) {
    let Value::Object(map) = value else { return };
    for (_, inner) in map.iter_mut().filter(|(key, _)| *key != "input") {
        label(rng, inner);
    }
    if map.get("type").is_some_and(Value::is_string) && rng.chance(0.3) {
        let asked = LABELS.iter().filter(|_| rng.chance(0.4)).map(|(k, v)| ((*k).to_owned(), json!(v)));
        map.insert("labels".to_owned(), Value::Object(asked.collect()));
    }
}

/// Slots under a key that all workflows share. Nothing that has one waits for another, so all come to their end.
pub(crate) const SLOTS: usize = 3;

/// Limits on a task, now and then.
fn limit(rng: &mut Rng, t: &mut Value) {
    let has = |t: &Value, key: &str| t.get(key).is_some();
    if (has(t, "type") || has(t, "tasks")) && rng.chance(0.15) {
        let key = if rng.chance(0.5) { "slots-0" } else { "slots-${{ input.n % 2 }}" };
        t["concurrency"] = json!({ "key": key, "limit": SLOTS });
    }
    if has(t, "type") && rng.chance(0.1) {
        t["rate"] = json!({ "key": "starts", "limit": rng.range(3, 6), "per": "1s" });
    }
}

/// A task made into one of the other kinds, or into many: what it needs and when it runs stays.
fn compose(rng: &mut Rng, i: u64, plain: Value, types: &[TaskType]) -> Value {
    let mut t = plain;
    let worker = |rng: &mut Rng| json!({ "type": rng.pick(types).as_str(), "retry": { "max_attempts": 2, "initial": "50ms" } });
    let as_another = |t: &mut Value, key: &str, value: Value| {
        if let Some(map) = t.as_object_mut() {
            for gone in ["type", "input", "retry", "timeout", "priority"] {
                map.remove(gone);
            }
            map.insert(key.to_owned(), value);
        }
    };
    match rng.below(8) {
        0 => as_another(&mut t, "wait", json!({ "for": format!("{}ms", rng.pick(&[0, 5, 700, 4_000])) })),
        1 => as_another(&mut t, "set", json!({ "n": "${{ input.n }}", "run": "${{ run.id }}" })),
        2 => as_another(&mut t, "fail", json!({ "code": "sim_by_plan", "message": "sim" })),
        3 | 4 => {
            let mut body = Map::new();
            body.insert(format!("a{i}"), worker(rng));
            body.insert(format!("b{i}"), worker(rng));
            let mut last = worker(rng);
            last["needs"] = json!([format!("a{i}")]);
            last["input"] = json!(format!("${{{{ tasks.a{i}.output }}}}"));
            body.insert(format!("c{i}"), last);
            as_another(&mut t, "tasks", Value::Object(body));
            if rng.chance(0.3) {
                t["timeout"] = json!(format!("{}s", rng.range(5, 40)));
            }
            if rng.chance(0.3) {
                t["fail_fast"] = json!(true);
            }
        }
        _ => {}
    }
    let runs = ["type", "tasks"].iter().any(|k| t.get(k).is_some());
    if t.get("set").is_some() && rng.chance(0.2) {
        // Wide: its record stands in pages.
        t["for_each"] = json!((0..rng.range(100, 200)).collect::<Vec<_>>());
    } else if rng.chance(0.4) {
        t["for_each"] = json!((0..rng.below(5)).collect::<Vec<_>>());
        if rng.chance(0.4) {
            t["max_parallel"] = json!(rng.range(1, 2));
        }
        if rng.chance(0.4) {
            t["tolerate"] = json!("50%");
        }
    }
    if rng.chance(0.3) {
        t["repeat"] = json!({ "max": rng.range(1, 3) });
        if rng.chance(0.3) {
            t["repeat"]["delay"] = json!("200ms");
        }
    }
    if runs && rng.chance(0.3) {
        t["compensate"] =
            json!({ "type": rng.pick(types).as_str(), "input": format!("${{{{ tasks.t{i}.output }}}}") });
    }
    t
}

/// A task made into a run of a workflow with a lower number, so that none starts itself; sometimes of one that is not
/// there.
fn child(rng: &mut Rng, number: u64, plain: Value) -> Value {
    let mut t = plain;
    if let Some(map) = t.as_object_mut() {
        for gone in ["type", "timeout", "priority"] {
            map.remove(gone);
        }
        map.insert("input".to_owned(), json!({ "n": "${{ input.n }}" }));
    }
    let name = if rng.chance(0.05) { "nobody".to_owned() } else { format!("flow-{}", rng.below(number)) };
    t["workflow"] = if rng.chance(0.15) { json!({ "name": name, "detach": true }) } else { json!(name) };
    if t.get("retry").is_some() {
        t["retry"]["max_attempts"] = json!(rng.range(1, 2));
    }
    if rng.chance(0.3) {
        t["timeout"] = json!(format!("{}s", rng.range(5, 60)));
    }
    if rng.chance(0.3) {
        t["for_each"] = json!((0..rng.below(4)).collect::<Vec<_>>());
    }
    t
}

fn task(rng: &mut Rng, i: u64, types: &[TaskType]) -> Value {
    let mut t = json!({ "type": rng.pick(types).as_str() });
    let mut needs: Vec<u64> = (0..i).filter(|_| rng.chance(0.4)).collect();
    if i > 0 && needs.is_empty() && rng.chance(0.6) {
        needs.push(rng.below(i));
    }
    let up = |rng: &mut Rng| if needs.is_empty() { None } else { Some(*rng.pick(&needs)) };
    if rng.chance(0.2) {
        t["when"] = json!(*rng.pick(&["success", "failure", "always"]));
    }
    if rng.chance(0.25) {
        t["if"] = match (rng.below(4), up(rng)) {
            (0, _) => json!(rng.chance(0.7)),
            (1, Some(u)) => json!(format!("${{{{ tasks.t{u}.output.n < 7 }}}}")),
            (2, Some(u)) => json!(format!("${{{{ tasks.t{u}.status == 'completed' }}}}")),
            _ => json!("${{ input.n < 8 }}"),
        };
    }
    match (rng.below(4), up(rng)) {
        (0, _) => {}
        (1, Some(u)) => t["input"] = json!(format!("${{{{ tasks.t{u}.output }}}}")),
        (2, Some(u)) => {
            t["input"] = json!({ "from": format!("${{{{ tasks.t{u}.output | default(none) }}}}"), "n": "${{ input.n }}" });
        }
        _ => t["input"] = json!({ "n": "${{ input.n }}", "run": "run ${{ run.id }}" }),
    }
    if rng.chance(0.6) {
        t["retry"] = json!({
            "max_attempts": rng.range(1, 4),
            "initial": format!("{}ms", rng.pick(&[10, 200, 1_000])),
            "factor": 2,
            "max": "3s",
            "jitter": 0.3,
        });
    }
    if rng.chance(0.35) {
        let mut limits = Map::new();
        if rng.chance(0.6) {
            limits.insert("run".to_owned(), json!(format!("{}s", rng.range(2, 20))));
        }
        if rng.chance(0.3) {
            limits.insert("heartbeat".to_owned(), json!(format!("{}s", rng.range(4, 15))));
        }
        if rng.chance(0.2) {
            limits.insert("queue".to_owned(), json!(format!("{}s", rng.range(5, 60))));
        }
        if rng.chance(0.2) {
            limits.insert("total".to_owned(), json!(format!("{}s", rng.range(10, 60))));
        }
        if !limits.is_empty() {
            t["timeout"] = Value::Object(limits);
        }
    }
    if rng.chance(0.2) {
        t["on_error"] = json!("continue");
    }
    if rng.chance(0.2) {
        t["priority"] = json!(rng.range(0, 6) as i64 - 3);
    }
    if !needs.is_empty() {
        t["needs"] = needs.iter().map(|u| format!("t{u}")).collect();
    }
    t
}
