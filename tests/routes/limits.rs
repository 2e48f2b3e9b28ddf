//! What waiting tasks say they wait for, and documents with limits.

use crate::support::client::soon;
use crate::support::server::Server;
use downbeat::proto::v1;
use downbeat::proto::v1::run_service_client::RunServiceClient;
use downbeat::proto::v1::waiting_for::What;
use serde_json::{Value, json};
use std::time::Duration;

const TEXT: &str = "name: waits
tasks:
  first: { type: solo, concurrency: { key: 'env-${{ input.n }}', limit: 1 } }
  second: { type: solo, concurrency: { key: 'env-${{ input.n }}', limit: 1 } }
  quick: { type: fast, rate: { key: api, limit: 1, per: 1d } }
  slow: { type: fast, rate: { key: api, limit: 1, per: 1d } }
  told: { wait: { signal: go } }
  later: { wait: { until: 2090-01-31T08:00:00Z } }
  group: { tasks: { inside: { wait: { signal: go } } } }
";

fn task<'v>(run: &'v Value, path: &str) -> &'v Value {
    run["tasks"].as_array().unwrap().iter().find(|t| t["task"] == path).unwrap()
}

#[tokio::test]
async fn a_waiting_task_says_what_it_waits_for() {
    let server = Server::start();
    let answer = server.put("/v1/workflows/waits", "application/yaml", TEXT).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(server.start_run("waits", "r1", r#"{"n":7}"#).await.status, 201);
    let wanted = [
        ("first", "queued", json!(null)),
        ("second", "waiting", json!({"concurrency": "env-7"})),
        ("quick", "queued", json!(null)),
        ("slow", "waiting", json!({"rate": "api"})),
        ("told", "waiting", json!({"signal": "go"})),
        ("later", "waiting", json!({"until": "2090-01-31T08:00:00.000000Z"})),
        ("group", "waiting", json!(null)),
        ("group/inside", "waiting", json!({"signal": "go"})),
    ];
    let settled = async {
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        loop {
            pause.tick().await;
            let run = server.get("/v1/runs/r1").await.json();
            if ["first", "quick"].iter().all(|t| task(&run, t)["status"] == "queued") {
                return run;
            }
        }
    };
    let run = soon(settled).await;
    for (path, status, waiting_for) in wanted {
        let task = task(&run, path);
        assert_eq!((&task["status"], &task["waiting_for"]), (&json!(status), &waiting_for), "{path}");
    }

    let mut runs = RunServiceClient::new(server.channel().await);
    let request = v1::GetRunRequest { id: "r1".into(), ..v1::GetRunRequest::default() };
    let run = runs.get(request).await.unwrap().into_inner();
    let what = |path: &str| {
        let task = run.tasks.iter().find(|t| t.task == path).unwrap();
        task.waiting_for.clone().and_then(|w| w.what)
    };
    assert_eq!(what("first"), None);
    assert_eq!(what("second"), Some(What::Concurrency("env-7".into())));
    assert_eq!(what("slow"), Some(What::Rate("api".into())));
    assert_eq!(what("told"), Some(What::Signal("go".into())));
    assert_eq!(what("later"), Some(What::UntilUs(3_789_532_800_000_000)));
    assert_eq!(what("group"), None);

    // The one that has the slot ends, and the other goes on.
    let first = server.claim("solo").await;
    assert_eq!(first["task"], "first");
    let token = first["token"].as_str().unwrap();
    assert_eq!(server.post(&format!("/v1/tasks/{token}/complete"), r#"{"output":1}"#).await.status, 200);
    assert_eq!(server.claim("solo").await["task"], "second");
}

#[tokio::test]
async fn limits_that_are_none_are_refused_with_all_their_faults() {
    let server = Server::start();
    let text =
        "name: w\ntasks:\n  t:\n    set: 1\n    concurrency: { limit: 0 }\n    rate: { key: k, per: 2d }\n";
    let answer = server.put("/v1/workflows/w", "application/yaml", text).await;
    let (code, paths) = answer.problem();
    assert_eq!((answer.status, code.as_str()), (422, "invalid_workflow"), "{}", answer.text());
    assert_eq!(
        paths,
        [
            "tasks.t.concurrency",
            "tasks.t.concurrency",
            "tasks.t.concurrency.limit",
            "tasks.t.rate",
            "tasks.t.rate",
            "tasks.t.rate.per"
        ]
    );
}
