//! The hidden command `bench-worker`: gives every input back at once.

use super::TASK_TYPE;
use super::spans::Recorder;
use crate::cli::{Failure, Outcome};
use crate::client::{Task, Worker};
use crate::lifecycle::Lifecycle;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Address of the server
    #[arg(long)]
    server: String,
    /// Tasks held at once
    #[arg(long)]
    concurrency: u32,
    /// Where to write, at the end, when each task ran
    #[arg(long)]
    record: Option<PathBuf>,
}

pub(in crate::cli) async fn run(args: Args) -> Outcome {
    let life = Lifecycle::with_signals()?;
    let recorder = args.record.as_ref().map(|_| Recorder::default());
    let recording = recorder.clone();
    let worker = Worker::builder(&args.server)
        .handle(TASK_TYPE, args.concurrency, move |task: Task| {
            let output = task.input().clone();
            std::future::ready(Ok(recording
                .as_ref()
                .map_or_else(|| output.clone(), |r| r.task(output.clone()))))
        })
        .build()
        .map_err(|e| Failure::usage(e.to_string()))?;
    let handle = worker.handle();
    let stop = async {
        life.stopping().await;
        handle.shutdown(Duration::ZERO);
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = worker.run() => ended.map_err(|e| Failure::failed(e.to_string())),
        () = stop => Ok(()),
    };
    if let (Some(path), Some(recorder)) = (&args.record, recorder) {
        std::fs::write(path, recorder.take())
            .map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
    }
    ended
}
