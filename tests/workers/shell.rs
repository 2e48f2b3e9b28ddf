//! `downbeat worker` as a program, with `sh` as the command.

use super::script::{PATIENCE, Stream, next, server};
use downbeat::proto::v1 as pb;
use downbeat::proto::v1::result::Outcome;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::worker_message::Message as ToServer;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Stdio;
use tokio::process::{Child, Command};

struct Shell {
    child: Child,
    stream: Stream,
    /// Keeps the server's door open.
    _streams: tokio::sync::mpsc::Receiver<Stream>,
}

/// A worker of type `t` that runs `script`, with an open session.
async fn shell(concurrency: u32, script: &str) -> Shell {
    let (url, mut streams) = server().await;
    let child = Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(["worker", "--type", "t", "--name", "sh", "--server", &url])
        .args(["--concurrency", &concurrency.to_string(), "--", "sh", "-c", script])
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stream = next(&mut streams).await;
    let hello = stream.hello().await;
    assert_eq!(
        (hello.label.as_str(), hello.subscriptions[0].credit),
        ("sh", i32::try_from(concurrency).unwrap())
    );
    stream.welcome("s", &[]).await;
    Shell { child, stream, _streams: streams }
}

impl Shell {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// The end of the only task.
    async fn outcome(&mut self) -> Outcome {
        self.stream.results(1).await.remove(0).outcome.expect("an outcome")
    }

    async fn failure(&mut self) -> pb::TaskFailure {
        match self.outcome().await {
            Outcome::Failed(failure) => failure,
            other => panic!("expected a failure, got {other:?}"),
        }
    }

    async fn status(mut self) -> Option<i32> {
        tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .expect("the worker does not end")
            .unwrap()
            .code()
    }
}

/// Waits until `path` exists, as the command's sign that it runs.
async fn appears(path: &Path) {
    let there = async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, there).await.expect("the command does not start");
}

/// Whether a process is still there; a zombie that init has not collected yet is not.
fn alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

#[tokio::test]
async fn input_comes_on_standard_input_and_output_goes_back_unchanged() {
    let mut shell =
        shell(2, r#"printf '{"n": 9007199254740993, "in": %s, "run": "%s"}\n' "$(cat)" "$DOWNBEAT_RUN""#)
            .await;
    shell.stream.assign("t", &["a"]).await;
    let expected = r#"{"n": 9007199254740993, "in": "a", "run": "r"}"#;
    assert_eq!(shell.outcome().await, Outcome::Completed(expected.into()));
}

#[tokio::test]
async fn a_command_that_ignores_a_large_input_is_no_failure() {
    let mut shell = shell(1, "exec 0<&-; echo 1").await;
    let assignment = pb::Assignment {
        token: "a".into(),
        r#type: "t".into(),
        input: format!("\"{}\"", "x".repeat(1 << 20)).into(),
        ..pb::Assignment::default()
    };
    shell.stream.say(FromServer::Assign(pb::Assignments { assignments: vec![assignment] })).await;
    assert_eq!(shell.outcome().await, Outcome::Completed("1".into()));
}

#[tokio::test]
async fn a_failing_command_tells_its_status_and_its_last_words() {
    let mut shell = shell(1, "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $n >&2; done; exit 3").await;
    shell.stream.assign("t", &["a"]).await;
    let failure = shell.failure().await;
    assert_eq!((failure.code.as_str(), failure.non_retryable), ("exit_3", false));
    let lines: Vec<_> = failure.message.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[9]), (10, "line 3", "line 12"));
}

#[tokio::test]
async fn output_that_is_no_json_or_too_large_is_not_tried_again() {
    for (script, code) in
        [("echo hello", "invalid_output"), ("yes 12345678 | head -c 2000000", "output_too_large")]
    {
        let mut shell = shell(1, script).await;
        shell.stream.assign("t", &["a"]).await;
        let failure = shell.failure().await;
        assert_eq!((failure.code.as_str(), failure.non_retryable), (code, true));
    }
}

#[tokio::test]
async fn a_line_on_standard_error_is_a_heartbeat() {
    let mut shell = shell(1, "echo alive >&2; sleep 600").await;
    shell.stream.assign("t", &["a"]).await;
    loop {
        if let ToServer::Heartbeat(beats) = shell.stream.hear().await {
            assert_eq!(beats.heartbeats[0].token, "a");
            break;
        }
    }
    // Leaves no process behind.
    shell.stream.say(FromServer::Cancel(pb::Tokens { tokens: vec!["a".into()] })).await;
    assert_eq!(shell.outcome().await, Outcome::Released(pb::Released {}));
}

#[tokio::test]
async fn a_cancelled_command_dies_with_its_whole_group() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let script = format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", pids.display());
    let mut shell = shell(1, &script).await;
    shell.stream.assign("t", &["a"]).await;
    appears(&pids).await;
    let grandchild = std::fs::read_to_string(&pids).unwrap();
    assert!(alive(&grandchild));
    shell.stream.say(FromServer::Cancel(pb::Tokens { tokens: vec!["a".into()] })).await;
    assert_eq!(shell.outcome().await, Outcome::Released(pb::Released {}));
    let gone = async {
        while alive(&grandchild) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the grandchild lives on");
}

#[tokio::test]
async fn a_command_that_leaves_a_process_behind_does_not_hold_its_task() {
    let mut shell = shell(1, "sleep 600 & echo 1").await;
    shell.stream.assign("t", &["a"]).await;
    assert_eq!(shell.outcome().await, Outcome::Completed("1".into()));
}

#[tokio::test]
async fn on_sigterm_what_runs_finishes_and_what_waits_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (running, go) = (dir.path().join("running"), dir.path().join("go"));
    let script =
        format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done; echo 1", running.display(), go.display());
    let mut shell = shell(1, &script).await;
    shell.stream.assign("t", &["runs", "waits"]).await;
    appears(&running).await;
    shell.signal(Signal::TERM);
    let released = shell.stream.results(1).await.remove(0);
    assert_eq!(
        (released.token.as_str(), released.outcome),
        ("waits", Some(Outcome::Released(pb::Released {})))
    );
    std::fs::write(&go, "").unwrap();
    let done = shell.stream.results(1).await.remove(0);
    assert_eq!((done.token.as_str(), done.outcome), ("runs", Some(Outcome::Completed("1".into()))));
    shell.stream.accept(["runs", "waits"].map(str::to_owned)).await;
    shell
        .stream
        .say(FromServer::CreditAck(pb::Subscription { r#type: "t".into(), ..Default::default() }))
        .await;
    assert_eq!(shell.status().await, Some(0));
}

#[tokio::test]
async fn a_second_signal_kills_what_runs_and_gives_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let running = dir.path().join("running");
    let mut shell =
        shell(1, &format!("trap '' TERM; touch {}; sleep 600; sleep 600", running.display())).await;
    shell.stream.assign("t", &["a"]).await;
    appears(&running).await;
    shell.signal(Signal::TERM);
    // The first signal has arrived when the worker asks for no more.
    while !matches!(shell.stream.hear().await, ToServer::Drain(_)) {}
    shell.signal(Signal::TERM);
    assert_eq!(shell.outcome().await, Outcome::Released(pb::Released {}));
    shell.stream.accept(["a".to_owned()]).await;
    shell
        .stream
        .say(FromServer::CreditAck(pb::Subscription { r#type: "t".into(), ..Default::default() }))
        .await;
    assert_eq!(shell.status().await, Some(0));
}

#[tokio::test]
async fn a_command_that_does_not_exist_fails_its_task() {
    let (url, mut streams) = server().await;
    let _child = Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(["worker", "--type", "t", "--server", &url, "--", "/no/such/program"])
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s", &[]).await;
    stream.assign("t", &["a"]).await;
    match stream.results(1).await.remove(0).outcome {
        Some(Outcome::Failed(failure)) => {
            assert_eq!(failure.code, "command_not_started");
            assert!(failure.message.starts_with("/no/such/program: "), "{}", failure.message);
        }
        other => panic!("expected a failure, got {other:?}"),
    }
}

#[tokio::test]
async fn labels_are_told_and_what_is_none_is_wrong_usage() {
    let (url, mut streams) = server().await;
    let start = |labels: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_downbeat"));
        command.args(["worker", "--type", "t", "--server", &url]);
        for label in labels {
            command.args(["--label", label]);
        }
        command.args(["--", "true"]).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().unwrap()
    };
    let _worker = start(&["region=eu", "gpu=true"]);
    let hello = next(&mut streams).await.hello().await;
    let labels: Vec<_> = hello.subscriptions[0].labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(labels, ["gpu=true", "region=eu"]);
    let many: Vec<String> = (0..9).map(|n| format!("k{n}=v")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (labels, said) in [
        (&["gpu"][..], "use --name"),
        (&["gpu="], "is not 1 to 64 letters"),
        (&["g p=u"], "is not 1 to 64 letters"),
        (&["a=1", "a=2"], "each key once"),
        (&many, "at most 8 labels"),
    ] {
        let ended = tokio::time::timeout(PATIENCE, start(labels).wait_with_output()).await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
}
