//! Workflows of a seed: small graphs with everything a task may say.

use crate::profile::Profile;
use crate::rng::Rng;
use downbeat::model::ids::TaskType;
use serde_json::{Map, Value, json};

/// A document as JSON; it is one in YAML as well.
pub(crate) fn draw(rng: &mut Rng, p: &Profile, types: &[TaskType], number: u64) -> Value {
    let n = *rng.pick(&[1, 2, 3, 3, 4, 5, 6, 8]);
    let mut tasks = Map::new();
    for i in 0..n {
        tasks.insert(format!("t{i}"), task(rng, i, types));
    }
    let mut document = json!({ "name": format!("flow-{number}"), "tasks": tasks });
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
    document
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
