//! The hidden command `bench-worker`: gives every input back at once.

use super::TASK_TYPE;
use crate::cli::{Failure, Outcome};
use crate::client::{Task, Worker};
use crate::lifecycle::Lifecycle;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Address of the server
    #[arg(long)]
    server: String,
    /// Tasks held at once
    #[arg(long)]
    concurrency: u32,
}

pub(in crate::cli) async fn run(args: Args) -> Outcome {
    let life = Lifecycle::with_signals()?;
    let worker = Worker::builder(&args.server)
        .handle(TASK_TYPE, args.concurrency, |task: Task| std::future::ready(Ok(task.input().clone())))
        .build()
        .map_err(|e| Failure::usage(e.to_string()))?;
    let handle = worker.handle();
    let stop = async {
        life.stopping().await;
        handle.shutdown(Duration::ZERO);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = worker.run() => ended.map_err(|e| Failure::failed(e.to_string())),
        () = stop => Ok(()),
    }
}
