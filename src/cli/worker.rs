//! `downbeat worker`: does tasks of one type by running a command for each, in any language.

use super::{Exit, Failure, Outcome, output};
use crate::client::{Task, TaskError, Worker, WorkerError};
use crate::config::{Log, LogFormat};
use crate::lifecycle::Lifecycle;
use crate::model::labels::{LABEL_RULE, LABELS_MAX, Labels, is_label_part};
use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

/// An output may have this many bytes.
const MAX_OUTPUT: usize = 1 << 20;
/// Lines and bytes of standard error that become the message of a failure.
const TAIL: (usize, usize) = (10, 4 << 10);
/// Running commands may finish for this long after SIGTERM.
const DRAIN: Duration = Duration::from_secs(30);
/// From TERM to KILL.
const KILL_AFTER: Duration = Duration::from_secs(3);
/// How long what a command left behind may hold its pipes open after it has exited.
const LINGER: Duration = Duration::from_millis(200);
/// The first connection must be made within this.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);

const LONG_ABOUT: &str = "\
Does tasks of one type by running a command for each.

The task's input comes as JSON on the command's standard input. What it prints on standard output is the task's \
output and must be JSON; nothing at all is null. A command that exits with N fails the attempt with the code \
exit_N and its last lines on standard error as the message; whether it is tried again is up to the workflow. \
Output that is no JSON or has more than 1 MiB fails the task without another try. Each line on standard error \
counts as a heartbeat.

The command sees DOWNBEAT_RUN, DOWNBEAT_TASK, DOWNBEAT_TYPE, DOWNBEAT_ATTEMPT and TRACEPARENT in its environment, \
and is the head of a process group of its own. If the task is cancelled, the group gets TERM and, 3 s later, KILL.

On SIGTERM or Ctrl-C the worker takes nothing more, gives back what was not started and lets running commands \
finish for 30 s; a second signal kills them at once.";

#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT)]
pub(super) struct Args {
    /// Task type to do
    #[arg(long = "type", value_name = "TYPE")]
    task_type: String,
    /// How many commands may run at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    concurrency: u32,
    /// Name of this worker, for people; by default host and process id
    #[arg(long)]
    name: Option<String>,
    /// What this worker has: it is also given tasks that ask for it. May come up to 8 times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Address of the server
    #[arg(long, value_name = "URL", env = "DOWNBEAT_SERVER", default_value = "http://127.0.0.1:7070")]
    server: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) async fn run(args: Args) -> Outcome {
    crate::telemetry::init(&Log { filter: "info".into(), format: LogFormat::Text });
    let life = Lifecycle::with_signals()?;
    let label = args.name.unwrap_or_else(default_name);
    let pairs = args.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    if Labels::new(pairs).is_none() {
        let message = format!("a worker has at most {LABELS_MAX} labels, each key once");
        return Err(Failure::new(Exit::Usage, message));
    }
    let shell = Arc::new(Shell { command: args.command, life: life.clone() });
    let worker = Worker::builder(&args.server)
        .label(&label)
        .labels(args.labels)
        .connect_within(CONNECT_WITHIN)
        .cancel_grace(KILL_AFTER * 2)
        .handle(&args.task_type, args.concurrency, move |task: Task| {
            let shell = Arc::clone(&shell);
            async move { shell.run(task).await }
        })
        .build()
        .map_err(failure)?;
    let handle = worker.handle();
    let working = life.spawn(worker.run());
    let say = format!("{label} does {} for {}", args.task_type, args.server);
    tokio::spawn({
        let mut handle = handle.clone();
        async move {
            if handle.connected().await.is_some() {
                output::note(&say);
            }
        }
    });
    let stop = async {
        life.stopping().await;
        handle.shutdown(DRAIN);
        life.ending_now().await;
        handle.shutdown(Duration::ZERO);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        worked = working => worked.map_err(|e| Failure::failed(e.to_string()))?.map_err(failure),
        () = stop => Ok(()),
    }
}

fn failure(error: WorkerError) -> Failure {
    let exit = match error {
        WorkerError::Address { .. } | WorkerError::Handlers(_) => Exit::Usage,
        WorkerError::Refused(_) => Exit::Failed,
        WorkerError::Unreachable { .. } => Exit::Unreachable,
    };
    Failure::new(exit, error.to_string())
}

/// Reads a label.
fn label(text: &str) -> Result<(String, String), String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err("a label is KEY=VALUE; to name the worker, use --name".to_owned());
    };
    match [key, value].into_iter().find(|part| !is_label_part(part)) {
        None => Ok((key.to_owned(), value.to_owned())),
        Some(part) => Err(format!("{part:?} is not {LABEL_RULE}")),
    }
}

fn default_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}

/// What is run for each task.
struct Shell {
    command: Vec<String>,
    life: Lifecycle,
}

/// A command's process group; whatever is left of it dies with this value.
struct Group {
    leader: Option<Pid>,
}

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // Fails only if nobody is left.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// How a command ended.
struct End {
    status: Option<ExitStatus>,
    /// Output (none: too much) and the last lines of errors; none if the pipes are still held.
    texts: Option<(Option<Vec<u8>>, String)>,
    cancelled: bool,
}

impl Shell {
    /// Waits for the end of a command and of its output, and carries out what comes first: a cancellation, or an
    /// exit that leaves somebody behind who holds the pipes.
    async fn attend(
        &self,
        task: &Task,
        child: &mut Child,
        group: &Group,
        (stdin, stdout, stderr): (ChildStdin, ChildStdout, ChildStderr),
    ) -> Result<End, TaskError> {
        let pipes = async {
            let ((), out, tail) = tokio::join!(
                feed(stdin, task.input()),
                read_output(stdout, group),
                read_errors(stderr, task)
            );
            (out, tail)
        };
        let mut pipes = std::pin::pin!(pipes);
        let (mut status, mut texts) = (None::<ExitStatus>, None);
        let (mut cancelled, mut killed) = (false, false);
        let mut due: Option<Instant> = None;
        while status.is_none() || texts.is_none() {
            let timer = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                done = &mut pipes, if texts.is_none() => texts = Some(done),
                exited = child.wait(), if status.is_none() => {
                    status = Some(exited.map_err(|e| TaskError::new("command_lost", e.to_string()))?);
                    due = Some(Instant::now() + LINGER);
                }
                () = task.cancelled(), if !cancelled => {
                    cancelled = true;
                    group.signal(Signal::TERM);
                    due = Some(Instant::now() + KILL_AFTER);
                }
                () = self.life.ending_now(), if cancelled && !killed => {
                    killed = true;
                    group.signal(Signal::KILL);
                }
                () = timer => {
                    if status.is_some() && killed {
                        // Somebody outside the group holds the pipes: what was read is what there is.
                        break;
                    }
                    killed = true;
                    group.signal(Signal::KILL);
                    due = status.map(|_| Instant::now() + LINGER);
                }
            }
        }
        Ok(End { status, texts, cancelled })
    }

    async fn run(&self, task: Task) -> Result<Bytes, TaskError> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(TaskError::permanent("command_not_started", "there is no command"));
        };
        let spawned = Command::new(program)
            .args(arguments)
            .env("DOWNBEAT_RUN", task.run())
            .env("DOWNBEAT_TASK", task.path())
            .env("DOWNBEAT_TYPE", task.task_type())
            .env("DOWNBEAT_ATTEMPT", task.attempt().to_string())
            .env("TRACEPARENT", task.trace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut child =
            spawned.map_err(|e| TaskError::new("command_not_started", format!("{program}: {e}")))?;
        let mut group =
            Group { leader: child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) };
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(TaskError::new("command_not_started", format!("{program}: its pipes are missing")));
        };
        let End { status, texts, cancelled } =
            self.attend(&task, &mut child, &group, (stdin, stdout, stderr)).await?;
        // Nothing is left of the group, or it was killed: its number may belong to somebody else from now on.
        group.leader = None;
        if cancelled {
            return Err(TaskError::new("cancelled", "the task was cancelled"));
        }
        let Some(((output, tail), status)) = texts.zip(status) else {
            let message = "a process that the command left behind holds its output open";
            return Err(TaskError::new("output_held", message));
        };
        judge(program, status, output, &tail)
    }
}

/// What the end of a command means for its task.
fn judge(program: &str, status: ExitStatus, output: Option<Vec<u8>>, tail: &str) -> Result<Bytes, TaskError> {
    let Some(output) = output else {
        let message = format!("{program} printed more than {MAX_OUTPUT} bytes");
        return Err(TaskError::permanent("output_too_large", message));
    };
    if !status.success() {
        let (code, how) = match (status.code(), status.signal()) {
            (Some(code), _) => (format!("exit_{code}"), format!("{program} exited with {code}")),
            (None, Some(signal)) => {
                (format!("signal_{signal}"), format!("{program} was ended by signal {signal}"))
            }
            (None, None) => ("exit_unknown".to_owned(), format!("{program} ended")),
        };
        let message = if tail.is_empty() { format!("{how} and said nothing") } else { tail.to_owned() };
        return Err(TaskError::new(code, message));
    }
    let text = output.trim_ascii();
    if text.is_empty() {
        return Ok(Bytes::from_static(b"null"));
    }
    let json = std::str::from_utf8(text)
        .map_err(|e| e.to_string())
        .and_then(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|e| e.to_string()));
    match json {
        Ok(_) => Ok(Bytes::copy_from_slice(text)),
        Err(e) => {
            let shown = output::cut(&String::from_utf8_lossy(text), 200);
            let message = format!("the output of {program} is no JSON: {e}: {shown}");
            Err(TaskError::permanent("invalid_output", message))
        }
    }
}

/// Writes the input. A command that does not read it is no fault.
async fn feed(mut stdin: ChildStdin, input: &Bytes) {
    let _ = stdin.write_all(input).await;
    let _ = stdin.shutdown().await;
}

/// Everything up to the limit; `None` if there was more, and then the command is killed.
async fn read_output(mut stdout: impl AsyncRead + Unpin, group: &Group) -> Option<Vec<u8>> {
    let mut output = Vec::new();
    let mut limited = (&mut stdout).take(MAX_OUTPUT as u64 + 1);
    // A pipe that breaks has ended; the exit status says the rest.
    let _ = limited.read_to_end(&mut output).await;
    if output.len() <= MAX_OUTPUT {
        return Some(output);
    }
    group.signal(Signal::KILL);
    None
}

/// Passes lines on to our own standard error, counts them as heartbeats and keeps the last ones.
async fn read_errors(stderr: impl AsyncRead + Unpin, task: &Task) -> String {
    let (lines, bytes) = TAIL;
    let mut tail: VecDeque<String> = VecDeque::new();
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is cut, so that it does not fill the memory.
        let read = (&mut reader).take(bytes as u64).read_until(b'\n', &mut line).await;
        if read.unwrap_or(0) == 0 {
            break;
        }
        task.heartbeat(None);
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        output::note(&format!("{}/{}: {text}", task.run(), task.path()));
        tail.push_back(text);
        while tail.len() > lines || tail.len() > 1 && tail.iter().map(|l| l.len() + 1).sum::<usize>() > bytes
        {
            tail.pop_front();
        }
    }
    Vec::from(tail).join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn a_command_that_exits_with_n_fails_with_its_last_words() {
        let error = judge("x", exited(7), Some(b"1".to_vec()), "no stock").unwrap_err();
        assert_eq!(
            (error.code.as_str(), error.message.as_str(), error.retryable),
            ("exit_7", "no stock", true)
        );
        let error = judge("x", exited(1), Some(Vec::new()), "").unwrap_err();
        assert_eq!(error.message, "x exited with 1 and said nothing");
        let error = judge("x", ExitStatus::from_raw(9), Some(Vec::new()), "").unwrap_err();
        assert_eq!(error.code, "signal_9");
    }

    #[test]
    fn output_is_json_or_nothing() {
        let output = |text: &str| judge("x", exited(0), Some(text.as_bytes().to_vec()), "");
        assert_eq!(output(" {\"a\": 9007199254740993.0}\n").unwrap(), "{\"a\": 9007199254740993.0}");
        assert_eq!(output(" \n").unwrap(), "null");
        for bad in ["hello", "{}{}", "{\"a\":}", "NaN"] {
            let error = output(bad).unwrap_err();
            assert_eq!((error.code.as_str(), error.retryable), ("invalid_output", false), "{bad:?}");
        }
        let error = judge("x", exited(0), Some(vec![b'"', 0xff, b'"']), "").unwrap_err();
        assert_eq!(error.code, "invalid_output");
        let error = judge("x", exited(0), None, "").unwrap_err();
        assert_eq!((error.code.as_str(), error.retryable), ("output_too_large", false));
    }
}
